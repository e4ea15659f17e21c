"""What a session keeps from one block to the next."""

import itertools
import signal
from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.evaluators.evaluator import Baseline
from flashinfer_bench.bench.runner.protocol import EXPECTED_PHASE, BlockJob, BlockOrder, BlockSolution, JobFault
from flashinfer_bench.bench.runner.readout import Readout
from flashinfer_bench.bench.runner.session import device_session
from flashinfer_bench.bench.runner.session.job import MadeBaseline
from flashinfer_bench.bench.runner.session.reference_timing import SlowReference
from flashinfer_bench.bench.runner.workers.arena import SharedArena
from flashinfer_bench.bench.runner.workers.calling import WorkerKilled
from flashinfer_bench.bench.runner.workers.kernel_task import SessionTools
from flashinfer_bench.bench.runner.workers.pool import SlowContext, reference_files
from flashinfer_bench.bench.runner.workers.process import WorkerExit
from flashinfer_bench.errors import SolutionFailure
from flashinfer_bench.timing.measurement import Measured
from flashinfer_bench.timing.settings import TimingSettings
from tests.kit import make_definition, make_workload

pytestmark = pytest.mark.cpu
CPU = torch.device("cpu")


class FakePool:
    """Notes how large the arena is when its worker is ended."""

    def __init__(self, arena):
        self.arena = arena
        self.sizes = []
        self.recovers = True
        self.precompiling = None

    def may_precompile(self):
        return False

    def discard(self):
        self.sizes.append(self.arena.size)

    def expect(self, solutions):
        self.expected = solutions

    def is_starting(self):
        return False

    def settle(self):
        return False

    def take_output(self):
        return ""

    def end_reference(self):
        pass

    def recover(self):
        return self.recovers


@pytest.fixture
def arena():
    with SharedArena(CPU) as arena:
        yield arena


def _open_session(arena, pool):
    return device_session.DeviceSession(
        SimpleNamespace(compiles_ahead=False), pool, SessionTools(arena, Readout(None), lambda: None), print
    )


@pytest.mark.parametrize(("size", "is_kept"), [(1 << 20, True), ((1 << 30) + (2 << 20), False)], ids=["small", "large"])
def test_a_large_arena_is_given_back_between_blocks_after_its_worker(arena, size, is_kept):
    pool = FakePool(arena)
    session = _open_session(arena, pool)
    arena.reserve(size)
    definition = make_definition()
    config = BenchmarkConfig().resolve_eval_config(definition).values()
    session.open_block(BlockOrder(definition=definition.model_dump(mode="json"), config=config, solutions={}, jobs=[]))
    assert pool.sizes == ([] if is_kept else [size])
    assert arena.size == (size if is_kept else 0)


@pytest.mark.parametrize(("known", "lacks"), [(None, True), (Measured(2.0, [2.0], {}), False)], ids=["no", "yes"])
def test_a_baseline_whose_time_is_known_from_an_earlier_run_is_made_beside_a_loaded_solution(arena, known, lacks):
    pool = FakePool(arena)
    kept = SimpleNamespace(find=lambda job, plan: known, keep=None)
    hello = SimpleNamespace(
        isolated=False, baseline_budget_s=2.0, timing=TimingSettings(), device="cpu", compiles_ahead=False
    )
    tools = SessionTools(arena, Readout(None), lambda: None)
    session = device_session.DeviceSession(hello, pool, tools, print, kept)
    definition = make_definition()
    solution = {"name": "s", "language": "python", "declared_style": None, "digest": "1", "directory": "/", "entry": ""}
    solution |= {"symbol": "", "kind": "python", "build_error": None}
    order = BlockOrder(
        definition=definition.model_dump(mode="json"),
        config=BenchmarkConfig().resolve_eval_config(definition).values(),
        solutions={"s": BlockSolution(**solution)},
        jobs=[BlockJob(index=0, solution="s", workload={"uuid": "w0", "axes": {}}, blob_root="/", seed=1)],
    )
    assert session.lacks_baseline(session.open_block(order), order.jobs[0]) is lacks


JOB = BlockJob(index=3, solution="s", workload={"uuid": "w0", "axes": {}, "inputs": {}}, blob_root="/", seed=1)


def open_empty_block(session):
    """Return a block of a session without jobs; JOB may be judged in it."""
    definition = make_definition()
    config = BenchmarkConfig().resolve_eval_config(definition).values()
    return session.open_block(
        BlockOrder(definition=definition.model_dump(mode="json"), config=config, solutions={}, jobs=[])
    )


@pytest.mark.parametrize("error", device_session.OUT_OF_MEMORY, ids=lambda kind: kind.__name__)
def test_want_of_memory_in_the_judge_is_a_fault_that_says_so_and_gives_the_arena_back(arena, monkeypatch, error):
    session = _open_session(arena, FakePool(arena))
    arena.reserve(1 << 20)
    shared = open_empty_block(session)
    monkeypatch.setattr(session, "_load", lambda *_arguments: (_ for _ in ()).throw(error("out of memory: 80 GB")))
    fault = session.run_job(shared, JOB)
    assert (fault.job, fault.retry, arena.size) == (3, False, 0)
    assert "workload w0: the judge needs more memory" in fault.message


def test_a_job_whose_context_makes_it_slower_is_judged_once_more_in_another(arena, monkeypatch):
    pool = FakePool(arena)
    pool.end_slow = pool.discard
    session = _open_session(arena, pool)
    session._hello = SimpleNamespace(isolated=False)
    shared = open_empty_block(session)
    tries = []
    told = SolutionFailure("RUNTIME_ERROR", "of the second", is_answer=True)

    def judge(job):
        tries.append(job.order.index)
        raise SlowContext if len(tries) == 1 else told

    monkeypatch.setattr(session, "_load_and_judge", judge)
    assert session.run_job(shared, JOB).outcome is told
    assert tries == [3, 3]
    assert pool.sizes == [0]


@pytest.mark.parametrize("rises", [False, True])
def test_a_second_kill_is_a_fault_if_the_kernel_ran_out_of_memory_meanwhile(arena, monkeypatch, rises):
    session = _open_session(arena, FakePool(arena))
    session._hello = SimpleNamespace(isolated=False)
    kills = itertools.count(step=int(rises))
    monkeypatch.setattr(device_session, "count_memory_kills", lambda: next(kills))
    killed = WorkerKilled("the call", WorkerExit(None, signal.SIGKILL, 0, over_memory=False))
    monkeypatch.setattr(session, "_load_and_judge", lambda _job: (_ for _ in ()).throw(killed))
    monkeypatch.setattr(session, "_recovers", lambda _failure: False)
    shared = open_empty_block(session)
    shared.solutions[JOB.solution] = SimpleNamespace(digest="1")
    answer = session.run_job(shared, JOB)
    assert isinstance(answer, JobFault) is rises
    assert ("memory ran out" if rises else "ended by signal 9 twice") in (
        answer.message if rises else answer.outcome.message
    )


def test_a_reference_that_a_slow_context_made_slower_is_timed_again_before_its_job(arena, monkeypatch):
    pool = FakePool(arena)
    session = _open_session(arena, pool)
    session._hello = SimpleNamespace(isolated=False)
    shared = open_empty_block(session)
    shared.kept[7] = "a baseline with its time"
    told = SolutionFailure("RUNTIME_ERROR", "of the second", is_answer=True)
    steps = []

    def judge(job):
        steps.append("judge")
        raise SlowReference if len(steps) == 1 else told

    session._sound = {"slow", "sound"}
    monkeypatch.setattr(session, "_load_and_judge", judge)
    monkeypatch.setattr(session, "end_workers", lambda: steps.append("end"))
    monkeypatch.setattr(session, "prepare", lambda block, order: steps.append(("prepare", dict(block.kept))))
    monkeypatch.setattr(session, "_timer", SimpleNamespace(forget_slow=lambda: {"slow"}))
    assert session.run_job(shared, JOB).outcome is told
    assert steps == ["judge", "end", ("prepare", {}), "judge"]
    assert session._sound == {"sound"}


def test_a_reference_that_fails_when_it_is_timed_again_is_the_fault_of_the_job(arena, monkeypatch):
    session = _open_session(arena, FakePool(arena))
    session._hello = SimpleNamespace(isolated=False)
    shared = open_empty_block(session)
    judged = []

    def judge(job):
        judged.append(job)
        raise SlowReference

    monkeypatch.setattr(session, "_load_and_judge", judge)
    monkeypatch.setattr(session, "end_workers", lambda: None)
    monkeypatch.setattr(session, "prepare", lambda *_: session._broken_workloads.update(w0="it divides by zero"))
    monkeypatch.setattr(session, "_timer", SimpleNamespace(forget_slow=set))
    assert session.run_job(shared, JOB).message == "it divides by zero"
    assert len(judged) == 1


class WaitingPool(FakePool):
    """A pool whose worker has not started."""

    def is_awaited(self, files):
        assert files.digest == "1"
        return True

    def work_while(self, steps, is_wanted):
        assert is_wanted()
        for step in steps:
            step()


@pytest.mark.parametrize("is_kept", [False, True])
def test_what_is_expected_is_made_while_the_worker_starts_and_kept_for_the_job(arena, monkeypatch, is_kept):
    session = _open_session(arena, WaitingPool(arena))
    session._hello = SimpleNamespace(profile_baseline=True)
    shared = open_empty_block(session)
    shared.solutions["s"] = SimpleNamespace(digest="1", directory="", language="python", sources={})
    job = shared.open_job(JOB.model_copy(update={"workload": {"uuid": "w0", "axes": {"n": 4}, "inputs": {}}}))
    baseline = Baseline([["x"]], [["y"]], 1.0, None)
    made, taken = [], []
    monkeypatch.setattr(session, "_make_baseline", lambda job, phase: made.append(phase) or baseline)
    steps = [lambda inputs, outputs, name=name: taken.append((name, inputs, outputs)) for name in "ab"]
    session._rehearsals = SimpleNamespace(find=lambda job, context: steps)
    if is_kept:
        shared.kept[JOB.index] = MadeBaseline(baseline)
    session._use_wait(job)
    assert made == ([] if is_kept else [EXPECTED_PHASE])
    assert shared.kept[JOB.index].baseline is baseline
    assert taken == [("a", ["x"], ["y"]), ("b", ["x"], ["y"])]
    shared.kept.clear()
    session._has_judged = True
    session._use_wait(job)
    assert shared.kept == {}


@pytest.mark.parametrize(
    ("isolated", "is_answer", "recovers", "is_kept"),
    [(False, True, True, True), (False, True, False, False), (False, False, True, False), (True, True, True, False)],
)
def test_a_worker_whose_solution_merely_raised_is_kept_for_the_next_job_of_it(
    arena, monkeypatch, isolated, is_answer, recovers, is_kept
):
    pool = FakePool(arena)
    pool.recovers = recovers
    session = _open_session(arena, pool)
    session._hello = SimpleNamespace(isolated=isolated)
    shared = open_empty_block(session)
    failure = SolutionFailure("RUNTIME_ERROR", "as told", is_answer=is_answer)
    monkeypatch.setattr(session, "_load", lambda *_arguments: (_ for _ in ()).throw(failure))
    result = session.run_job(shared, JOB)
    assert result.outcome is failure
    assert pool.sizes == ([] if is_kept else [0])


@pytest.mark.parametrize(
    ("isolated", "expected"), [(False, ["ref", "a", "b", "c"]), (True, ["ref", "a", "a", "b", "c"])]
)
def test_the_pool_is_told_of_the_reference_of_all_solutions_and_of_the_next_block(arena, isolated, expected):
    pool = FakePool(arena)
    session = _open_session(arena, pool)
    session._hello = SimpleNamespace(isolated=isolated, profile_baseline=True)
    definition = make_definition()
    block, ahead = (make_block(definition, names) for names in ("aab", "c"))
    shared = session.open_block(block)
    session.expect(shared, block.jobs, ahead)
    reference = reference_files(definition.digest()).digest
    assert ["ref" if one.digest == reference else one.digest for one in pool.expected] == expected
    session.expect(shared, block.jobs[2:])
    assert [one.digest for one in pool.expected][1:] == ["b"]


@pytest.mark.parametrize(("is_known", "expected"), [(False, ["b", "ref", "c"]), (True, ["b", "c"])])
def test_the_reference_of_the_next_block_wants_a_worker_where_its_time_is_not_known(
    arena, monkeypatch, is_known, expected
):
    pool = FakePool(arena)
    session = _open_session(arena, pool)
    session._hello = SimpleNamespace(isolated=False, profile_baseline=True)
    block = make_block(make_definition(), "ab")
    source = "raise AssertionError('the next block is not executed yet')\ndef run(x): return x"
    other = make_definition(name="another", reference=source)
    shared, ahead = session.open_block(block), make_block(other, "c")
    looked = []

    def recall(job):
        looked.append(job.block.definition.name)
        return is_known or job.block.definition.name != "another" or None

    monkeypatch.setattr(session._timer, "recall", recall)
    for _ in range(3):
        session.expect(shared, block.jobs[1:], ahead)
    reference = reference_files(other.digest()).digest
    assert ["ref" if one.digest == reference else one.digest for one in pool.expected] == expected
    assert looked.count("another") == 1


@pytest.mark.parametrize(
    ("isolated", "names", "expected"),
    [(False, "aab", "aab"), (False, "abb", "ab"), (True, "aab", "aab")],
    ids=["its next job lacks one", "another's job lacks one", "each job has a worker anyway"],
)
def test_a_solution_gets_two_workers_where_a_baseline_is_made_between_its_jobs(
    arena, monkeypatch, isolated, names, expected
):
    pool = FakePool(arena)
    session = _open_session(arena, pool)
    session._hello = SimpleNamespace(isolated=isolated, profile_baseline=True)
    block = make_block(make_definition(), names)
    monkeypatch.setattr(session, "lacks_baseline", lambda _shared, order: order.index > 0)
    session.expect(session.open_block(block), block.jobs)
    assert "".join(one.digest for one in pool.expected) == expected


def make_block(definition, names):
    """An order of one job for each name, on workloads of their own."""
    parts = {
        "language": "python",
        "declared_style": None,
        "directory": None,
        "entry": "",
        "symbol": "",
        "kind": "python",
    }
    solutions = {name: BlockSolution(name=name, digest=name, build_error=None, **parts) for name in names}
    jobs = [
        BlockJob(
            index=at, solution=name, workload=make_workload(f"w{at}").model_dump(mode="json"), blob_root="/", seed=1
        )
        for at, name in enumerate(names)
    ]
    config = BenchmarkConfig().resolve_eval_config(definition).values()
    return BlockOrder(definition=definition.model_dump(mode="json"), config=config, solutions=solutions, jobs=jobs)


@pytest.mark.parametrize(
    ("isolated", "following", "ahead", "is_let_go"),
    [
        (False, ["1"], [], False),
        (False, ["2", "1"], [], True),
        (False, [], ["1"], False),
        (False, [], ["2"], True),
        (False, [], [], False),
        (True, ["1"], [], True),
    ],
    ids=["same", "other", "same ahead", "other ahead", "nobody knows", "isolated"],
)
def test_on_a_gpu_a_worker_is_let_go_before_the_verdict_where_no_job_is_left_for_it(
    arena, isolated, following, ahead, is_let_go
):
    pool = FakePool(arena)
    gone = []
    pool.let_go = lambda: gone.append(True)
    pool.take_output = lambda: "said"
    session = _open_session(arena, pool)
    session._hello = SimpleNamespace(isolated=isolated, profile_baseline=False)
    session._device = torch.device("cuda")
    solutions = {digest: SimpleNamespace(digest=digest, build_error=None, directory=None) for digest in "12"}
    for solution in solutions.values():
        solution.sources, solution.language = {}, "triton"
    jobs = [SimpleNamespace(solution=digest) for digest in ["1", *following]]
    block = SimpleNamespace(solutions=solutions)
    later = SimpleNamespace(solutions=solutions, jobs=[SimpleNamespace(solution=one) for one in ahead])
    session.expect(block, jobs, later if ahead else None)
    session._let_go(SimpleNamespace(solution=solutions["1"]))
    assert (gone, session._printed_calling) == (([True], "said") if is_let_go else ([], ""))
