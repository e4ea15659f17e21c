"""A clock's steps around a call, the choice of a clock for a device, and the kernels around a call."""

import importlib

import pytest
import torch

from flashinfer_bench.timing import clocks
from flashinfer_bench.timing.clocks import Preamble, WallClock, make_clock
from flashinfer_bench.timing.flush import (
    DELAY_KERNEL,
    FLUSH_KERNEL,
)
from flashinfer_bench.timing.measurement import EVENTS_ASKED_FOR
from flashinfer_bench.timing.procedure import Procedure, take_trial
from tests.kit.fake_gpu import GAP_NS, LeavingCall, fake_cupti_clock, fake_event_clock

pytestmark = pytest.mark.cpu
USUAL = Procedure(warmup_runs=10, iterations=50, budget_s=10.0)
DELAY = Preamble(delay_ns=20_000)
BY_CUPTI = ["flush", "spin", "read", "call", "read"]
BY_EVENTS = ["flush", "spin", "record", "read", "call", "read", "record", "query", "read", "synchronize", "read"]
AWAY = ["put away"]


@pytest.fixture(params=["cupti", "cuda_events"])
def clock(request, gpu):
    """A clock on a fake GPU, switched on, whose log is empty."""
    made = fake_cupti_clock(gpu)[0] if request.param == "cupti" else fake_event_clock(gpu)
    with made:
        gpu.log.clear()
        yield made


@pytest.mark.parametrize("leaves", [False, True])
def test_only_the_call_lies_between_the_two_ends_of_a_sample(gpu, clock, leaves):
    """A call's results are put away behind its sample, and before the next call."""
    call = LeavingCall(gpu) if leaves else gpu.call()
    samples = clock.sample([call] * 3, [DELAY] * 3)
    step = (BY_CUPTI if clock.method == "cupti" else BY_EVENTS) + AWAY * leaves
    end = ["synchronize", "take"] if clock.method == "cupti" else []
    assert [one for one in gpu.log if one != "mark"] == [*step * 3, *end]
    assert max(sample.span_ns for sample in samples) < 20_000  # to put away takes 70


@pytest.mark.parametrize("name", [FLUSH_KERNEL, DELAY_KERNEL])
def test_no_kernel_hides_behind_a_name_of_ours(gpu, name):
    call = lambda: (gpu.kernel("small", 1_000), gpu.kernel(name, 50_000))  # noqa: E731
    trial = take_trial(lambda _: call, fake_cupti_clock(gpu)[0], USUAL, now=gpu.seconds)
    assert min(trial.spans_ns) > 50_000


def test_kernels_of_known_cost_are_measured_behind_one_that_warms_up(gpu):
    clock, recorder = fake_cupti_clock(gpu)
    gpu.moves_ns = iter([900, *[1_230] * 5, 1_190, *[1_220] * 6])
    found = clock.launch_gap_ns(), clock.least_span_ns(), clock.chain_gap_ns()
    assert (found, recorder.is_on) == ((1_000, 1_190, (12 * 1_000 + 11 * GAP_NS) // 12), False)
    for one in (fake_cupti_clock(gpu, refusal="a profiler is attached")[0], fake_event_clock(gpu)):
        assert (one.launch_gap_ns(), one.chain_gap_ns(), one.least_span_ns()) == (0, 0, 0)


@pytest.fixture
def on_a_gpu(monkeypatch, gpu):
    """Have clocks made for a fake GPU, and no recorder kept from one test to the next."""
    monkeypatch.setattr(clocks, "GpuQueue", lambda _device, *, l2_cache, image: gpu)
    clocks.shared_recorder.cache_clear()
    yield torch.device("cuda", 0)
    clocks.shared_recorder.cache_clear()


INSTALL = "CUPTI is not installed. Try 'pip install -U cupti-python'"
MISSING = ModuleNotFoundError("No module named 'cupti'", name="cupti")


@pytest.mark.parametrize(
    ("choice", "error", "method", "fallback"),
    [
        ("auto", None, "cupti", None),
        ("auto", MISSING, "cuda_events", INSTALL),
        ("cuda_events", None, "cuda_events", EVENTS_ASKED_FOR),
    ],
    ids=["cupti", "not installed", "on request"],
)
def test_which_clock_a_gpu_gets(on_a_gpu, cupti, monkeypatch, choice, error, method, fallback):
    if error:
        monkeypatch.setattr(importlib, "import_module", lambda _name: (_ for _ in ()).throw(error))
    clock = make_clock(on_a_gpu, clock=choice)
    assert (clock.method, clock.metadata().get("fallback")) == (method, fallback)
    if method == "cupti":
        assert clock._recorder is make_clock(on_a_gpu, l2_cache="warm")._recorder
        assert clock.fall_back("3 dropped").metadata()["fallback"] == "3 dropped"
    assert make_clock(torch.device("cpu")).method == "wall"


def test_a_wall_clock_counts_the_copy_of_a_result_with_another_layout_alone(gpu, monkeypatch):
    monkeypatch.setattr(clocks, "perf_counter_ns", lambda: 1000 * len(gpu.log))
    calls = [LeavingCall(gpu), LeavingCall(gpu, lies_otherwise=True), gpu.call()]
    with WallClock() as clock:
        samples = clock.sample(calls, [Preamble()] * 3)
    assert [sample.span_ns for sample in samples] == [1000, 2000, 1000]  # a microsecond for each step
