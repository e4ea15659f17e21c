"""What the tests of builds share: which steps were run."""

from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

import pytest

from flashinfer_bench.compile.compilers import Compilers


@dataclass
class Runs:
    """The processes that ran compilers, in the order of their starts."""

    steps: list = field(default_factory=list)
    """Names of the steps of each."""
    sources: list = field(default_factory=list)
    """The second word of `main.cpp` of each."""
    takes_header: list = field(default_factory=list)
    most: int = 0
    """How many compilers could run at once."""
    _now: int = 0
    _lock: Lock = field(default_factory=Lock)

    @contextmanager
    def note(self, stages, folder, parallel):
        main = folder / "src" / "main.cpp"
        with self._lock:
            self.steps.append([step.name for stage in stages for step in stage])
            self.sources.append(main.read_text().split()[1] if main.exists() else "")
            self.takes_header.append((folder / "headers").exists())
            self._now += parallel
            self.most = max(self.most, self._now)
        yield
        with self._lock:
            self._now -= parallel


@pytest.fixture
def runs(monkeypatch):
    """What the builds of a test have run."""
    seen, run = Runs(), Compilers.run

    def observed(self, stages, folder, seconds, *, parallel=1, readable=()):
        with seen.note(stages, folder, parallel):
            return run(self, stages, folder, seconds, parallel=parallel, readable=readable)

    monkeypatch.setattr(Compilers, "run", observed)
    return seen
