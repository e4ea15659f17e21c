"""A job in a session: its fault, its second try, and its worker."""

import itertools
import signal
from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.evaluators.evaluator import Accepted, Baseline, Rejected
from flashinfer_bench.bench.runner.protocol import JobFault, RequestedJob, RequestedSolution, SessionRequest
from flashinfer_bench.bench.runner.run_metadata import RunMetadata
from flashinfer_bench.bench.runner.session import device_session
from flashinfer_bench.bench.runner.session.device_session import DeviceSession
from flashinfer_bench.bench.runner.session.outcome import Passed
from flashinfer_bench.bench.runner.workers.arena import SharedArena
from flashinfer_bench.bench.runner.workers.kernel import WorkerKilled
from flashinfer_bench.bench.runner.workers.kernel_task import SessionTools
from flashinfer_bench.bench.runner.workers.pool import SlowContext
from flashinfer_bench.bench.runner.workers.worker_handle import WorkerExit
from flashinfer_bench.data import Correctness, EvaluationStatus, Performance
from flashinfer_bench.errors import DefinitionFault, SolutionFailure
from flashinfer_bench.timing.measurement import Measured
from flashinfer_bench.timing.settings import TimingSettings
from tests.kit import make_definition, make_workload

pytestmark = pytest.mark.cpu


class FakePool:
    """Has no workers, and records its calls."""

    precompiling = None

    def __init__(self):
        self.log = []

    def __getattr__(self, name):
        return lambda *_, **__: self.log.append(name)

    def may_precompile(self):
        return False

    def take_output(self):
        return ""

    def recover(self):
        return True


@pytest.fixture
def open_session():
    """Return a function that opens a session without workers; `judge` replaces their work."""
    with SharedArena(torch.device("cpu")) as arena:

        def opened(judge=None, **session_config):
            usual = {"compiles_ahead": False, "isolated": False, "profile_baseline": True, "device": "cpu"}
            usual |= {
                "baseline_budget_s": 2.0,
                "timing": TimingSettings(),
                "timeout_seconds": 9.0,
                "expects_new": False,
                "compile_mode": "",
            }
            tools = SessionTools(arena, RunMetadata(None), FakePool())
            session = DeviceSession(SimpleNamespace(**usual | session_config), tools, lambda _phase: None)
            session.log, session.arena = session._pool.log, arena
            if judge is not None:
                session._judge = judge
            return session

        yield opened


def make_request(names="s", **workload):
    """Return a request of one job for each name, on workloads of their own; `workload` has more fields of these."""
    definition = make_definition()
    parts = {"language": "python", "declared_style": None, "directory": None, "entry": "", "symbol": ""}
    solutions = {
        one: RequestedSolution(name=one, digest=one, kind="python", build_error=None, **parts) for one in names
    }
    workloads = [make_workload(f"w{at}", **workload).model_dump(mode="json") for at in range(len(names))]
    return SessionRequest(
        definition=definition.model_dump(mode="json"),
        config=BenchmarkConfig().resolve_eval_config(definition).values(),
        solutions=solutions,
        jobs=[
            RequestedJob(index=at, solution=name, workload=workload, blob_root="/", seed=1)
            for at, (name, workload) in enumerate(zip(names, workloads, strict=True))
        ],
    )


def run(session, request=None):
    """Run the first job of a request."""
    request = request or session.open_request(make_request())
    return session.run_job(request, request.sent.jobs[0])


def raising(*errors):
    """Return a function that raises these errors in order, and then repeats the last error."""
    left = itertools.chain(errors, itertools.repeat(errors[-1]))

    def judge(*_, **__):
        raise next(left)

    return judge


def killed(number=signal.SIGKILL, **how):
    return WorkerKilled("the call", WorkerExit(-number, **how))


REPORTED = SolutionFailure("RUNTIME_ERROR", "as told", is_answer=True)


@pytest.mark.parametrize("error", device_session.OUT_OF_MEMORY, ids=lambda kind: kind.__name__)
def test_want_of_memory_in_the_judge_is_a_fault_that_says_so_and_gives_the_arena_back(open_session, error):
    session = open_session(raising(error("out of memory: 80 GB")))
    session.arena.reserve(1 << 20)
    fault = run(session)
    assert (fault.job, fault.retry, session.arena.size) == (0, False, 0)
    assert "workload w0: the judge needs more memory" in fault.message
    assert {"discard", "end_reference"} <= {*session.log}


@pytest.mark.parametrize(
    ("errors", "ends", "said"),
    [
        ([killed(), REPORTED], "discard", "as told"),
        ([SlowContext(), REPORTED], "end_slow", "as told"),
        ([torch.OutOfMemoryError("80 GB"), REPORTED], "discard", "as told"),  # all its memory is free then
        ([killed(), killed()], "discard", "ended by signal 9 twice"),
        ([killed(), killed(signal.SIGTERM)], "discard", "ended by signals"),
    ],
)
def test_a_job_is_judged_once_more_in_another_worker(open_session, errors, ends, said):
    session = open_session(raising(*errors))
    assert said in run(session).outcome.message
    assert session.log[0] == ends


@pytest.mark.parametrize(
    ("how", "kills", "said"),
    [({}, 1, "memory ran out"), ({"over_machine": True}, 0, "find out which, or raise worker_memory_gb")],
)
def test_a_second_end_is_a_fault_if_the_machine_may_be_to_blame(open_session, monkeypatch, how, kills, said):
    counted = itertools.count(step=kills)
    monkeypatch.setattr(device_session, "count_memory_kills", lambda: next(counted))
    fault = run(open_session(raising(killed(**how))))
    assert isinstance(fault, JobFault)
    assert said in fault.message


def test_a_failure_of_the_machine_is_a_fault_and_a_solution_that_hung_is_left_out_later(open_session):
    session = open_session(raising(REPORTED, SolutionFailure("TIMEOUT", "still running", ran_out="first call")))
    session._machine.why = lambda *_: "no compiler here"
    assert run(session).message == "no compiler here"
    session._machine.why = lambda *_: None
    request = session.open_request(make_request())
    assert run(session, request).ran_out == "call"  # nothing compiles at its first call
    left_out = run(session, request)
    assert (left_out.is_left_out, left_out.retry) == (True, False)


def test_a_winner_is_confirmed_in_a_worker_that_serves_no_other_jobs(open_session):
    """One worker serves all confirmations, and another worker the later jobs at standard assurance."""
    session = open_session(lambda _job: Rejected(EvaluationStatus.INCORRECT_SHAPE, ""))
    request, discards = session.open_request(make_request("sssst")), []
    for requested, level in zip(request.sent.jobs, (None, "full", "full", None, "full"), strict=True):
        session.run_job(request, requested.model_copy(update={"assurance": level}))
        discards.append(session.log.count("discard"))
    assert discards == [0, 1, 1, 2, 3]


@pytest.mark.parametrize(
    "error", [DefinitionFault("broken: C++\n..."), torch.OutOfMemoryError("broken: C++")], ids=type
)
def test_a_compiled_reference_that_cannot_be_timed_is_a_reason_and_no_fault(open_session, error):
    session = open_session(compile_mode="default")
    request = session.open_request(make_request())
    (requested,) = request.sent.jobs
    session._timer._take, session._compiled._take = lambda *_: Measured(0.1, [0.1], {}), raising(error)
    for _ in range(2):
        assert session.lacks_baseline(request, requested) is not bool(session._compiled_records)
        session.prepare(request, requested)
    assert [*session._compiled_records.values()] == [{"mode": "default", "reason": "broken: C++"}]
    assert request.find_fault(request.open_job(requested)) is None
    session._forget_baseline(request.open_job(requested.model_copy(update={"index": 1})))  # of the same workload
    assert (session._compiled_records, request.open_job(requested).baseline is None) == ({}, False)
    session._load = raising(REPORTED)
    run(session, request)
    assert [*session._compiled_records.values()] == [{"mode": "default", "reason": "broken: C++"}]


def test_an_untimed_workload_needs_no_time_of_its_reference(open_session):
    session = open_session(compile_mode="default")
    request = session.open_request(make_request(timed=False))
    (requested,) = request.sent.jobs
    session._timer._take = session._compiled._take = raising(AssertionError("it was timed"))
    assert not session.lacks_baseline(request, requested)
    session.prepare(request, requested)
    assert request.open_job(requested).baseline.mean_latency_ms is None


@pytest.mark.parametrize(
    ("record", "best_ns", "is_slow"),
    [
        ({"chain_gap_ns": 1_954, "operations": 40}, 0, False),  # nobody has seen a better one
        ({"chain_gap_ns": 1_954, "operations": 40}, 1_770, True),
        ({"chain_gap_ns": 1_954, "operations": 2}, 1_770, False),
    ],
)
def test_a_reference_whose_context_turns_out_to_be_slow_is_timed_again_once(open_session, record, best_ns, is_slow):
    session = open_session()
    request = session.open_request(make_request())
    (requested,) = request.sent.jobs
    job = request.open_job(requested)
    session._timer._take = lambda *_: Measured(0.1, [0.1], record)
    session._pool.excess_ns = lambda _: 0
    for may_be_again in (is_slow, False):
        session._timer.measure(job, [], is_alone=False)
        job.baseline = "made"
        session._pool.excess_ns = lambda gap_ns: gap_ns - best_ns if best_ns else 0
        assert session.lacks_baseline(request, requested) is may_be_again
        assert (job.baseline is None) is may_be_again


@pytest.mark.parametrize(("inputs", "timed", "checked"), [("aaa", 1, []), ("abab", 1, ["b"]), ("abc", 1, ["b", "c"])])
def test_inputs_that_no_timed_call_had_are_checked_and_those_that_trials_share_once(
    open_session, monkeypatch, inputs, timed, checked
):
    session, of, seen = open_session(library_calls="allow"), {name: [name] for name in inputs}, []
    job = session.open_request(make_request()).open_job(make_request().jobs[0])
    job.baseline = Baseline([of[name] for name in inputs], [[torch.zeros(1)] for _ in inputs], None, None)
    kernel = SimpleNamespace(is_meaningful=True, reads=[[]] * timed, stress_calls=[], planned_stress=list)
    kernel.task, kernel.worker = SimpleNamespace(outputs=[]), SimpleNamespace(pause=lambda: None)
    monkeypatch.setattr(job.request.evaluator, "eval_performance", lambda *_, **__: Performance())

    def check(_job, _kernel, expected, trials):
        seen.append([name for (name,) in expected.inputs[trials]])
        return Accepted(Correctness())

    for name, replaced in {"_load": lambda *_: kernel, "_check": check, "_find_compiled": lambda *_: None}.items():
        monkeypatch.setattr(session, name, replaced)
    assert isinstance(session._judge(job), Passed)
    assert seen == [["a"], *filter(None, [checked])]


def test_later_solutions_are_compiled_ahead_from_the_first_import_on(open_session, monkeypatch):
    session, seen = open_session(), []
    job = session.open_request(make_request()).open_job(make_request().jobs[0])
    monkeypatch.setattr(device_session, "load_solution", lambda *_: None)
    session._precompiler = SimpleNamespace(finish=lambda *_: False, resume=lambda: seen.append("resume"))
    session._import(job, None)
    assert seen == ["resume"]
