"""The part of Ray that a cluster uses, in this process: nodes come and go, actors answer and are restarted."""

import importlib.machinery
import types
from dataclasses import replace

WITH_RAY = [f"flashinfer_bench.cluster.{name}" for name in ("actor", "cluster")]


class RayError(Exception):
    pass


class RayActorError(RayError):
    pass


class ActorUnavailableError(RayActorError):
    pass


class Answer:
    """What a call came to: a value, or an error."""

    def __init__(self, find):
        try:
            self.value, self.error = find(), None
        except RayError as error:
            self.error = error
        except Exception as error:
            self.error = RayError("a task failed")
            self.error.cause = error

    def get(self):
        if self.error is not None:
            raise self.error
        return self.value


class Handle:
    """An actor: calls of its methods become answers at once, and those of `judge` as it goes on."""

    def __init__(self, ray, cls, options, args):
        self.ray, self.options = ray, options
        self._make = lambda: cls(*args)
        self.node, self.restarts = options["scheduling_strategy"].node, options["max_restarts"]
        self.actor, self.is_lost, self.is_killed = None, False, False

    def __getattr__(self, name):
        def remote(*args):
            return Answer(lambda: self._call(name, args))

        def stream(*args):
            said = self._call(name, args)
            actor = self.actor
            for one in said:
                if self.is_lost or self.is_killed:
                    break
                yield Answer(lambda one=one: one)
            said.close()
            if self.is_lost or self.is_killed:
                with actor._judging:
                    actor._end_session()  # as the process ends
                yield Answer(self._check)

        return types.SimpleNamespace(remote=remote, options=lambda **_: types.SimpleNamespace(remote=stream))

    def lose(self):
        """End its process, and its sessions with it: the stream of what is judged does so itself."""
        self.is_lost = True
        if self.actor._judging.acquire(blocking=False):
            self.actor._end_session()
            self.actor._judging.release()

    def _check(self):
        if self.is_lost or self.is_killed:
            raise RayActorError("the actor is dead:\nout of memory")

    def _call(self, name, args):
        node = self.ray.table[self.node]
        if self.is_lost and self.restarts and node["Alive"] and not self.is_killed:
            self.is_lost, self.actor, self.restarts = False, None, self.restarts - 1
        self._check()
        if self.actor is None:
            self.actor = self._make()
            self.actor._find_device = lambda: self.ray.find_device(self)
        answer = getattr(self.actor, name)(*args)
        return replace(answer, **self.ray.differ.get(self.node, {})) if name == "describe" else answer


class FakeRay:
    """A cluster in this process. `find_device` gives the device of a handle's actor."""

    def __init__(self):
        self.table, self.actors, self.is_joined = {}, [], False
        self.differ = {}
        """Node → what its actors tell otherwise of themselves."""

    def add_node(self, name, *, host=None, **resources):
        self.table[name] = {"NodeID": name, "Alive": True, "NodeManagerHostname": host or name}
        self.table[name]["Resources"] = {"CPU": 8.0, **resources}

    def lose_node(self, name):
        self.table[name]["Alive"] = False
        for handle in self.actors:
            if handle.node == name:
                handle.lose()

    def _options(self, cls, **options):
        def remote(*args):
            self.actors.append(Handle(self, cls, options, args))
            return self.actors[-1]

        return types.SimpleNamespace(remote=remote)

    def modules(self):
        """Return the modules as sys.modules has them."""
        names = ("ray", "ray.exceptions", "ray.util", "ray.util.scheduling_strategies")
        ray, exceptions, util, strategies = made = [types.ModuleType(name) for name in names]
        ray.__path__ = util.__path__ = []
        ray.__spec__ = importlib.machinery.ModuleSpec("ray", None)
        ray.method = lambda **_: lambda function: function
        ray.is_initialized = lambda: self.is_joined
        ray.init = lambda **_: setattr(self, "is_joined", True)
        ray.shutdown = lambda: setattr(self, "is_joined", False)
        ray.nodes = lambda: list(self.table.values())
        ray.kill = lambda handle, no_restart=True: setattr(handle, "is_killed", True)
        ray.get = lambda answer, timeout=None: answer.get()
        ray.put = lambda content: Answer(lambda: content)
        ray.get_gpu_ids = lambda: ["5"]
        ray.remote = lambda **_: lambda cls: types.SimpleNamespace(options=lambda **asked: self._options(cls, **asked))
        ray.wait = lambda answers, num_returns=1, timeout=None: (answers, [])
        for error in (RayError, RayActorError, ActorUnavailableError):
            setattr(exceptions, error.__name__, error)
        strategies.NodeAffinitySchedulingStrategy = lambda node, soft: types.SimpleNamespace(node=node, soft=soft)
        return {**dict(zip(names, made, strict=True)), "ray._private": None}
