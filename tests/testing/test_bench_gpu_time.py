"""`bench_gpu_time` on a fake GPU: what is asked for is done, or told to be otherwise."""

import json
import random
import statistics
from contextlib import nullcontext
from statistics import median
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from flashinfer_bench.testing import bench_gpu_time
from flashinfer_bench.testing.counts import WantedCount
from flashinfer_bench.testing.gpu_time import describe_departures
from flashinfer_bench.testing.order import Order, carry_out
from flashinfer_bench.testing.rotation import RotationRefused, count_sets, why_not_cold
from flashinfer_bench.testing.site import find_site
from flashinfer_bench.testing.timed import GpuTime
from flashinfer_bench.timing.lines import FIRST_LOOK
from flashinfer_bench.timing.measurement import EVENTS_ASKED_FOR
from tests.kit.fake_gpu import FakeGpu, fake_cupti_clock

pytestmark = pytest.mark.cpu

COLD_NS, WARM_NS = 20_000, 5_000
L2_BYTES = 4_000


class FakeSite:
    """A GPU with a cache: a kernel is fast on data that few other bytes were touched since."""

    device_type = "cpu"
    l2_bytes = L2_BYTES

    def __init__(self, *, free_bytes=10**9, refusal=""):
        self.gpus = {state: FakeGpu(l2_cache=state) for state in ("cold", "warm")}
        self.clocks = {state: fake_cupti_clock(gpu, refusal=refusal)[0] for state, gpu in self.gpus.items()}
        self.free, self.gpu, self.touched, self.gaps = free_bytes, self.gpus["cold"], [], 0

    def active(self):
        return nullcontext()

    def clock(self, l2_cache):
        self.gpu = self.gpus[l2_cache]
        return self.clocks[l2_cache]

    def launch_gap_ns(self, clock):
        self.gaps += 1
        return clock.launch_gap_ns()

    def look(self):
        return None

    def free_bytes(self):
        return self.free

    def evict(self):
        self.touched.clear()

    def read(self, data):
        """Launch a kernel that reads a tensor."""
        recent = [address for address, _ in self.touched[-(L2_BYTES // data.nbytes) :]]
        is_warm = self.gpu.l2_cache == "warm" and data.data_ptr() in recent
        self.touched.append((data.data_ptr(), data.nbytes))
        self.gpu.kernel("read", WARM_NS if is_warm else COLD_NS)


def order(function, args=(), *, iterations=30, **settings):
    counts = {"dry_runs": WantedCount(5, None), "iterations": WantedCount(iterations, None), "time_budget_s": 10.0}
    return Order(function, tuple(args), {}, **counts, **settings)


def carried_out(site, asked):
    """Return what an order came to, and what a caller is warned of."""
    timed = carry_out(asked, site, now=lambda: sum(gpu.seconds() for gpu in site.gpus.values()))
    return timed, describe_departures(asked, timed.measurement)


def test_the_result_unpacks_and_carries_the_whole_measurement():
    site = FakeSite()
    timed, notes = carried_out(site, order(lambda: site.gpu.kernel(length_ns=7_000)))
    median_ms, std_ms = timed
    assert (median_ms, std_ms) == (pytest.approx(0.008), pytest.approx(0.0))  # the gap of 1 us and the kernel's 7
    assert (len(timed.times_ms), timed.method, timed.measurement["launch_gap_ns"]) == (30, "cupti", 1_000)
    assert json.loads(json.dumps(timed.measurement))["cache_state"] == "cold"
    assert (np.median(timed), notes) == (pytest.approx(median_ms), [])


@pytest.mark.filterwarnings("ignore:There is no GPU")
@pytest.mark.parametrize(
    "spelling",
    [
        {"num_iters": 7, "dry_run_iters": 4, "args": (1,), "kwargs": {"step": 2}},
        {"repeat_iters": 7, "dry_run_iters": 4, "input_args": (1,), "input_kwargs": {"step": 2}},
        {
            "num_iters": 7,
            "repeat_iters": 7,
            "dry_run_iters": 4,
            "repeat_time_ms": 99.0,
            "args": [1],
            "kwargs": {"step": 2},
        },
    ],
    ids=["guide", "early", "both"],
)
def test_both_spellings_mean_the_same(spelling):
    calls = []
    timed = bench_gpu_time(lambda start, step: calls.append((start, step)), **spelling)
    assert (len(timed.times_ms), calls) == (7, [(1, 2)] * 11)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"num_iters": 3, "repeat_iters": 4}, ValueError, "num_iters=3 and repeat_iters=4"),
        ({"num_iters": 0}, ValueError, "num_iters must be a whole number from 1"),
        ({"num_iters": 10**20}, ValueError, "num_iters must be a whole number"),
        ({"num_iters": np.bool_(True)}, ValueError, "num_iters must be a whole number"),
        ({"num_iters": 2, "time_budget_s": float("nan")}, ValueError, "time_budget_s must be a number"),
        ({"dry_run_iters": -1}, ValueError, "dry_run_iters"),
        ({"repeat_time_ms": 0}, ValueError, "repeat_time_ms must be above 0"),
        ({"args": (1,), "input_args": (1,)}, ValueError, "args and input_args"),
        ({"kwargs": {"a": 1}, "input_kwargs": {"a": 1}}, ValueError, "kwargs and input_kwargs"),
        ({"args": torch.ones(2)}, TypeError, "args must be a tuple"),
        ({"args": 5}, TypeError, "args must be a tuple"),
        ({"kwargs": (1,)}, TypeError, "kwargs must be a dict"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(given, error, words):
    with pytest.raises(error, match=words):
        bench_gpu_time(lambda *_: None, **given)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_on_a_cpu_it_says_that_the_wall_clock_was_used():
    with pytest.warns(UserWarning, match="no GPU: timed by the wall clock"):
        timed = bench_gpu_time(torch.add, args=(torch.ones(4), 1), num_iters=3, rotate_buffers=True)
    assert timed.method == "wall"


@pytest.mark.filterwarnings("ignore:There is no GPU")
def test_a_parameter_without_effect_is_told_where_it_is_given():
    with pytest.warns(UserWarning, match="num_iters_within_graph has no effect") as told:
        bench_gpu_time(lambda: None, num_iters=1, num_iters_within_graph=10)
    assert {warning.filename for warning in told} == {__file__}


@pytest.mark.filterwarnings("ignore:There is no GPU")
def test_arguments_of_older_scripts_are_taken_and_a_warning_says_which_do_nothing():
    with pytest.warns(UserWarning, match="l2_flush_size_mb, aggregate_op, sleep_after_run has no effect"):
        bench_gpu_time(
            lambda: None, num_iters=1, l2_flush=True, l2_flush_size_mb=256, sleep_after_run=True, aggregate_op=max
        )


def test_a_time_gives_about_as_many_calls_as_fill_it():
    site = FakeSite()
    asked = Order(
        lambda: site.gpu.kernel(length_ns=100_000), (), {}, WantedCount(None, 2.0), WantedCount(None, 10.0), 10.0
    )
    timed, _ = carried_out(site, asked)
    assert len(timed.times_ms) == pytest.approx(10.0 / 0.24, rel=0.1)  # a flush of 40 us, a rest of 100, a call of 101
    assert 2.0 / 0.24 - 1 < timed.measurement["calls"] - len(timed.times_ms) < FIRST_LOOK + 2 * 2.0 / 0.24


def test_cupti_that_does_not_work_is_warned_of_in_the_guides_words():
    not_there = "CUPTI is not installed. Try 'pip install -U cupti-python'. Falling back to CUDA events."
    record = {"method": "cuda_events", "fallback": not_there}
    assert describe_departures(order(print), record) == [not_there]
    site = FakeSite(refusal="another subscriber of CUPTI is attached")
    timed, notes = carried_out(site, order(lambda: site.gpu.kernel()))
    assert (timed.method, timed.measurement.get("launch_gap_ns")) == ("cuda_events", None)
    assert notes == ["another subscriber of CUPTI is attached. Falling back to CUDA events."]


def test_events_that_were_asked_for_are_no_departure():
    record = {"method": "cuda_events", "fallback": EVENTS_ASKED_FOR}
    assert describe_departures(order(print), record) == []


@pytest.mark.parametrize(("asked", "launch"), [(True, "graph"), (False, "stream")], ids=["graph", "stream"])
def test_a_call_of_several_operations_is_launched_as_it_was_asked_for(asked, launch):
    site = FakeSite()
    timed, notes = carried_out(site, order(lambda: site.gpu.call(operations=3)(), use_cuda_graph=asked))
    assert (timed.measurement["launch"], notes) == (launch, [])
    assert ("replay" in site.gpu.log) == asked


def test_a_graph_that_is_refused_is_told_with_the_reason():
    site = FakeSite()
    timed, (note,) = carried_out(site, order(lambda: site.gpu.call(operations=2, waits=True)(), use_cuda_graph=True))
    assert timed.measurement["launch"] == "stream"
    assert "waits for the GPU inside" in note


def test_a_single_operation_needs_no_graph_and_no_warning():
    site = FakeSite()
    _, notes = carried_out(site, order(lambda: site.gpu.kernel(), use_cuda_graph=True))
    assert notes == []


def test_fewer_readings_than_were_asked_for_are_told():
    site = FakeSite()
    timed, (note,) = carried_out(site, order(lambda: site.gpu.kernel(length_ns=2 * 10**9)))
    assert note == f"time_budget_s: the call is too slow for all its readings; {len(timed.times_ms)} were taken."
    assert len(timed.times_ms) < 30
    assert len(describe_departures(order(print), {"method": "wall", "stop": "budget", "samples": 1})) == 2


@pytest.mark.parametrize("use_cuda_graph", [True, False])
def test_a_call_that_launches_nothing_is_told_once(use_cuda_graph):
    _, notes = carried_out(FakeSite(), order(lambda: None, use_cuda_graph=use_cuda_graph))
    assert notes == ["fn launched nothing on the GPU: what is told is the time that it took on the host."]


def test_a_rotation_that_was_not_to_be_cold_is_told():
    site = FakeSite()
    timed, notes = carried_out(site, order(site.read, (torch.ones(100),), rotate=True, l2_cache="warm"))
    assert notes == ["rotate_buffers makes calls cold, which cold_l2_cache=False does not ask for."]
    assert timed.measurement["cache_state"] == "cold"


def test_a_rotation_that_is_not_made_is_told():
    site = FakeSite()
    site.l2_bytes = 0
    _, (note,) = carried_out(site, order(site.read, (torch.ones(100),), rotate=True))
    assert "nothing was rotated" in note


def test_a_rotated_call_is_cold_without_a_flush():
    site = FakeSite()
    data = torch.ones(100)  # 400 bytes, so 10 sets fill the L2 once
    timed, notes = carried_out(site, order(site.read, (data,), rotate=True))
    assert notes == []
    assert set(timed.times_ms) == {(COLD_NS + 1_000) / 1e6}
    assert (timed.measurement["cache_state"], timed.measurement["rotated_sets"]) == ("cold", 31)
    assert "flush" not in site.gpus["warm"].log


def test_no_more_copies_are_made_than_calls_use():
    site = FakeSite()
    timed, notes = carried_out(site, order(site.read, (torch.ones(10),), iterations=4, rotate=True))
    addresses = {address for address, _ in site.touched}
    assert (timed.measurement["rotated_sets"], notes) == (timed.measurement["calls"], [])
    assert len(addresses) <= timed.measurement["calls"]
    assert median(timed.times_ms) == (COLD_NS + 1_000) / 1e6


GLOBAL = torch.ones(100)


@pytest.mark.parametrize(
    ("args", "free_bytes", "words"),
    [
        ((), 10**9, "there are no GPU tensors among the arguments"),
        ((torch.ones(9),), 1000, "copies of 0 MB do not fit into 0.0 GB"),
        ((torch.ones(3).to_sparse(),), 10**9, "layout torch.sparse_coo, which cannot be copied"),
        ((torch.ones(0),), 10**9, "are empty"),
    ],
    ids=["no tensors", "memory", "sparse", "empty"],
)
def test_a_rotation_that_cannot_be_is_refused_with_the_reason_and_flushed(args, free_bytes, words):
    site = FakeSite(free_bytes=free_bytes)
    timed, (note,) = carried_out(site, order(lambda *_: site.gpu.kernel(), args, rotate=True))
    assert words in note
    assert timed.measurement["cache_state"] == "cold"
    assert "flush" in site.gpus["cold"].log


def test_a_global_tensor_refuses_a_rotation_too():
    site = FakeSite()
    kernel = site.gpu.kernel
    _, (note,) = carried_out(site, order(lambda _data: kernel() or GLOBAL, (torch.ones(9),), rotate=True))
    assert "not among its arguments (GLOBAL)" in note


def test_tensors_that_a_function_closes_over_are_named():
    site = FakeSite()
    weight, bias = torch.ones(100), torch.ones(100)

    def function(data):
        site.read(weight)
        return bias

    _, (note,) = carried_out(site, order(function, (torch.ones(100),), rotate=True))
    assert "(bias, weight)" in note
    assert "flushed before each call instead" in note


class HalfWarm:
    """A layer whose weight makes up most of what it reads, and stays where it is."""

    def __init__(self, site, weight):
        self.site, self.hidden = site, {"weight": [Opaque(weight)]}

    def forward(self, data):
        length_ns = 5_000
        for tensor, cold_ns in ((self.hidden["weight"][0].tensor, 9_000), (data, 6_000)):
            recent = [address for address, _ in self.site.touched[-(L2_BYTES // 100) :]]
            length_ns += 0 if self.site.gpu.l2_cache == "warm" and tensor.data_ptr() in recent else cold_ns
            self.site.touched.append((tensor.data_ptr(), tensor.nbytes))
        self.site.gpu.kernel("linear", length_ns)


class Opaque:
    """Holds a tensor where nobody looks for it."""

    def __init__(self, tensor):
        self.tensor = tensor


def test_a_rotation_that_leaves_most_of_a_call_warm_is_found_out():
    site = FakeSite()
    timed, (note,) = carried_out(site, order(HalfWarm(site, torch.ones(60)).forward, (torch.ones(40),), rotate=True))
    assert "something beside them" in note
    assert timed.median_ms == (20_000 + 1_000) / 1e6


class Scale:
    """A layer that holds its weight."""

    def __init__(self):
        self.weight = torch.ones(9)

    def forward(self, data):
        return data * self.weight

    def __call__(self, data):
        return self.forward(data)


LINEAR = torch.nn.Linear(3, 3)


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (Scale().forward, "(weight)"),
        (Scale(), "(weight)"),
        (LINEAR, "(bias, weight)"),
        (LINEAR.forward, "(bias, weight)"),
        (torch.nn.Sequential(LINEAR).forward, "(0.bias, 0.weight)"),
        (torch.nn.BatchNorm1d(3).forward, "running_mean"),
        (lambda data: LINEAR(data), "(LINEAR)"),
        (torch.ones(9).add, "(the tensor whose method it is)"),
    ],
    ids=["method", "object", "module", "module's method", "parts", "buffers", "global module", "tensor's method"],
)
def test_tensors_of_the_object_whose_method_is_timed_refuse_a_rotation(function, names):
    assert "pass them in args" in refusal(function, names)


def refusal(function, names):
    with pytest.raises(RotationRefused, match="not among its arguments") as refused:
        count_sets(function, [torch.ones(9)], l2_bytes=400, free_bytes=10**9, calls=9)
    assert names in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("function", [torch.add, torch.nn.functional.relu, torch.nn.ReLU(), print, FakeSite().read])
def test_functions_without_tensors_of_their_own_are_rotated(function):
    sets = count_sets(function, [torch.ones(100)], l2_bytes=400, free_bytes=10**9, calls=9)
    assert sets == 1 + 3


def test_a_rotation_that_leaves_calls_warm_is_found_out():
    site = FakeSite()
    hidden = {"weight": [torch.ones(100)]}

    class Layer:
        def __call__(self, data):
            site.read(hidden["weight"][0])

    timed, (note,) = carried_out(site, order(Layer(), (torch.ones(100),), rotate=True))
    assert "something beside them" in note
    assert timed.median_ms == (COLD_NS + 1_000) / 1e6


def test_a_first_call_that_compiles_does_not_change_how_many_calls_fill_a_time():
    site, made = FakeSite(), []

    def function():
        made.append(1)
        site.gpu.call(length_ns=100_000, host_ns=500_000_000 if len(made) == 1 else 0)()

    timed, _ = carried_out(site, Order(function, (), {}, WantedCount(3, None), WantedCount(None, 10.0), 10.0))
    assert len(timed.times_ms) == pytest.approx(10.0 / 0.24, rel=0.1)


def test_a_host_that_is_held_up_does_not_make_a_call_seem_to_take_no_time():
    site, made = FakeSite(), []

    def function():
        made.append(1)
        site.gpu.call(length_ns=100_000, host_ns=60_000_000 if len(made) == 20 else 0)()

    timed, _ = carried_out(site, Order(function, (), {}, WantedCount(3, None), WantedCount(None, 10.0), 10.0))
    assert len(timed.times_ms) < 200


def test_a_time_asks_for_no_more_than_ten_thousand_calls():
    assert WantedCount(None, 1e9).resolve(lambda: 1e-3) == 10_000


def test_copies_for_the_calls_that_may_be_made_have_to_fit():
    site = FakeSite(free_bytes=400)  # ten calls at the most, so nine copies of 40 bytes; four fifths of it may be used
    _, (note,) = carried_out(site, order(site.read, (torch.ones(10),), iterations=1, rotate=True))
    assert "9 copies of 0 MB do not fit" in note


def test_a_long_rotated_call_is_not_compared():
    site = FakeSite()
    timed, notes = carried_out(site, order(lambda _: site.gpu.kernel("k", 3_000_000), (torch.ones(9),), rotate=True))
    assert (timed.measurement["rotated_sets"] > 1, notes, site.gpus["cold"].log) == (True, [], [])


def test_a_rotation_that_is_refused_is_flushed_whatever_else_was_asked_for():
    site = FakeSite()
    timed, _ = carried_out(site, order(lambda: site.gpu.kernel(), rotate=True, l2_cache="warm"))
    assert timed.measurement["cache_state"] == "cold"


def test_what_a_rotation_is_compared_with_is_launched_likewise():
    site = FakeSite()
    carried_out(site, order(lambda _: site.gpu.call(operations=3)(), (torch.ones(9),), rotate=True))
    assert not any("replay" in gpu.log for gpu in site.gpus.values())


def test_readings_that_scatter_get_no_more_of_them():
    site, drawn = FakeSite(), random.Random(3)
    timed, _ = carried_out(site, order(lambda: site.gpu.kernel("k", drawn.choice([1_120, 1_312]))))
    assert len(timed.times_ms) == 30


def test_the_gpu_is_looked_at_before_the_first_call_and_after_the_last():
    site, seen = FakeSite(), []
    site.look = lambda: seen.append(site.gpu.log.count("call"))
    timed, _ = carried_out(site, order(lambda: site.gpu.call()()))
    assert seen == [0, timed.measurement["calls"]]


def test_the_time_budget_is_the_one_that_was_given():
    site = FakeSite()
    asked = Order(lambda: site.gpu.kernel("k", 250_000_000), (), {}, WantedCount(3, None), WantedCount(100, None), 1.0)
    timed, _ = carried_out(site, asked)
    assert (timed.measurement["stop"], site.gpus["cold"].seconds() < 1.5) == ("budget", True)


@pytest.mark.parametrize(("rotated_ns", "cold"), [(9_790, False), (9_810, True)])
def test_a_difference_of_a_tenth_is_enough_to_tell_cold_from_warm(rotated_ns, cold):
    reason = why_not_cold(rotated_ns=rotated_ns, warm_ns=9_000, flushed_ns=10_000)
    assert (reason is None) == cold


def test_a_difference_that_cannot_be_seen_refuses_nothing():
    assert why_not_cold(rotated_ns=9_600, warm_ns=9_600, flushed_ns=10_000) is None


def test_a_call_on_two_gpus_is_refused():
    tensors = [SimpleNamespace(device=torch.device("cuda", index)) for index in (0, 1)]
    with pytest.raises(ValueError, match="several GPUs"):
        find_site(tensors, clock="auto", has_gpu=lambda: True)


READINGS = (9.0, 10.0, 11.0, 50.0)


@pytest.mark.parametrize(
    ("idiom", "value"),
    [
        (statistics.median, 10.5),
        (statistics.mean, 20.0),
        (min, 9.0),
        (max, 50.0),
        (sorted, list(READINGS)),
        (list, list(READINGS)),
        (lambda timed: [reading * 2 for reading in timed], [18.0, 20.0, 22.0, 100.0]),
        (lambda timed: sum(timed) / len(timed), 20.0),
        (lambda timed: timed[1:], READINGS[1:]),
        (np.median, 10.5),
        (np.mean, 20.0),
        (lambda timed: np.asarray(timed).tolist(), list(READINGS)),
    ],
)
def test_to_what_takes_a_list_the_result_is_its_readings(idiom, value):
    assert idiom(GpuTime(10.5, 0.5, READINGS, {})) == value


def test_what_takes_two_numbers_gets_median_and_deviation():
    timed = GpuTime(10.5, 0.5, READINGS, {})
    (median_ms, std_ms), others = timed, [timed, timed]
    assert (median_ms, std_ms) == (10.5, 0.5)
    assert [first for first, _ in others] == [10.5, 10.5]


def test_what_might_be_either_is_refused():
    timed = GpuTime(10.5, 0.5, READINGS, {})
    with pytest.raises(TypeError, match="times_ms"):
        timed[0]
    with pytest.raises(TypeError, match="times_ms"):
        _first, *_others = timed


@pytest.mark.filterwarnings("ignore:There is no GPU")
@pytest.mark.parametrize(
    ("given", "count"),
    [
        ({"num_iters": np.int64(4), "dry_run_iters": np.int32(1)}, 4),
        ({"num_iters": torch.tensor(4), "time_budget_s": float("inf")}, 4),
        ({"num_iters": 4, "dry_run_time_ms": float("inf")}, 4),
        ({"repeat_time_ms": float("inf")}, 10_000),
    ],
)
def test_counts_of_numpy_and_endless_times_are_taken(given, count):
    assert len(bench_gpu_time(lambda: None, **given)) == count
