"""Which solutions are precompiled, and when that is waited for, paused and ended."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from flashinfer_bench.bench.planning.first_call import FirstCall
from flashinfer_bench.bench.runner.protocol import Announced, BlockJob, BlockSolution
from flashinfer_bench.bench.runner.session import precompiling
from flashinfer_bench.bench.runner.session.precompiling import MOST_AT_ONCE, TERMS, Precompiler, describe_call
from flashinfer_bench.data import Workload
from tests.kit.make import make_definition

pytestmark = pytest.mark.cpu
KERNELS, MODULES = TERMS[FirstCall.TRITON], TERMS[FirstCall.MODULES]
LIBRARY = {"language": "python", "sources": {"main.py": "import flashinfer\n"}}
DEFINITION = make_definition(inputs={"x": "float16[n]", "by": "float32"}, outputs={"y": "float16[n]"})
WORKLOAD = {"uuid": "one", "axes": {"n": 64}, "inputs": {"by": {"type": "scalar", "value": 2.0}}}


class FakeWorker(SimpleNamespace):
    """Ends when it is told to, or by itself."""

    supervisor_pid, code, has_ended = 1, 0, False

    def end(self):
        code, self.has_ended = self.code if self.has_ended else None, True
        return SimpleNamespace(code=code)

    def pause(self):
        self.rests.append("stopped")

    def resume(self):
        self.rests.append("goes on")


class FakePool:
    """Starts fake workers."""

    def __init__(self):
        self.is_ready, self.is_gone = True, False
        self.started, self.words, self.compiled, self.noted = {}, [], set(), []
        self.policies = SimpleNamespace(is_compiled=self.compiled.__contains__, mark_compiled=self.noted.append)

    def start_precompiling(self, solution, artifact, words):
        self.words.append(words)
        self.started[solution.digest] = FakeWorker(rests=[])
        return self.started[solution.digest]

    def may_precompile(self):
        return self.is_ready

    @property
    def precompiling(self):
        return None if self.is_gone else "socket"

    def end_precompiling(self):
        self.is_ready, self.is_gone = False, True


@pytest.fixture
def make(monkeypatch):
    """Returns a pool, a precompiler, and the clock, which goes on while somebody waits."""
    clock = SimpleNamespace(now=0.0)

    def wait(_reads, _writes, _errors, limit_s):
        clock.now += limit_s
        return [], [], []

    def make(has_modules=True, describe=dict):
        pool = FakePool()
        monkeypatch.setattr(precompiling, "describe_gpu", describe)
        return pool, Precompiler(pool, has_modules=has_modules), clock

    monkeypatch.setattr(precompiling.select, "select", wait)
    monkeypatch.setattr(precompiling, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(precompiling, "find_artifact", lambda solution, _make: SimpleNamespace(directory=Path("/a")))
    return make


def solution(number, **changes):
    fields = {"name": f"s{number}", "language": "triton", "declared_style": None, "digest": f"d{number}"}
    fields |= {"directory": "/a", "entry": "main.py", "symbol": "run", "kind": "python", "build_error": None}
    return BlockSolution(**fields | changes)


def jobs(*solutions, each=1):
    """Return jobs of solutions, or of those with these numbers."""
    found = [solution(one) if isinstance(one, int) else one for one in solutions]
    block = SimpleNamespace(solutions={one.digest: one for one in found}, definition=DEFINITION)
    order = {"workload": WORKLOAD, "blob_root": "/", "seed": 0, "index": 0}
    return [(block, BlockJob(solution=one.digest, **order)) for one in found for _ in range(each)]


def test_those_that_come_are_precompiled_once_and_not_the_one_whose_turn_it_is(make):
    pool, precompiler, _ = make()
    for _ in range(2):
        precompiler.expect(jobs(0, 1, 2, each=2))
    assert list(pool.started) == ["d1", "d2"]
    call = {"inputs": [{"shape": [64], "dtype": "float16"}, {"scalar": 2.0}]}
    assert [words["calls"] for words in pool.words] == [[{**call, "outputs": call["inputs"][:1]}] * 2] * 2
    assert [describe_call(DEFINITION, Workload(uuid="one", axes=axes)) for axes in ({"n": 4}, {})] == [None, None]


def test_a_few_run_at_once_and_what_has_ended_or_is_late_makes_room_also_while_a_turn_waits(make):
    pool, precompiler, clock = make()
    coming, most = jobs(*range(12)), MOST_AT_ONCE
    precompiler.expect(coming)
    assert list(pool.started) == [f"d{number}" for number in range(1, 1 + most)]
    pool.started["d1"].has_ended = pool.started["d2"].has_ended = True
    pool.started["d2"].code = 1
    precompiler.expect(coming)
    precompiler.finish("d3", 5.0, lambda: None)
    assert pool.noted == ["d1"]
    clock.now += KERNELS.limit_s + 1
    precompiler.expect(coming)
    assert pool.started["d4"].has_ended
    assert list(pool.started)[most : most + 4] == [f"d{number}" for number in range(1 + most, 5 + most)]


def test_what_has_kernels_or_launches_none_is_left(make):
    pool, precompiler, _ = make()
    pool.compiled |= {"d1"}
    others = [
        solution(3, build_error="it does not compile"),
        solution(4, language="cuda", kind="torch"),
        solution(5, language="python", sources={"main.py": "import triton\n"}),
        solution(7, language="python", sources={"main.py": "from torch.utils.cpp_extension import load\n"}),
    ]
    precompiler.expect(jobs(0, 1, *others))
    assert list(pool.started) == ["d5", "d7"]


def test_nothing_is_ordered_before_the_server_is_ready_or_if_nothing_is_known_of_the_gpu(make):
    """Orders would fill its socket, and hold the session up that sends them."""
    pool, precompiler, _ = make()
    for pool.is_ready in (False, True):
        precompiler.expect(jobs(0, 1))
        assert bool(pool.started) == pool.is_ready
    pool, precompiler, _ = make(describe=lambda: 1 / 0)
    precompiler.expect(jobs(0, 2))
    assert (pool.started, pool.is_ready) == ({}, False)


@pytest.mark.parametrize("ready_after", [2, 5, None])
def test_while_the_first_solution_is_imported_others_begin_as_soon_as_the_server_is_ready(make, ready_after):
    pool, precompiler, clock = make()
    pool.is_ready = False
    precompiler.expect(jobs(0, 1))

    def is_over():
        pool.is_ready = len(looks) == ready_after
        looks.append(clock.now)
        return len(looks) == 4

    looks = []
    precompiler.begin(is_over)
    assert bool(pool.started) == (ready_after == 2)
    assert len(looks) == (3 if ready_after == 2 else 4)
    pool.is_gone = True
    precompiler.begin(lambda: 1 / 0)


@pytest.mark.parametrize(
    ("kind", "most_s", "waited_s"), [({}, 100.0, KERNELS.wait_s), ({}, 3.0, 3.0), (LIBRARY, 1e9, MODULES.wait_s)]
)
def test_a_turn_waits_for_its_solution_and_not_for_long(make, kind, most_s, waited_s):
    pool, precompiler, clock = make()
    precompiler.expect(jobs(0, solution(1, **kind)))
    told = []
    assert precompiler.finish("d1", most_s, lambda: told.append(clock.now))
    assert (told, clock.now, pool.started["d1"].has_ended, pool.noted) == ([0.0], waited_s, True, [])
    assert not precompiler.finish("d7", 100.0, print)
    precompiler.expect(jobs(0, 1, 7))
    assert list(pool.started) == ["d1"]


def test_all_of_them_stand_still_from_a_pause_on(make):
    pool, precompiler, _ = make()
    assert not precompiler.pause()
    precompiler.expect(jobs(0, 1))
    assert precompiler.pause()
    precompiler.resume()
    assert pool.started["d1"].rests == ["stopped", "goes on"]
    precompiler.close()
    assert pool.started["d1"].has_ended


@pytest.mark.parametrize("has_modules", [True, False])
def test_what_is_announced_is_compiled_beside_kernels_and_has_room_of_its_own(make, has_modules):
    parts = {"definition": DEFINITION.model_dump(mode="json"), "workloads": [WORKLOAD] * 3}
    announced = [Announced(solution=solution(number, **LIBRARY), **parts) for number in (0, *range(10, 20))]
    pool, precompiler, _ = make(has_modules)
    precompiler.expect(jobs(*range(9)), announced)
    modules = range(10, 10 + MOST_AT_ONCE * has_modules)
    assert list(pool.started) == [f"d{number}" for number in (*range(1, 1 + MOST_AT_ONCE), *modules)]
    assert [len(words["calls"]) for words in pool.words] == [1] * MOST_AT_ONCE + [3] * len(modules)
