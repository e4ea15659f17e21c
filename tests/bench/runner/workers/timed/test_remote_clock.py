"""A worker's clock from the session's side: requests, content before each, a check after each, and failures."""

from types import SimpleNamespace

import pytest

from flashinfer_bench.bench.runner.workers.timed import sampling as remote_clock
from flashinfer_bench.bench.runner.workers.timed.sampling import RemoteClock
from flashinfer_bench.errors import SolutionFailure
from flashinfer_bench.timing.clocks import ClockLost, Preamble
from flashinfer_bench.timing.measurement import Sample
from flashinfer_bench.worker.protocol import answer_readings
from tests.kit.fake_gpu import sample_all
from tests.kit.trials import CUPTI, WALL, ScriptedWorker, make_trial

pytestmark = pytest.mark.cpu
TOO_LONG = answer_readings([Sample(span_ns=1_900, enqueue_ns=1)])


@pytest.fixture
def open_clock(arena, monkeypatch):
    """Return a trial, its scripted worker, and the clock of both; time passes as the script says."""

    def opened(clock=WALL, *, answers=None, lost=None, call_ns=1_000, setup_ns=0, **traits):
        trial = make_trial(arena, **{"device_type": "cpu" if clock is WALL else "cuda", **traits})
        costs = {"call_ns": call_ns, "setup_ns": setup_ns, "request_ns": 800}
        worker = ScriptedWorker(trial, clock=clock, lost=lost, answers=answers or {}, **costs)
        monkeypatch.setattr(remote_clock, "time", SimpleNamespace(monotonic=lambda: worker.now / 1e9))
        return trial, worker, RemoteClock(worker, clock, trial)

    return opened


def sample(trial, clock, count=1):
    with clock:
        return sample_all(clock, [trial.supply(index) for index in range(count)], Preamble())


@pytest.mark.parametrize(("setup_ns", "parts"), [(0, ["run"]), (300, ["setup", "run"])])
def test_a_request_holds_at_most_one_call_for_each_place_and_each_has_its_share_of_the_time(
    open_clock, setup_ns, parts
):
    """Setup comes before the calls, and its readings stand apart."""
    trial, worker, clock = open_clock(has_setup=setup_ns > 0, setup_ns=setup_ns)
    samples = sample(trial, clock, 11)
    made = [(one["part"], one["indices"]) for one in worker.fields_of("calls")]
    assert made == [(part, indices) for indices in ([*range(8)], [0, 1, 2]) for part in parts]
    assert [one.span_ns for one in samples] == [1_000] * 11
    assert [one.span_ns for one in trial.setup_samples] == [300] * 11 * (setup_ns > 0)
    costs_ns = [1_000 + setup_ns + 800 * len(parts) / calls for calls in (8, 3)]
    assert trial.costs_ns == pytest.approx([costs_ns[0]] * 8 + [costs_ns[1]] * 3)


@pytest.mark.parametrize(
    ("method", "answer", "failure", "said", "methods"),
    [
        ("calls", {"readings": None, "lost": "3 dropped"}, ClockLost, "3 dropped", ["calls", "stop"]),
        ("calls", {"readings": TOO_LONG}, SolutionFailure, "more than the time that passed", ["calls"]),
        ("start", {"clock": CUPTI.model_dump()}, SolutionFailure, "the method 'cupti'", []),
    ],
)
def test_a_clock_that_is_lost_or_refuses_is_switched_off_and_a_worker_that_lies_is_asked_nothing_more(
    open_clock, method, answer, failure, said, methods
):
    trial, worker, clock = open_clock(answers={method: answer})
    with pytest.raises(failure, match=said):
        sample(trial, clock)
    assert worker.methods() == ["start", *methods]


def test_the_operations_of_the_samples_are_named_when_the_clock_is_switched_off(open_clock):
    trial, _, clock = open_clock(CUPTI, answers={"stop": {"launches": {"0123": {"gemm": 1}}}})
    sample(trial, clock)
    assert trial.launches == {"0123": {"gemm": 1}}
