"""Pretended sessions: each job waits until a test sets its result. Engines and runs on them."""

import contextlib
import json
import random
import socket
import threading
import time
from typing import ClassVar

from flashinfer_bench import BenchmarkConfig, Engine
from flashinfer_bench.bench.machine import Device, Machine
from flashinfer_bench.bench.runner import client
from flashinfer_bench.bench.runner.client import SessionLost
from tests.bench.small_runs import HONEST, write_set
from tests.kit.make import make_evaluation, write_trace_set


class PlayedSession:
    """A session that returns a verdict for each job once `gate` is open, in the order of its batch."""

    has_unsent, left_s, phase = False, 100.0, "solution"
    gate: ClassVar[threading.Event] = threading.Event()
    fails_to_start: ClassVar[int] = 0
    """This many sessions from here on end before they are ready."""
    all: ClassVar[list] = []
    judged: ClassVar[list] = []
    """(solution's name, workload's uuid) of each job that was begun, by all sessions."""
    lost: ClassVar[list] = []
    """Solutions whose first job ends the session, once each."""
    evaluate: ClassVar = staticmethod(lambda job, name: {})
    """Fields of the evaluation of a job and its solution's name; {"fault": fields}, or None: the session ends."""
    loss, chance = 0.0, random.Random(0)
    """Share of the jobs that end their session, and the random numbers that decide it."""

    def __init__(self, device, session_config):
        self._ours, self._theirs = socket.socketpair()
        self.session_config, self.sent, self.todo, self.is_ready, self.has_ended = session_config, None, 0, False, False
        self.begun = []
        self.all.append(self)
        if type(self).fails_to_start > 0:
            type(self).fails_to_start -= 1
            self._theirs.close()
        else:
            self._say({"ready": {}})

    def fileno(self):
        return self._ours.fileno()

    def send(self, request):
        assert self.sent is None
        self.sent = request

    def drop(self):
        assert self.sent is not None
        self.sent = None

    def begin(self):
        assert self.is_ready
        assert self.todo == 0
        request, self.sent, self.todo = self.sent, None, len(self.sent.jobs)
        self.begun.append(request)
        threading.Thread(target=self._judge, args=(request,), daemon=True).start()

    def _judge(self, request):
        for job in request.jobs:
            if not self._judge_one(job, request.solutions[job.solution].name):
                with contextlib.suppress(OSError):
                    self._theirs.shutdown(socket.SHUT_RDWR)
                return

    def _judge_one(self, job, name):
        """Return whether the session goes on."""
        self.judged.append((name, job.workload["uuid"]))
        self._say({"phase": {"job": job.index, "name": "load", "limit_s": 1.0}})
        self.gate.wait(60)
        time.sleep(0.002)
        if self.has_ended:  # else it would judge in the next test
            return False
        if name in self.lost or self.chance.random() < self.loss:
            self.lost[:] = [one for one in self.lost if one != name] + [name] * (self.lost.count(name) - 1)
            return False
        self.todo -= 1
        found = self.evaluate(job, name)
        if found is not None and "fault" in found:
            self._say({"fault": {"job": job.index, "message": "", "retry": False, **found["fault"]}})
        elif found is not None:
            environment = {"hardware": getattr(self.session_config, "hardware", ""), "libs": {}}
            ran_out = found.pop("ran_out", None)
            evaluation = make_evaluation(**{"environment": environment, **found}).model_dump(mode="json")
            self._say({"verdict": {"job": job.index, "evaluation": evaluation, "seconds": 0.6, "ran_out": ran_out}})
        return found is not None

    def _say(self, message):
        with contextlib.suppress(OSError):  # it was ended in between
            self._theirs.sendall(json.dumps(message).encode() + b"\n")

    def messages(self):
        said = self._ours.recv(1 << 20)
        if not said:
            raise SessionLost("the session ended")
        for message in map(json.loads, said.splitlines()):
            self.is_ready = self.is_ready or "ready" in message
            yield message

    def end(self):
        self.has_ended = True
        self._ours.close()
        self._theirs.close()

    wait_forever = check_deadline = staticmethod(lambda *_: None)


def play(monkeypatch, **values):
    """Let all sessions from here on pretend; the gate is shut, unless it is given."""
    monkeypatch.setattr(client, "SessionClient", PlayedSession)
    fresh = {"gate": threading.Event(), "fails_to_start": 0, "all": [], "judged": [], "lost": [], "loss": 0.0}
    for name, value in {**fresh, **values}.items():
        monkeypatch.setattr(PlayedSession, name, value)


def play_engine(monkeypatch, folder, *, limits=None, **config):
    """Make an engine on pretended sessions; its set has the definitions `double` and `other`, without solutions."""
    play(monkeypatch)
    config = BenchmarkConfig.default(devices=["cpu"], **config)
    return Engine(write_two(folder / "set"), config, cache=folder / "cache", limits=limits)


def on_gpu(context, *names):
    """Pretend that a run or an engine has GPUs of these names; call it before anything is judged."""
    on_devices(context, *(Device("cuda", at, name, f"GPU-{at}") for at, name in enumerate(names or ("test device",))))


def on_devices(context, *devices):
    """Pretend that a run or an engine has these devices; call it before anything is judged."""
    context.machine = Machine(devices, context.machine.languages)


def write_two(root, files=None):
    """Write and read a set of two definitions, with the workloads d0 and d1, o0 and o1, and without solutions."""
    write_trace_set(root, files)
    return write_set(root, {}, dict.fromkeys(("double", "other"), HONEST), uuids="{0[0]}{1}", sizes=(8, 9))
