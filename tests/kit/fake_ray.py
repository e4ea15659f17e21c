"""The part of Ray that the table of places uses, without processes: nodes that come and go, actors that answer."""

import types


class RayError(Exception):
    pass


class RayActorError(RayError):
    pass


class GetTimeoutError(RayError, TimeoutError):
    pass


class Answer:
    """What a call of an actor comes to; it may come later, or be an error."""

    def __init__(self, find):
        self.find = find
        self.is_there = True


class Handle:
    """An actor: calls of its methods become answers."""

    def __init__(self, actor, options):
        self.actor, self.options, self.is_killed = actor, options, False

    def __getattr__(self, name):
        def remote(*args):
            def find():
                if self.is_killed or self.actor.is_lost:
                    raise RayActorError(f"the actor is dead: {self.actor.last_words}")
                return getattr(self.actor, name)(*args)

            return Answer(find)

        return types.SimpleNamespace(remote=remote)


class FakeRay:
    """A cluster in this process.

    Args:
        make_actor: gives the actor of a node's id.
    """

    def __init__(self, make_actor):
        self.make_actor = make_actor
        self.table, self.actors, self.is_joined = {}, [], False

    def add_node(self, name, *, host="host", alive=True, **resources):
        self.table[name] = {
            "NodeID": name,
            "Alive": alive,
            "NodeManagerHostname": host,
            "Resources": {"CPU": 8.0, **resources},
        }

    def lose_node(self, name):
        self.table[name]["Alive"] = False
        for handle in self.actors:
            if handle.actor.node == name:
                handle.actor.is_lost = True

    def modules(self):
        """Return the modules as sys.modules has them."""
        ray = types.ModuleType("ray")
        ray.__path__ = []
        ray.method = lambda **_: lambda function: function
        ray.is_initialized = lambda: self.is_joined
        ray.init = lambda **_: setattr(self, "is_joined", True)
        ray.shutdown = lambda: setattr(self, "is_joined", False)
        ray.nodes = lambda: list(self.table.values())
        ray.kill = lambda handle: setattr(handle, "is_killed", True)
        ray.get = lambda answer, timeout=None: answer.find()
        ray.put = lambda content: content
        ray.remote = lambda **_: lambda cls: types.SimpleNamespace(options=self._options)
        ray.wait = self._wait
        exceptions = types.ModuleType("ray.exceptions")
        for error in (RayError, RayActorError, GetTimeoutError):
            setattr(exceptions, error.__name__, error)
        strategies = types.ModuleType("ray.util.scheduling_strategies")
        strategies.NodeAffinitySchedulingStrategy = lambda node, soft: types.SimpleNamespace(node=node, soft=soft)
        util = types.ModuleType("ray.util")
        util.__path__ = []
        return {
            "ray": ray,
            "ray.exceptions": exceptions,
            "ray.util": util,
            "ray.util.scheduling_strategies": strategies,
            "ray._private": None,
        }

    def _options(self, **options):
        def remote(*_args):
            handle = Handle(self.make_actor(options["scheduling_strategy"].node), options)
            self.actors.append(handle)
            return handle

        return types.SimpleNamespace(remote=remote)

    def _wait(self, answers, num_returns=1, timeout=None):
        return [one for one in answers if one.is_there], []
