"""`bench_gpu_time` on a fake GPU: each request is met, or a warning describes the deviation."""

import json
import warnings
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from flashinfer_bench.testing import GpuTime, bench_gpu_time, gpu_time
from flashinfer_bench.testing.device import find_device
from flashinfer_bench.timing.measurement import EVENTS_ASKED_FOR
from tests.kit.fake_gpu import FakeGpu, fake_cupti_clock

pytestmark = pytest.mark.cpu


class FakeDevice:
    """A GPU without a driver."""

    launch_gap_ns, refusal, active = 1_000, "", nullcontext

    def __init__(self):
        self.gpu = FakeGpu()

    def now(self):
        return self.gpu.seconds()

    def clock(self, l2_cache):
        self.gpu.l2_cache = l2_cache
        return fake_cupti_clock(self.gpu, refusal=self.refusal)[0]

    def state(self):
        self.gpu.log.append("state")


@pytest.fixture
def gpu(monkeypatch):
    device = FakeDevice()

    def find(tensors, clock):
        device.refusal = device.refusal if clock == "auto" else EVENTS_ASKED_FOR
        return device

    monkeypatch.setattr(gpu_time, "find_device", find)
    return device


def timed_with_notes(function, *args, **settings):
    """Return the result of a call of bench_gpu_time, and its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        timed = bench_gpu_time(function, args, **settings)
    assert {warning.filename for warning in caught} <= {__file__}
    return timed, [str(warning.message) for warning in caught]


def test_the_result_unpacks_and_carries_the_whole_measurement(gpu):
    timed, notes = timed_with_notes(lambda: gpu.gpu.kernel(length_ns=7_000))
    median_ms, std_ms = timed
    assert [median_ms, std_ms] == pytest.approx([0.008, 0])  # the gap of 1 us and the kernel's 7
    assert (len(timed.times_ms), timed.method, notes) == (30, "cupti", [])
    record = json.loads(json.dumps(timed.measurement))
    assert (record["cache_state"], record["launch_gap_ns"]) == ("cold", 1_000)
    assert gpu.gpu.log[0] == gpu.gpu.log[-1] == "state"


SPELLINGS = [
    {"num_iters": 7, "args": (1,), "kwargs": {"step": 2}},
    {"num_iters": 7, "repeat_iters": 7, "repeat_time_ms": 99.0, "args": [1], "input_kwargs": {"step": 2}},
]


@pytest.mark.parametrize("spelling", SPELLINGS, ids=["guide", "both"])
def test_both_spellings_mean_the_same(gpu, spelling):
    calls = []
    timed = bench_gpu_time(lambda start, step: gpu.gpu.kernel() or calls.append((start, step)), **spelling)
    assert (len(timed.times_ms), set(calls)) == (7, {(1, 2)})


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"num_iters": 3, "repeat_iters": 4}, ValueError, "num_iters=3 and repeat_iters=4"),
        ({"time_budget_s": float("nan")}, ValueError, "time_budget_s must be a number"),
        ({"args": (1,), "input_args": (1,)}, ValueError, "args and input_args"),
        ({"kwargs": (1,)}, TypeError, "kwargs must be a mapping"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(given, error, words):
    with pytest.raises(error, match=words):
        bench_gpu_time(lambda *_, **__: None, **given)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_on_a_cpu_it_says_that_the_wall_clock_was_used():
    with pytest.warns(UserWarning, match="no GPU: timed by the wall clock"):
        timed = bench_gpu_time(torch.add, (torch.ones(4), 1), repeat_time_ms=float("inf"))
    assert (timed.method, len(timed.times_ms)) == ("wall", 10_000)


def test_parameters_without_effect_are_named_if_they_are_given(gpu):
    given = {"rotate_buffers": True, "num_iters_within_graph": 10, "l2_flush_size_mb": 256, "aggregate_op": max}
    _, (note,) = timed_with_notes(gpu.gpu.kernel, **given, sleep_after_run=True)
    assert note.startswith(f"{', '.join(given)}, sleep_after_run has no effect: each sample is one call, the whole L2")


FLUSHED = [({}, True), ({"cold_l2_cache": False}, False), ({"l2_flush": False}, False)]


@pytest.mark.parametrize(("given", "is_cold"), [*FLUSHED, ({"l2_flush": False, "rotate_buffers": True}, True)], ids=str)
@pytest.mark.filterwarnings("ignore:rotate_buffers")
def test_the_l2_is_flushed_unless_either_parameter_says_no(gpu, given, is_cold):
    timed = bench_gpu_time(lambda: gpu.gpu.kernel(), **given)
    assert (timed.measurement["cache_state"] == "cold") == ("flush" in gpu.gpu.log) == is_cold


def test_a_duration_is_filled_with_calls(gpu):
    calls = [gpu.gpu.call(length_ns=100_000, host_ns=60_000_000 * (place in (0, 20))) for place in range(500)]
    timed = bench_gpu_time(lambda: calls.pop(0)(), dry_run_time_ms=2.0, repeat_time_ms=10.0)
    assert 25 < len(timed.times_ms) < 44  # a flush of 40 us, a rest of 100 and a call of 101 fill 10 ms 41 times
    assert timed.measurement["calls"] - len(timed.times_ms) > 5


@pytest.mark.parametrize(
    ("traits", "words"),
    [
        ({"operations": 3}, []),
        ({"operations": 2, "waits": True}, ["use_cuda_graph: the call was launched on the stream: the call waits for"]),
        ({"operations": 0}, ["fn launched nothing on the GPU"]),
    ],
)
def test_a_call_is_replayed_if_that_is_asked_for_or_a_warning_says_why_not(gpu, traits, words):
    timed, notes = timed_with_notes(gpu.gpu.call(**traits), use_cuda_graph=True)
    assert [word in note for word, note in zip(words, notes, strict=True)] == [True] * len(words)
    assert (timed.measurement["launch"] == "graph") == ("replay" in gpu.gpu.log) == (traits == {"operations": 3})
    assert bench_gpu_time(gpu.gpu.call(operations=3)).measurement["launch"] == "stream"


def test_fewer_samples_than_were_asked_for_are_reported(gpu):
    timed, (note,) = timed_with_notes(lambda: gpu.gpu.kernel(length_ns=250_000_000), time_budget_s=1.0)
    assert note == f"time_budget_s: the call is too slow for all its samples; {len(timed.times_ms)} were taken."
    assert (timed.measurement["stop"], gpu.gpu.seconds() < 1.5) == ("budget", True)


def test_a_call_on_two_gpus_is_refused():
    tensors = [SimpleNamespace(device=torch.device("cuda", index)) for index in (0, 1)]
    with pytest.raises(ValueError, match="several GPUs"):
        find_device(tensors, "auto")


@pytest.mark.parametrize(
    ("idiom", "value"),
    [
        (sorted, [9.0, 10.0, 11.0, 50.0]),
        (np.mean, 20.0),
        (lambda timed: [first for first, _ in [timed, timed]], [10.5, 10.5]),
        (lambda timed: timed[0], None),
    ],
)
def test_two_names_get_median_and_deviation_and_everything_else_the_samples(idiom, value):
    with nullcontext() if value else pytest.raises(TypeError, match="times_ms"):
        assert idiom(GpuTime(10.5, 0.5, (9.0, 10.0, 11.0, 50.0), {})) == value
