"""Shared fixtures of the build tests: the compilers that were run."""

import time
from dataclasses import dataclass, field
from threading import Lock

import pytest

from flashinfer_bench.compile.building import Compilers
from tests.kit.native import processes_in


@dataclass
class Runs:
    """The compilers that were asked for, in the order of their starts."""

    steps: list = field(default_factory=list)
    """The name of each command, and whether there was a precompiled header."""
    sources: list = field(default_factory=list)
    """The second word of each `main.cpp` that was compiled."""


@pytest.fixture
def runs(monkeypatch):
    """The compilers that the builds of a test have run."""
    seen, run, lock = Runs(), Compilers.run, Lock()

    def observed(self, step, folder, readable):
        main = folder / "src" / "main.cpp"
        with lock:
            seen.steps.append((step.name, (folder / "headers").exists()))
            seen.sources += [main.read_text().split()[1]] if step.name == "compile main.cpp" else []
        return run(self, step, folder, readable)

    monkeypatch.setattr(Compilers, "run", observed)
    return seen


def wait_for(condition, limit_s=60.0):
    deadline = time.monotonic() + limit_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def is_quiet(folder):
    """Whether no process works below a folder, now or soon: killed processes end a little later."""
    return wait_for(lambda: not processes_in(folder))
