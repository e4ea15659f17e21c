"""Which solutions are precompiled, and when that is waited for, held still and ended."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from flashinfer_bench.bench.planning.first_call import FirstCall
from flashinfer_bench.bench.runner.protocol import Announced, BlockJob, BlockSolution
from flashinfer_bench.bench.runner.session import precompiling
from flashinfer_bench.bench.runner.session.precompiling import TERMS, Precompiler, describe_call
from flashinfer_bench.data import Definition, Workload

pytestmark = pytest.mark.cpu
KERNELS, MODULES = TERMS[FirstCall.TRITON], TERMS[FirstCall.MODULES]
LIBRARY = {"language": "python", "sources": {"main.py": "import flashinfer\n"}}
DEFINITION = Definition.model_validate(
    {
        "name": "scale",
        "op_type": "elementwise",
        "axes": {"n": {"type": "var"}},
        "inputs": {"x": {"shape": ["n"], "dtype": "float16"}, "by": {"shape": None, "dtype": "float32"}},
        "outputs": {"y": {"shape": ["n"], "dtype": "float16"}},
        "reference": "def run(x, by):\n    return x * by\n",
    }
)
WORKLOAD = {"uuid": "one", "axes": {"n": 64}, "inputs": {"by": {"type": "scalar", "value": 2.0}}}


class FakeWorker:
    """Has a guard once it has begun; ends when it is told to, or by itself."""

    def __init__(self):
        self.supervisor_pid = 1
        self.exit = None
        self.has_ended = False
        self.log = SimpleNamespace(take=lambda: "")
        self.held = []

    def hear(self):
        pass

    def begin_end(self):
        self.held.append("told to end")

    def end(self):
        self.exit = self.exit or SimpleNamespace(code=0 if self.has_ended else None)
        self.has_ended = True
        return self.exit

    def resting(self):
        worker = self

        class Rest:
            def __enter__(self):
                worker.held.append("rests")

            def __exit__(self, *_):
                worker.held.append("goes on")

        return Rest()

    def rest_all(self):
        pass


class FakePool:
    """Starts fake workers."""

    def __init__(self):
        self.precompiling, self.is_ready = object(), True
        self.started, self.words, self.compiled, self.forgotten, self.noted = {}, [], set(), [], []

    def has_compiled(self, digest, what):
        return (digest, what) in self.compiled

    def make_folder(self):
        raise AssertionError("nothing was changed, so nothing is written anew")

    def start_precompiling(self, solution, artifact, words):
        self.words.append((artifact, words))
        self.started[solution.digest] = FakeWorker()
        return self.started[solution.digest]

    def may_precompile(self):
        return self.precompiling is not None and self.is_ready

    def end_precompiling(self):
        self.precompiling = None

    def note_compiled(self, digest):
        self.noted.append(digest)

    def forget(self, worker):
        self.forgotten.append(worker)


@pytest.fixture
def clock(monkeypatch):
    """Time that goes on while somebody waits."""
    told = SimpleNamespace(now=0.0)

    def wait(_reads, _writes, _errors, limit_s):
        told.now += limit_s
        return [], [], []

    monkeypatch.setattr(precompiling.select, "select", wait)
    monkeypatch.setattr(precompiling, "find_artifact", lambda solution, _make: SimpleNamespace(directory=Path("/a")))
    return told


@pytest.fixture
def made(clock):
    pool = FakePool()
    return pool, Precompiler(
        pool, has_modules=True, describe=lambda: {"torch": {}, "triton": {}}, now=lambda: clock.now
    )


def solution(number, **changes):
    return BlockSolution(
        **{
            "name": f"s{number}",
            "language": "triton",
            "declared_style": None,
            "digest": f"d{number}",
            "directory": "/a",
            "entry": "main.py",
            "symbol": "run",
            "kind": "python",
            "build_error": None,
            **changes,
        }
    )


def block(*solutions, jobs_each=1):
    named = {one.digest: one for one in solutions}
    orders = [
        BlockJob(index=at, solution=key, workload=WORKLOAD, blob_root="/", seed=0)
        for at, key in enumerate(key for key in named for _ in range(jobs_each))
    ]
    return SimpleNamespace(solutions=named, definition=DEFINITION, jobs=orders), orders


def test_those_that_come_are_precompiled_and_not_the_one_whose_turn_it_is(made):
    pool, precompiler = made
    precompiler.expect([block(*map(solution, range(3)), jobs_each=2)])
    assert list(pool.started) == ["d1", "d2"]
    _, words = pool.words[0]
    call = {"inputs": [{"shape": [64], "dtype": "float16"}, {"scalar": 2.0}]}
    assert words["calls"] == [{**call, "outputs": [{"shape": [64], "dtype": "float16"}]}] * 2
    precompiler.expect([block(*map(solution, range(3)), jobs_each=2)])
    assert len(pool.words) == 2


def test_the_next_block_counts_too_and_no_more_than_a_few_run_side_by_side(made):
    pool, precompiler = made
    blocks = [block(solution(0), solution(1)), block(*map(solution, range(2, 9)))]
    precompiler.expect(blocks)
    assert list(pool.started) == [f"d{number}" for number in range(1, 1 + KERNELS.most_at_once)]
    pool.started["d1"].has_ended = True
    precompiler.expect(blocks)
    assert list(pool.started)[KERNELS.most_at_once :] == [f"d{1 + KERNELS.most_at_once}"]
    assert pool.forgotten == [pool.started["d1"]]


def test_what_has_kernels_or_launches_none_is_left(made):
    pool, precompiler = made
    pool.compiled = {("d1", FirstCall.TRITON), ("d7", FirstCall.MODULES)}
    others = [
        solution(2, language="python"),
        solution(3, build_error="it does not compile"),
        solution(4, language="cuda", kind="torch"),
        solution(5, language="python", sources={"main.py": "import triton\n"}),
        solution(6, sources={"main.py": "@torch.compile\n"}),
        solution(7, **LIBRARY),
        solution(8, sources={"main.py": "# as flashinfer does\n"}),
        solution(9, language="python", sources={"main.py": "from torch.utils.cpp_extension import load\n"}),
    ]
    precompiler.expect([block(solution(0), solution(1), *others)])
    assert list(pool.started) == ["d5", "d8", "d9"]


def test_without_a_template_for_it_nothing_is_precompiled(made):
    pool, precompiler = made
    pool.precompiling = None
    precompiler.expect([block(solution(0), solution(1))])
    assert not pool.started


def test_nothing_is_ordered_before_the_template_is_ready(made):
    """Orders would fill its socket, and hold the session up that sends them."""
    pool, precompiler = made
    pool.is_ready = False
    precompiler.expect([block(solution(0), solution(1))])
    assert not pool.started
    pool.is_ready = True
    precompiler.expect([block(solution(0), solution(1))])
    assert list(pool.started) == ["d1"]


def test_where_nothing_is_told_of_the_gpu_nothing_is_precompiled(clock):
    def describe():
        raise RuntimeError("0 active drivers")

    pool = FakePool()
    Precompiler(pool, describe=describe).expect([block(solution(0), solution(1))])
    assert (pool.precompiling, pool.started) == (None, {})


def test_a_turn_waits_for_what_has_begun_and_not_for_long(made, clock):
    pool, precompiler = made
    precompiler.expect([block(*map(solution, range(3)))])
    told = []
    assert precompiler.finish("d1", 100.0, lambda: told.append(clock.now))
    assert told == [0.0]
    assert clock.now == KERNELS.wait_limit_s
    assert pool.started["d1"].has_ended
    pool.started["d2"].supervisor_pid = None
    precompiler.finish("d2", 100.0, print)
    assert clock.now == KERNELS.wait_limit_s
    assert pool.started["d2"].held == ["told to end"]
    assert not precompiler.finish("d7", 100.0, print)
    precompiler.expect([block(solution(0), solution(1), solution(7))])
    assert list(pool.started) == ["d1", "d2"]


def test_all_of_them_stand_still_while_a_reference_is_timed(made):
    pool, precompiler = made
    blocks = [block(*map(solution, range(4)))]
    precompiler.expect(blocks)
    pool.started["d2"].has_ended = True
    pool.started["d3"].supervisor_pid = None
    late = pool.started["d3"]
    with precompiler.held_still():
        assert pool.started["d1"].held == ["rests"]
        assert pool.started["d2"].held == []
    assert pool.started["d1"].held == ["rests", "goes on"]
    assert late.held == ["told to end"]
    precompiler.expect(blocks)
    assert pool.started["d3"] is not late
    precompiler.close()
    assert pool.started["d1"].has_ended


def test_one_that_is_late_is_ended(made, clock):
    pool, precompiler = made
    precompiler.expect([block(solution(0), solution(1))])
    clock.now += KERNELS.limit_s + 1
    precompiler.expect([block(solution(0))])
    assert pool.started["d1"].has_ended


def test_what_is_announced_is_compiled_beside_kernels_and_has_room_of_its_own(made):
    pool, precompiler = made
    precompiler.announced = [
        Announced(
            solution=solution(number, **LIBRARY),
            definition=DEFINITION.model_dump(mode="json"),
            workloads=[WORKLOAD] * 3,
        )
        for number in range(10, 20)
    ]
    precompiler.expect([block(*map(solution, range(9)))])
    kernels = [f"d{number}" for number in range(1, 1 + KERNELS.most_at_once)]
    modules = [f"d{number}" for number in range(10, 10 + MODULES.most_at_once)]
    assert list(pool.started) == kernels + modules
    words = [words for _, words in pool.words]
    assert [len(one["calls"]) for one in words] == [1] * len(kernels) + [3] * len(modules)
    assert {one["compilers"] for one in words[: len(kernels)]} == {1}
    assert words[-1]["most_processor_s"] == MODULES.most_processor_s


def announce(precompiler, *numbers):
    told = {"definition": DEFINITION.model_dump(mode="json"), "workloads": [WORKLOAD]}
    precompiler.announced = [Announced(solution=solution(number, **LIBRARY), **told) for number in numbers]


def test_a_solution_that_has_its_turn_is_not_precompiled_though_it_was_announced(made):
    pool, precompiler = made
    announce(precompiler, 0, 1)
    precompiler.expect([block(solution(0, **LIBRARY))])
    assert list(pool.started) == ["d1"]


def test_modules_are_left_where_the_host_does_not_announce_them(clock):
    pool = FakePool()
    precompiler = Precompiler(pool, describe=lambda: {"torch": {}, "triton": {}})
    precompiler.expect([block(solution(0), solution(1, **LIBRARY), solution(2))])
    assert list(pool.started) == ["d2"]


def test_that_all_is_compiled_is_noted_of_those_that_end_by_themselves(made):
    pool, precompiler = made
    precompiler.expect([block(solution(0), *(solution(number, **LIBRARY) for number in (1, 2, 3)))])
    pool.started["d1"].has_ended = True
    pool.started["d2"].has_ended = True
    pool.started["d2"].exit = SimpleNamespace(code=1)
    precompiler.expect([block(solution(0))])
    precompiler.close()
    assert pool.noted == ["d1"]


def test_what_else_is_announced_is_begun_while_a_turn_waits(made):
    pool, precompiler = made
    numbers = range(10, 11 + MODULES.most_at_once)
    announce(precompiler, *numbers)
    precompiler.expect([block(solution(0))])
    pool.started["d11"].has_ended = True
    assert f"d{numbers[-1]}" not in pool.started
    precompiler.finish("d10", 5.0, lambda: None)
    assert f"d{numbers[-1]}" in pool.started


def test_beside_a_call_of_which_the_hosts_time_is_part_nothing_is_precompiled_until_its_job_is_over(made):
    pool, precompiler = made
    assert not precompiler.hold()
    precompiler.go_on()
    precompiler.expect([block(solution(0), solution(1))])
    assert precompiler.hold()
    with precompiler.held_still():
        assert pool.started["d1"].held[:1] == ["rests"]
    assert pool.started["d1"].held.count("rests") == pool.started["d1"].held.count("goes on") + 1
    precompiler.go_on()
    assert pool.started["d1"].held[-1] == "goes on"


@pytest.mark.parametrize(("most_s", "waited_s"), [(30.0, 30.0), (1e9, MODULES.wait_limit_s)])
def test_modules_are_waited_for_as_long_as_a_call_may_take(made, clock, most_s, waited_s):
    pool, precompiler = made
    precompiler.expect([block(solution(0), solution(1, **LIBRARY))])
    assert precompiler.finish("d1", most_s, lambda: None)
    assert (clock.now, pool.started["d1"].has_ended) == (waited_s, True)


@pytest.mark.parametrize(("cores", "gigabytes", "compilers"), [(16, 128, 4), (64, 512, 8), (16, 512, 6), (4, 8, 1)])
def test_compilers_of_modules_fit_into_the_cores_and_the_memory(monkeypatch, cores, gigabytes, compilers):
    monkeypatch.setattr(precompiling, "cores_for_compilers", lambda: list(range(cores // 4, cores)))
    monkeypatch.setattr(precompiling, "usable_memory", lambda: gigabytes << 30)
    assert precompiling.list_means(MODULES)["compilers"] == compilers


def test_a_workload_that_leaves_a_number_open_tells_no_call():
    assert describe_call(DEFINITION, Workload(uuid="one", axes={"n": 4})) is None
    assert describe_call(DEFINITION, Workload(uuid="one", axes={})) is None
