"""Which solutions are precompiled, and when the session waits for that, pauses it and ends it."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from flashinfer_bench.bench.planning.first_call import FirstCall
from flashinfer_bench.bench.runner.protocol import RequestedJob, RequestedSolution
from flashinfer_bench.bench.runner.session import precompiling
from flashinfer_bench.bench.runner.session.precompiling import Precompiler
from tests.kit.make import make_definition

pytestmark = pytest.mark.cpu
LIBRARY = {"first_call": FirstCall.MODULES}
DEFINITION = make_definition(inputs={"x": "float16[n]", "by": "float32"}, outputs={"y": "float16[n]"})
WORKLOAD = {"uuid": "one", "axes": {"n": 64}, "inputs": {"by": {"type": "scalar", "value": 2.0}}}


class FakeWorker(SimpleNamespace):
    """Ends on request, or by itself."""

    supervisor_pid, code, has_ended, is_paused = 1, 0, False, False

    def end(self):
        code, self.has_ended = self.code if self.has_ended else None, True
        return SimpleNamespace(code=code)

    def pause(self):
        self.is_paused = True

    def resume(self):
        self.is_paused = False


class FakePool:
    """Starts fake workers; `noted` has the solutions whose kernels are compiled now, by their digests."""

    precompiling = "socket"

    def __init__(self):
        self.is_ready, self.started, self.words, self.compiled, self.noted = True, {}, [], set(), []
        self.policies = SimpleNamespace(is_compiled=self.compiled.__contains__, mark_compiled=self.noted.append)

    def start_precompiling(self, solution, artifact, words):
        self.words.append(words["calls"])
        self.started[solution.digest] = FakeWorker()
        return self.started[solution.digest]

    def may_precompile(self):
        return self.is_ready


@pytest.fixture
def clock(monkeypatch):
    """Advances during waits."""
    clock = SimpleNamespace(now=0.0)

    def wait(_reads, _writes, _errors, limit_s):
        clock.now += limit_s
        return [], [], []

    monkeypatch.setattr(precompiling, "describe_gpu", dict)
    monkeypatch.setattr(precompiling.select, "select", wait)
    monkeypatch.setattr(precompiling, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(precompiling, "find_artifact", lambda solution, _make: SimpleNamespace(directory=Path("/a")))
    return clock


@pytest.fixture
def pool():
    return FakePool()


@pytest.fixture
def precompiler(pool, clock):
    return Precompiler(pool, has_modules=True)


def solution(number, **changes):
    fields = {"name": f"s{number}", "language": "triton", "declared_style": None, "digest": f"d{number}"}
    fields |= {"directory": "/a", "entry": "main.py", "symbol": "run", "kind": "python", "build_error": None}
    fields |= {"first_call": FirstCall.TRITON}
    return RequestedSolution(**fields | changes)


def jobs(*solutions, each=1):
    """Return jobs of solutions, or of those with these numbers."""
    found = [solution(one) if isinstance(one, int) else one for one in solutions]
    request = SimpleNamespace(solutions={one.digest: one for one in found}, definition=DEFINITION)
    requested = {"workload": WORKLOAD, "blob_root": "/", "seed": 0, "index": 0}
    return [(request, RequestedJob(solution=one.digest, **requested)) for one in found for _ in range(each)]


def test_a_few_run_at_once_and_ended_or_late_workers_make_room(pool, precompiler, clock):
    coming = jobs(*range(12))
    precompiler.expect(coming)
    first = [*pool.started]
    assert 2 < len(first) < 11
    pool.started["d1"].has_ended = pool.started["d2"].has_ended = True
    pool.started["d2"].code = 1
    precompiler.expect(coming)
    assert (pool.noted, len(pool.started)) == (["d1"], len(first) + 2)
    clock.now += 1e4
    precompiler.expect(coming)
    assert all(pool.started[name].has_ended for name in first)
    assert len(pool.started) == 2 * len(first) + 2


@pytest.mark.parametrize(("kind", "most_s", "longest_s"), [({}, 3.0, 3.0), ({}, 1e6, 15.0), (LIBRARY, 1e6, 300.0)])
def test_a_turn_waits_for_its_solution_and_not_for_long(pool, precompiler, clock, kind, most_s, longest_s):
    precompiler.expect(jobs(0, solution(1, **kind)))
    assert precompiler.finish("d1", most_s, lambda: None)
    assert 3.0 <= clock.now <= longest_s
    assert (pool.started["d1"].has_ended, pool.noted) == (True, [])
    assert not precompiler.finish("d7", 100.0, print)
    precompiler.expect(jobs(0, 1, 7))
    assert list(pool.started) == ["d1"]


def test_all_of_them_stop_at_a_pause(pool, precompiler):
    assert not precompiler.pause()
    precompiler.expect(jobs(0, 1))
    assert precompiler.pause()
    assert pool.started["d1"].is_paused
    precompiler.resume()
    assert not pool.started["d1"].is_paused
    precompiler.close()
    assert pool.started["d1"].has_ended
