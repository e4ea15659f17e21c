"""What a session does for a job and ahead of it: workers, baselines, shared memory, faults, second tries."""

import itertools
import signal
from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.evaluators.evaluator import Rejected
from flashinfer_bench.bench.runner.protocol import BlockJob, BlockOrder, BlockSolution, JobFault
from flashinfer_bench.bench.runner.readout import Readout
from flashinfer_bench.bench.runner.session import device_session
from flashinfer_bench.bench.runner.session.device_session import DeviceSession, mark_worker
from flashinfer_bench.bench.runner.workers.arena import SharedArena
from flashinfer_bench.bench.runner.workers.kernel import WorkerKilled
from flashinfer_bench.bench.runner.workers.kernel_task import SessionTools
from flashinfer_bench.bench.runner.workers.pool import SlowContext, reference_files
from flashinfer_bench.bench.runner.workers.process import WorkerExit
from flashinfer_bench.data import EvaluationStatus
from flashinfer_bench.errors import DefinitionFault, SolutionFailure
from flashinfer_bench.timing.measurement import Measured
from flashinfer_bench.timing.settings import TimingSettings
from tests.kit import make_definition, make_workload

pytestmark = pytest.mark.cpu


class FakePool:
    """Notes what is asked of it, with the size of the arena."""

    def __init__(self, arena):
        self.arena, self.log, self.recovers, self.precompiling = arena, [], True, None
        self.has_readers = False
        self.best_ns = None

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_: self.log.append((name, self.arena.size))

    def asked(self, name):
        return [size for what, size in self.log if what == name]

    def expect(self, solutions, *, adopts):
        assert adopts is None
        self.expected = "".join("*" if len(one.digest) > 1 else one.digest for one in solutions)

    def may_precompile(self):
        return False

    def excess_ns(self, chain_gap_ns):
        is_slow = self.best_ns is not None and chain_gap_ns > 1.07 * self.best_ns
        return chain_gap_ns - self.best_ns if is_slow else 0

    def take_output(self):
        return ""

    def recover(self):
        return self.recovers


@pytest.fixture
def open_session():
    """Return a function that gives a session; its settings are given as keywords."""
    with SharedArena(torch.device("cpu")) as arena:

        def opened(**hello):
            usual = {"compiles_ahead": False, "isolated": False, "profile_baseline": True, "device": "cpu"}
            usual |= {"expects_new": False}
            usual |= {"baseline_budget_s": 2.0, "timing": TimingSettings(), "timeout_seconds": 9.0}
            tools = SessionTools(arena, Readout(None), lambda: None)
            session = DeviceSession(SimpleNamespace(**usual | hello), FakePool(arena), tools, lambda _phase: None)
            session.pool, session.arena = session._pool, arena
            return session

        yield opened


def make_order(names="s", **changes):
    """Return a block of one job for each name, on workloads of their own."""
    definition = make_definition(**changes)
    parts = {"language": "python", "declared_style": None, "directory": None, "entry": "", "symbol": ""}
    parts |= {"kind": "python", "build_error": None}
    jobs = [
        BlockJob(
            index=at, solution=name, workload=make_workload(f"w{at}").model_dump(mode="json"), blob_root="/", seed=1
        )
        for at, name in enumerate(names)
    ]
    return BlockOrder(
        definition=definition.model_dump(mode="json"),
        config=BenchmarkConfig().resolve_eval_config(definition).values(),
        solutions={name: BlockSolution(name=name, digest=name, **parts) for name in names},
        jobs=jobs,
    )


def run(session, judge, names="s"):
    """Run the first job of a block; `judge` stands for all that is done in workers."""
    block = session.open_block(make_order(names))
    session._judge = judge
    return session.run_job(block, block.order.jobs[0])


def raising(*errors):
    """Return a function that raises these one after the other, and the last one from then on."""
    left = list(errors)

    def judge(*_):
        raise left.pop(0) if len(left) > 1 else left[0]

    return judge


@pytest.mark.parametrize("other", [True, False])
def test_a_large_arena_is_given_back_before_a_block_of_another_definition_after_its_worker(
    open_session, monkeypatch, other
):
    session, size = open_session(), (1 << 30) + (2 << 20)
    monkeypatch.setattr(device_session, "total_bytes", lambda _device: 1 << 40)
    session.open_block(make_order())
    session.arena.reserve(size)
    session.open_block(make_order(name="other") if other else make_order())
    assert session.pool.asked("discard") == ([size] if other else [])
    assert session.arena.size == (0 if other else size)


@pytest.mark.parametrize(
    ("isolated", "names", "lacking", "ahead", "expected"),
    [
        (False, "aab", {0}, "c", "*abc"),
        (True, "aab", {0}, "c", "*aabc"),
        (False, "aab", {1}, "", "aab"),  # its worker ends before that baseline is made
        (False, "abb", {1}, "", "ab"),
        (False, "ab", {"other"}, "c", "ab*c"),
    ],
)
def test_the_pool_is_told_of_references_and_solutions_of_this_block_and_the_next(
    open_session, isolated, names, lacking, ahead, expected
):
    session = open_session(isolated=isolated)
    block = session.open_block(make_order(names))
    source = "raise AssertionError('the next block is not executed yet')\ndef run(x): return x"
    later = make_order(ahead, name="other", reference=source) if ahead else None
    session.lacks_baseline = lambda shared, order: (
        order.index in lacking if shared is block else shared.definition.name in lacking
    )
    session.expect(block, block.order.jobs, later)
    assert session.pool.expected == expected
    assert len(reference_files(block.digest).digest) > 1


@pytest.mark.parametrize(("known", "lacks"), [(None, True), (Measured(2.0, [2.0], {}), False)], ids=["no", "yes"])
def test_a_baseline_whose_time_is_known_is_made_beside_a_loaded_solution(open_session, known, lacks):
    session = open_session()
    session._timer.kept = SimpleNamespace(find=lambda job, plan: known)
    block = session.open_block(make_order())
    (job,) = block.order.jobs
    assert session.lacks_baseline(block, job) is lacks
    block.evaluator = SimpleNamespace(build_baseline=lambda *_, **__: SimpleNamespace(inputs=[], outputs=[]))
    session.prepare(block, job)
    assert not session.lacks_baseline(block, job)
    assert block.open_job(job).baseline is not None


SLOW = Measured(0.1, [0.1], {"chain_gap_ns": 1_954, "operations": 40})


@pytest.mark.parametrize(
    ("record", "is_slow"),
    [({}, True), ({"operations": 2}, False), ({"chain_gap_ns": 1_834}, False)],
    ids=["slow", "few operations", "fast"],
)
def test_a_reference_whose_context_turns_out_to_be_slow_is_timed_again_once(open_session, record, is_slow):
    session = open_session()
    block = session.open_block(make_order())
    (order,) = block.order.jobs
    job = block.open_job(order)
    taken = Measured(0.1, [0.1], {**SLOW.record, **record})
    session._timer._take = lambda *_: taken
    session._timer.measure(job, [], is_alone=False)
    job.baseline = "made"
    assert not session.lacks_baseline(block, order)  # nobody has seen a better one
    session.pool.best_ns = 1_770
    assert session.lacks_baseline(block, order) is is_slow
    assert (job.baseline is None) is is_slow
    session._timer.measure(job, [], is_alone=False)
    assert not session.lacks_baseline(block, order)  # no faster one was to be had


def test_a_baseline_that_is_made_again_within_a_job_is_made_without_workers_and_its_fault_is_the_jobs(open_session):
    session = open_session()
    block = session.open_block(make_order())
    made = SimpleNamespace(inputs=[], outputs=[])
    left = [made, DefinitionFault("it divides by zero"), DefinitionFault("it divides by zero")]

    def build(*_, **__):
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    block.evaluator = SimpleNamespace(build_baseline=build, __name__="Mine")
    session._load = lambda *_: None
    session._timer.forget_slow = lambda _key: True
    fault = run_again(session, block)
    assert (fault.message, left) == ("it divides by zero", [])
    assert [name for name, _ in session.pool.log] == ["discard", "finish_ending"]


def run_again(session, block):
    return session.run_job(block, block.order.jobs[0])


@pytest.mark.parametrize("error", device_session.OUT_OF_MEMORY, ids=lambda kind: kind.__name__)
def test_want_of_memory_in_the_judge_is_a_fault_that_says_so_and_gives_the_arena_back(open_session, error):
    session = open_session()
    session.arena.reserve(1 << 20)
    fault = run(session, raising(error("out of memory: 80 GB")))
    assert (fault.job, fault.retry, session.arena.size) == (0, False, 0)
    assert "workload w0: the judge needs more memory" in fault.message
    assert {"discard", "end_reference"} <= {name for name, _ in session.pool.log}


def killed(number=signal.SIGKILL, **how):
    return WorkerKilled("the call", WorkerExit(None, number, 0, over_memory=False, **how))


TOLD = SolutionFailure("RUNTIME_ERROR", "as told", is_answer=True)


@pytest.mark.parametrize(
    ("errors", "ends", "said"),
    [
        ([killed(), TOLD], "discard", "as told"),
        ([SlowContext(), TOLD], "end_slow", "as told"),
        ([killed(), killed()], "discard", "ended by signal 9 twice"),
        ([killed(), killed(signal.SIGTERM)], "discard", "ended by signals"),
    ],
)
def test_a_job_is_judged_once_more_in_another_worker(open_session, errors, ends, said):
    session = open_session()
    result = run(session, raising(*errors))
    assert said in result.outcome.message
    assert session.pool.log[0][0] == ends


@pytest.mark.parametrize(
    ("how", "kills", "said"),
    [({}, 1, "memory ran out"), ({"over_machine": True}, 0, "find out which, or raise worker_memory_gb")],
)
def test_a_second_end_is_a_fault_if_the_machine_may_be_to_blame(open_session, monkeypatch, how, kills, said):
    counted = itertools.count(step=kills)
    monkeypatch.setattr(device_session, "count_memory_kills", lambda: next(counted))
    answer = run(open_session(), raising(killed(**how)))
    assert isinstance(answer, JobFault)
    assert said in answer.message


@pytest.mark.parametrize(
    ("isolated", "is_answer", "recovers", "is_kept"),
    [(False, True, True, True), (False, True, False, False), (False, False, True, False), (True, True, True, False)],
)
def test_a_worker_whose_solution_merely_raised_is_kept_for_its_next_job(
    open_session, isolated, is_answer, recovers, is_kept
):
    session = open_session(isolated=isolated)
    session.pool.recovers = recovers
    failure = SolutionFailure("RUNTIME_ERROR", "as told", is_answer=is_answer)
    assert run(session, raising(failure)).outcome is failure
    assert len(session.pool.asked("discard")) == (not is_kept)


def test_a_failure_of_the_machine_is_a_fault_and_a_solution_that_hung_is_left_out_later(open_session):
    session = open_session()
    session._machine.why = lambda *_: "no compiler here"
    assert run(session, raising(TOLD)).message == "no compiler here"
    session._machine.why = lambda *_: None
    late = SolutionFailure("TIMEOUT", "still running", ran_out="first call")
    result = run(session, raising(late))
    assert result.ran_out == "call"  # nothing compiles at its first call
    left_out = run_again(session, session._block)
    assert (left_out.is_left_out, left_out.retry) == (True, False)


def test_a_winner_is_confirmed_in_a_worker_that_serves_no_other_jobs(open_session):
    """One worker for all that the solution won, and another one for what is judged at standard assurance after it."""
    session = open_session()
    session._judge = lambda _job: Rejected(EvaluationStatus.INCORRECT_SHAPE, "")
    block, discards = session.open_block(make_order("sssst")), []
    for order, level in zip(block.order.jobs, (None, "full", "full", None, "full"), strict=True):
        session.run_job(block, order.model_copy(update={"assurance": level}))
        discards.append(len(session.pool.asked("discard")))
    assert discards == [0, 1, 1, 2, 3]


def test_a_solution_that_was_not_built_or_loaded_fails_without_a_worker(open_session):
    session = open_session(profile_baseline=False)
    order = make_order("abc")
    order.solutions["a"] = order.solutions["a"].model_copy(update={"build_error": "no such type"})
    block = session.open_block(order)
    block.broken_loads["b"] = failure = SolutionFailure("COMPILE_ERROR", "no module")
    session.expect(block, order.jobs)
    assert (session.pool.expected, session.lacks_baseline(block, order.jobs[1])) == ("c", False)
    found = [session.run_job(block, job).outcome for job in order.jobs[:2]]
    assert (found[0].message, found[1]) == ("no such type", failure)
    assert {name for name, _ in session.pool.log} == {"discard"}


@pytest.mark.parametrize(
    ("isolated", "following", "ahead", "is_let_go"),
    [
        (False, "1", "", False),
        (False, "21", "", True),
        (False, "", "2", True),
        (False, "", "", False),
        (True, "1", "", True),
    ],
    ids=["same", "other", "other ahead", "nobody knows", "isolated"],
)
def test_on_a_gpu_a_worker_is_let_go_before_the_verdict_if_no_job_is_left_for_it(
    open_session, isolated, following, ahead, is_let_go
):
    session = open_session(isolated=isolated, profile_baseline=False)
    block = session.open_block(make_order("1" + following))
    session.expect(block, block.order.jobs, make_order(ahead) if ahead else None)
    session.pool.take_output, session._is_gpu = (lambda: "said"), True
    session._serves = mark_worker(block.solutions[block.order.jobs[0].solution], block.order.jobs[0])
    session._let_go()
    assert (len(session.pool.asked("discard")), session._printed[1]) == (is_let_go, "said" * is_let_go)


@pytest.mark.parametrize(("has_readers", "free", "is_aside"), [(True, 0.8, 1), (False, 0.8, 0), (True, 0.7, 0)])
def test_a_worker_gets_other_memory_while_the_one_before_it_ends_if_there_is_room_for_both(
    open_session, monkeypatch, has_readers, free, is_aside
):
    session, done = open_session(), []
    monkeypatch.setattr(device_session, "total_bytes", lambda _device: 100)
    monkeypatch.setattr(device_session, "recently_free_bytes", lambda _device: 100 * free)
    session.pool.has_readers = has_readers
    steps = {name: lambda name=name: done.append(name) for name in ("step_aside", "come_back", "renew")}
    session._arena = SimpleNamespace(may_step_aside=lambda _size: True, **steps)
    for worker in ("first", "first", None):
        session._give_arena(worker, 8)
    anew = ["come_back", "renew"]
    assert done == [*(["step_aside"] if is_aside else anew), *anew]
