"""`bench_gpu_time` on a fake GPU: what is asked for is done, or a warning says what was done instead."""

import json
import statistics
import warnings
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from flashinfer_bench.testing import GpuTime, bench_gpu_time, gpu_time
from flashinfer_bench.testing.device import find_device
from tests.kit.fake_gpu import FakeGpu, fake_cupti_clock

pytestmark = pytest.mark.cpu

COLD_NS, WARM_NS, GAP_NS = 20_000, 5_000, 1_000
L2_BYTES = 4_000


class FakeDevice:
    """A GPU with a cache: a kernel is fast on data that few other bytes were touched since."""

    device, l2_bytes, launch_gap_ns, refusal = torch.device("cpu"), L2_BYTES, GAP_NS, ""

    def __init__(self):
        self.gpus = {state: FakeGpu(l2_cache=state) for state in ("cold", "warm")}
        self.gpu, self.touched = self.gpus["cold"], []

    def active(self):
        return nullcontext()

    def now(self):
        return sum(gpu.seconds() for gpu in self.gpus.values())

    def clock(self, l2_cache):
        self.gpu = self.gpus[l2_cache]
        return fake_cupti_clock(self.gpu, refusal=self.refusal)[0]

    def state(self):
        self.gpu.log.append("state")

    def free_bytes(self):
        return 10**9

    def evict(self):
        self.touched.clear()

    def read(self, data):
        """Launch a kernel that reads a tensor."""
        recent = [address for address, _ in self.touched[-(L2_BYTES // data.nbytes) :]]
        is_warm = self.gpu.l2_cache == "warm" and data.data_ptr() in recent
        self.touched.append((data.data_ptr(), data.nbytes))
        self.gpu.kernel("read", WARM_NS if is_warm else COLD_NS)


@pytest.fixture
def gpu(monkeypatch):
    device = FakeDevice()
    monkeypatch.setattr(gpu_time, "find_device", lambda tensors, clock: device)
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
    assert (median_ms, std_ms) == (pytest.approx(0.008), pytest.approx(0.0))  # the gap of 1 us and the kernel's 7
    assert (len(timed.times_ms), timed.method, notes) == (30, "cupti", [])
    record = json.loads(json.dumps(timed.measurement))
    assert (record["cache_state"], record["launch_gap_ns"]) == ("cold", GAP_NS)
    assert (gpu.gpu.log[0], gpu.gpu.log[-1], gpu.gpu.log.count("state")) == ("state", "state", 2)


SPELLINGS = [
    {"num_iters": 7, "dry_run_iters": 4, "args": (1,), "kwargs": {"step": 2}},
    {"repeat_iters": 7, "dry_run_iters": np.int32(4), "input_args": [1], "input_kwargs": {"step": 2}},
    {"num_iters": 7, "repeat_iters": torch.tensor(7), "dry_run_iters": 4, "repeat_time_ms": 99.0}
    | {"args": [1], "kwargs": {"step": 2}, "dry_run_time_ms": float("inf"), "time_budget_s": float("inf")},
]


@pytest.mark.filterwarnings("ignore:There is no GPU")
@pytest.mark.parametrize("spelling", SPELLINGS, ids=["guide", "early", "both"])
def test_both_spellings_mean_the_same(spelling):
    calls = []
    timed = bench_gpu_time(lambda start, step: calls.append((start, step)), **spelling)
    assert (len(timed.times_ms), calls) == (7, [(1, 2)] * 11)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"num_iters": 3, "repeat_iters": 4}, ValueError, "num_iters=3 and repeat_iters=4"),
        ({"num_iters": 0}, ValueError, "num_iters must be a whole number from 1"),
        ({"num_iters": np.bool_(True)}, ValueError, "num_iters must be a whole number"),
        ({"time_budget_s": float("nan")}, ValueError, "time_budget_s must be a number"),
        ({"repeat_time_ms": -1}, ValueError, "repeat_time_ms must be a number from 0"),
        ({"args": (1,), "input_args": (1,)}, ValueError, "args and input_args"),
        ({"args": torch.ones(2)}, TypeError, "args must be a tuple"),
        ({"kwargs": (1,)}, TypeError, "kwargs must be a mapping"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(given, error, words):
    with pytest.raises(error, match=words):
        bench_gpu_time(lambda *_, **__: None, **given)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_on_a_cpu_it_says_that_the_wall_clock_was_used():
    timed, (note,) = timed_with_notes(torch.add, torch.ones(4), 1, num_iters=3, rotate_buffers=True)
    assert (timed.method, "no GPU: timed by the wall clock" in note) == ("wall", True)


def test_parameters_without_effect_are_named_if_they_are_given(gpu):
    given = {"num_iters_within_graph": 10, "l2_flush_size_mb": 256, "aggregate_op": max, "sleep_after_run": True}
    _, (note,) = timed_with_notes(gpu.gpu.kernel, **given)
    assert note.startswith("num_iters_within_graph, l2_flush_size_mb, aggregate_op, sleep_after_run has no effect")
    assert timed_with_notes(gpu.gpu.kernel, num_iters_within_graph=1, sleep_after_run=False)[1] == []


@pytest.mark.parametrize(
    ("given", "state"), [({}, "cold"), ({"cold_l2_cache": False}, "warm"), ({"l2_flush": False}, "warm")]
)
def test_the_l2_is_flushed_unless_either_parameter_says_no(gpu, given, state):
    timed, _ = timed_with_notes(lambda: gpu.gpu.kernel(), **given)
    assert (timed.measurement["cache_state"], "flush" in gpu.gpu.log) == (state, state == "cold")


@pytest.mark.parametrize("held_up_at", [1, 20], ids=["compiles", "stalls"])
def test_a_time_gives_about_as_many_calls_as_fill_it(gpu, held_up_at):
    made = []

    def function():
        made.append(1)
        gpu.gpu.call(length_ns=100_000, host_ns=60_000_000 * (len(made) == held_up_at))()

    timed, _ = timed_with_notes(function, dry_run_time_ms=2.0, repeat_time_ms=10.0)
    assert 25 < len(timed.times_ms) < 44  # a flush of 40 us, a rest of 100 and a call of 101 fill 10 ms 41 times
    assert timed.measurement["calls"] - len(timed.times_ms) > 5


def test_a_time_asks_for_no_more_than_ten_thousand_calls():
    with pytest.warns(UserWarning, match="There is no GPU") if not torch.cuda.is_available() else nullcontext():
        assert len(bench_gpu_time(lambda: None, repeat_time_ms=float("inf"))) == 10_000


@pytest.mark.parametrize("enable_cupti", [True, False])
def test_cupti_that_does_not_work_is_warned_of_in_the_guides_words(gpu, enable_cupti):
    gpu.refusal = "CUPTI is not installed" if enable_cupti else "CUDA events were asked for"
    timed, notes = timed_with_notes(lambda: gpu.gpu.kernel(), enable_cupti=enable_cupti)
    assert timed.method == "cuda_events"
    assert notes == (["CUPTI is not installed. Falling back to CUDA events."] if enable_cupti else [])


@pytest.mark.parametrize(
    ("asked", "traits", "launch", "words"),
    [
        (True, {"operations": 3}, "graph", None),
        (False, {"operations": 3}, "stream", None),
        (True, {"operations": 1}, "stream", None),
        (True, {"operations": 2, "waits": True}, "stream", "waits for the GPU inside"),
        (True, {"operations": 0}, "stream", "fn launched nothing on the GPU"),
    ],
    ids=["graph", "stream", "single operation", "refused", "nothing"],
)
def test_a_call_is_launched_as_it_was_asked_for_or_a_warning_says_why_not(gpu, asked, traits, launch, words):
    timed, notes = timed_with_notes(lambda: gpu.gpu.call(**traits)(), use_cuda_graph=asked)
    assert (timed.measurement["launch"], "replay" in gpu.gpu.log) == (launch, launch == "graph")
    assert [words in note for note in notes] == ([True] if words else [])


def test_fewer_samples_than_were_asked_for_are_reported(gpu):
    timed, (note,) = timed_with_notes(lambda: gpu.gpu.kernel(length_ns=250_000_000), time_budget_s=1.0)
    assert note == f"time_budget_s: the call is too slow for all its samples; {len(timed.times_ms)} were taken."
    assert (timed.measurement["stop"], gpu.gpu.seconds() < 1.5) == ("budget", True)


@pytest.mark.parametrize(("floats", "iterations", "sets"), [(100, 30, 31), (10, 4, 22)])
def test_a_rotated_call_is_cold_without_a_flush_and_launched_likewise(gpu, floats, iterations, sets):
    timed, notes = timed_with_notes(gpu.read, torch.ones(floats), num_iters=iterations, rotate_buffers=True)
    assert (set(timed.times_ms), notes) == ({(COLD_NS + GAP_NS) / 1e6}, [])
    assert (timed.measurement["cache_state"], timed.measurement["rotated_sets"]) == ("cold", sets)
    assert not {"flush", "replay"} & set(gpu.gpus["warm"].log)


def test_a_long_rotated_call_is_not_compared(gpu):
    timed, notes = timed_with_notes(lambda _: gpu.gpu.kernel("k", 3_000_000), torch.ones(9), rotate_buffers=True)
    assert (timed.measurement["rotated_sets"] > 1, notes, gpu.gpus["cold"].log) == (True, [], [])


@pytest.mark.parametrize("hidden", [60, 100])
def test_a_rotation_that_leaves_most_of_a_call_warm_is_found_out(gpu, hidden):
    weight, data = torch.ones(hidden), torch.ones(40)
    timed, (note,) = timed_with_notes(lambda _: gpu.read(weight), data, rotate_buffers=True)
    assert ("something beside them" in note, "flushed before each call instead" in note) == (True, True)
    assert (timed.median_ms, timed.measurement["cache_state"]) == ((COLD_NS + GAP_NS) / 1e6, "cold")


def test_a_rotation_that_is_refused_or_was_not_to_be_cold_is_reported(gpu):
    timed, notes = timed_with_notes(gpu.gpu.kernel, rotate_buffers=True, cold_l2_cache=False)
    assert ("no GPU tensors among the arguments" in notes[0], timed.measurement["cache_state"]) == (True, "cold")
    assert "which cold_l2_cache=False does not ask for" in notes[1]


def test_a_gpu_that_does_not_report_its_l2_rotates_nothing(gpu):
    gpu.l2_bytes = 0
    _, (note,) = timed_with_notes(lambda _: gpu.gpu.kernel(), torch.ones(1), rotate_buffers=True)
    assert "nothing was rotated" in note


def test_a_call_on_two_gpus_is_refused():
    tensors = [SimpleNamespace(device=torch.device("cuda", index)) for index in (0, 1)]
    with pytest.raises(ValueError, match="several GPUs"):
        find_device(tensors, "auto")


TIMED = GpuTime(10.5, 0.5, (9.0, 10.0, 11.0, 50.0), {})


@pytest.mark.parametrize(
    ("idiom", "value"),
    [
        (statistics.median, 10.5),
        (min, 9.0),
        (sorted, [9.0, 10.0, 11.0, 50.0]),
        (lambda timed: sum(timed) / len(timed), 20.0),
        (lambda timed: timed[1:], (10.0, 11.0, 50.0)),
        (np.mean, 20.0),
        (lambda timed: [first for first, _ in [timed, timed]], [10.5, 10.5]),
    ],
)
def test_two_names_get_median_and_deviation_and_everything_else_the_samples(idiom, value):
    assert idiom(TIMED) == value


@pytest.mark.parametrize("unclear", ["TIMED[0]", "[first for first, *others in [TIMED]]"])
def test_what_might_be_either_is_refused(unclear):
    with pytest.raises(TypeError, match="times_ms"):
        eval(unclear)
