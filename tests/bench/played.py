"""An engine whose sessions only pretend: each job waits until a test says what it comes to."""

import contextlib
import json
import socket
import threading
from pathlib import Path
from typing import ClassVar

from flashinfer_bench import BenchmarkConfig, Engine, TraceSet
from flashinfer_bench.bench.runner import client
from flashinfer_bench.bench.runner.client import SessionLost
from tests.kit.make import make_definition, make_evaluation, make_trace, make_workload, write_trace_set


def write_set(folder, workloads=2):
    """Write and read a set of two definitions, `double` and `other`, without solutions."""
    names = ("double", "other")
    write_trace_set(
        folder,
        definitions=[make_definition(name) for name in names],
        solutions=[],
        workloads=[
            make_trace(definition=name, workload=make_workload(f"{name[0]}{at}", axes={"n": 8 + at}), solution=None)
            for name in names
            for at in range(workloads)
        ],
    )
    return TraceSet.from_path(folder)


class PlayedSession:
    """A session that gives a verdict for each job once `gate` is open, in the order of its block."""

    has_unsent, left_s, phase, is_ready = False, 100.0, "solution", True
    gate: ClassVar[threading.Event] = threading.Event()
    fails_to_start: ClassVar[int] = 0
    """So many sessions from here on end before they are ready."""
    all: ClassVar[list] = []
    judged: ClassVar[list] = []
    """(solution's name, workload's uuid) of each job that was begun, by all sessions."""
    lost: ClassVar[list] = []
    """Solutions whose first job ends the session, once each."""

    def __init__(self, device, hello):
        self._ours, self._theirs = socket.socketpair()
        self.hello, self.sent, self.has_ended = hello, None, False
        self.all.append(self)
        if type(self).fails_to_start > 0:
            type(self).fails_to_start -= 1
            self.is_ready = False
            self._theirs.close()

    def fileno(self):
        return self._ours.fileno()

    def send(self, block):
        assert self.sent is None
        self.sent = block

    def drop(self):
        assert self.sent is not None
        self.sent = None

    def begin(self):
        block, self.sent = self.sent, None
        threading.Thread(target=self._judge, args=(block,), daemon=True).start()

    def _judge(self, block):
        for job in block.jobs:
            name = block.solutions[job.solution].name
            self.judged.append((name, job.workload["uuid"]))
            self._say({"phase": {"job": job.index, "name": "load", "limit_s": 1.0}})
            self.gate.wait(60)
            if name in self.lost:
                self.lost.remove(name)
                self._theirs.shutdown(socket.SHUT_RDWR)
                return
            environment = {"hardware": self.hello.hardware, "libs": {}}
            evaluation = make_evaluation(environment=environment).model_dump(mode="json")
            self._say({"verdict": {"job": job.index, "evaluation": evaluation, "seconds": 0.6}})

    def _say(self, message):
        with contextlib.suppress(OSError):  # it was ended meanwhile
            self._theirs.sendall(json.dumps(message).encode() + b"\n")

    def wait_forever(self):
        pass

    def check_deadline(self):
        pass

    def messages(self):
        said = self._ours.recv(1 << 20)
        if not said:
            raise SessionLost("the session ended")
        yield from (json.loads(line) for line in said.splitlines())

    def end(self):
        self.has_ended = True
        self._ours.close()
        self._theirs.close()


def play_engine(monkeypatch, folder: Path, *, limits=None, **config):
    """Make an engine on pretended sessions; its gate is shut."""
    monkeypatch.setattr(client, "SessionClient", PlayedSession)
    fresh = {"gate": threading.Event(), "fails_to_start": 0, "all": [], "judged": [], "lost": []}
    for name, value in fresh.items():
        monkeypatch.setattr(PlayedSession, name, value)
    config = BenchmarkConfig.default(devices=["cpu"], **config)
    return Engine(write_set(folder / "set"), config, cache=folder / "cache", limits=limits)
