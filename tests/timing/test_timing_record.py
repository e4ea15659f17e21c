"""From trials to one number with its record: latency, flags, and the state of the GPU."""

import json
from statistics import fmean, median
from types import SimpleNamespace

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.report.timing import MEANINGS
from flashinfer_bench.timing import gpu_state
from flashinfer_bench.timing.gpu_state import GpuSettings, GpuState, read_gpu_settings, read_gpu_state
from flashinfer_bench.timing.measurement import Sample, Trial, join_facts
from flashinfer_bench.timing.statistics import LONG_SAMPLE_NS
from flashinfer_bench.timing.summary import summarise

pytestmark = pytest.mark.cpu
FACTS = {"method": "cupti", "cache_state": "cold", "launch": "stream", "enqueue_ns": 2_000}
COOL = GpuState(1980, 3201, 300.0, 50, (), 0)
OTHERS = GpuState(1980, 3201, 300.0, 50, (), 1)
UNKNOWN = GpuState(None, None, None, None, (), None)
SLOWED = GpuState(1200, 3201, 700.0, 50, ("power_cap",), 0)
UNSEEN = {"operations": None, "busy_ns": None}


def trial(*spans_ns, stop="count", facts=(), **sample):
    """Return a trial of one-operation calls that kept the GPU busy all the time, unless it is said otherwise."""
    spans_ns = spans_ns or (10_000,) * 20
    usual = {"enqueue_ns": 2_000, "operations": 1}
    samples = [Sample(**{"span_ns": span, "busy_ns": span, **usual, **sample}) for span in spans_ns]
    return Trial(tuple(samples), stop, {**FACTS, **dict(facts)})


TWO_KINDS = Trial(trial(*[1_000] * 6).samples + trial(*[2_000] * 4, operations=5).samples, "count", FACTS)


def record_of(*trials, **options):
    return summarise(trials, **options).record


spans = st.lists(st.lists(st.integers(1, 10**9), min_size=1, max_size=9), min_size=1, max_size=4)


@given(spans, st.integers(0, 5_000))
def test_latency_is_the_launch_overhead_and_the_mean_of_the_trials_medians(series, gap_ns):
    measured = summarise([trial(*values) for values in series], launch_gap_ns=gap_ns)
    assert measured.latency_ms == pytest.approx(fmean([median(values) for values in series]) / 1e6 + gap_ns / 1e6)
    assert measured.latency_ms == pytest.approx(fmean(measured.trials))
    json.dumps(measured.record, allow_nan=False)


@pytest.mark.parametrize(
    ("trials", "latencies", "found"),
    [
        ([trial(0, 0, 0, operations=0, busy_ns=0, enqueue_ns=7_000)], [0.007], {"operations": 0}),
        ([trial(busy_ns=8_000, operations=3)], [0.011], {"busy_ms": 0.008, "operations": 3, "launch_gap_ns": 1_000}),
        (
            [trial(), trial(*[12_000] * 20, facts={"method": "cuda_events"}, **UNSEEN)],
            [0.011, 0.012],
            {"operations": 1},
        ),
        ([TWO_KINDS], [0.002], {"busy_ms": 0.001_375, "operations": 1, "late": None}),
        ([trial(late=True), trial()], [0.011, 0.011], {"late": 20}),
    ],
)
def test_what_a_record_says_of_its_trials(trials, latencies, found):
    measured = summarise(trials, launch_gap_ns=1_000)
    assert measured.trials == latencies
    assert {name: measured.record.get(name) for name in found} == found


def test_facts_of_several_trials_are_medians_and_the_rest_is_the_last_ones():
    tables = [{**FACTS, "enqueue_ns": value, "calls": 60} for value in (1, 5, 90)]
    tables[0]["fallback"], tables[1]["fallback"] = "first", "last"
    assert join_facts(tables) == {**FACTS, "enqueue_ns": 5, "calls": 60, "fallback": "last"}


def drifting(first, last):
    """A trial whose samples change once: how long a call takes is not known well."""
    return trial(*[first] * 10, *[last] * 10)


def having(late=0, **facts):
    samples = trial(*[10_000] * (20 - late)).samples + (trial(*[10_000] * late, late=True).samples if late else ())
    return Trial(samples, "count", {**FACTS, **facts})


VARIED = Trial((*trial().samples, *trial(800_000, operations=4).samples), "count", FACTS)
BY_EVENTS = having(method="cuda_events")
FLAGGED = [
    ("no_gpu_work", [Trial(trial().samples + trial(0, operations=0).samples, "count", FACTS)], [trial()]),
    ("host_bound", [having(enqueue_ns=11_000)], [having(enqueue_ns=9_000)]),
    ("host_bound", [having(late=6)], [having(late=4)]),
    ("host_bound", [having(waits_inside=True)], [having(method="wall", enqueue_ns=11_000)]),
    ("waits_inside", [having(waits_inside=True)], [trial()]),
    ("mixed_methods", [trial(), BY_EVENTS], [trial(), trial()]),
    ("mixed_launches", [trial(), having(launch="graph")], [trial(), having(method="wall")]),
    ("operations_vary", [trial(), VARIED], [trial(operations=2), trial(operations=3)]),
    ("contradictory", [trial(10_000, busy_ns=10_001)], [trial(10_000, busy_ns=10_000)]),
    ("side_stream", [having(side_stream=True)], [trial()]),
    ("persisting_l2", [having(lines_reset=True)], [trial()]),
    ("noisy", [drifting(10_000, 11_000)], [drifting(10_000, 10_050)]),
    ("noisy", [drifting(1_000, 1_300)], [drifting(1_000, 1_030)]),  # a step of the clock
    ("too_few_samples", [trial(*[10_000] * 8)], [trial(*[10_000] * 9)]),
    ("too_few_samples", [trial(*[LONG_SAMPLE_NS] * 2)], [trial(*[LONG_SAMPLE_NS] * 3)]),
]
STATES = [
    ("throttled", {"before": SLOWED}, {"before": UNKNOWN}),
    ("other_processes", {"after": OTHERS}, {"after": UNKNOWN}),
]


@pytest.mark.parametrize(("flag", "case", "control"), FLAGGED + STATES)
def test_a_flag_stands_where_it_holds_and_nowhere_else(flag, case, control):
    def found(given):
        trials, states = ([trial()], given) if isinstance(given, dict) else (given, {})
        return record_of(*trials, **{"before": COOL, "after": COOL, **states}).get("flags", [])

    assert (flag in found(case), flag in found(control), flag in MEANINGS) == (True, False, True)
    assert found([trial()]) == []


def test_a_record_with_everything_in_it_is_short_unless_every_sample_is_kept():
    facts = {
        **dict.fromkeys(("launch_reason", "fallback"), "x" * 80),
        **dict.fromkeys(("waits_inside", "side_stream", "lines_reset"), True),
        **dict.fromkeys(("spin_ns", "lead_ns", "calls", "retaken", "empty_pair_ns", "enqueue_ns"), 12_345_678),
    }
    trials = [trial(*range(123_456_789, 987_654_321, 17_283_951), facts=facts, stop="precision", late=True)] * 3
    crowded = GpuState(1755, 3201, 699.9, 71, ("power_cap", "hw_slowdown", "sw_thermal", "hw_thermal"), 3)
    options = {"launch_gap_ns": 1_150, "before": COOL, "after": crowded}
    record, kept = record_of(*trials, **options), record_of(*trials, **options, keep_samples=True)
    assert len(json.dumps(record)) < 1_200
    assert (record["gpu"]["sm_mhz"], record["gpu"]["slowed_by"]) == ([1980, 1755], sorted(crowded.slowed_by))
    assert {name: kept[name] for name in kept if name != "samples_ns"} == record
    assert [len(series) for series in kept["samples_ns"]["span"]] == [50] * 3


CLOCKS = {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 3201}
UNSUPPORTED = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


@pytest.fixture
def nvml(monkeypatch):
    """Answers of one GPU; a test changes them, an error is raised."""
    answers = {"CurrentClocksEventReasons": 0, "PowerUsage": 512_345, "Temperature": 41}
    answers |= {"ComputeRunningProcesses": [7], "EnforcedPowerLimit": 700_000, "ApplicationsClock": 1980}

    def answer(name):
        if isinstance(answers[name], Exception):
            raise answers[name]
        return [SimpleNamespace(pid=pid) for pid in answers[name]] if name.startswith("Compute") else answers[name]

    def find(uuid):
        if uuid != "GPU-1":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return "handle"

    for name in answers:
        monkeypatch.setattr(pynvml, f"nvmlDeviceGet{name}", lambda *_, name=name: answer(name))
    for name in ("ClockInfo", "MaxClockInfo"):
        monkeypatch.setattr(pynvml, f"nvmlDeviceGet{name}", lambda _gpu, kind: CLOCKS[kind])
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", find)
    gpu_state.handle.cache_clear()
    yield answers
    gpu_state.handle.cache_clear()


@pytest.mark.parametrize(
    ("reasons", "slowed_by"),
    [
        (pynvml.nvmlClocksEventReasonGpuIdle, ()),
        (pynvml.nvmlClocksEventReasonSwPowerCap, ("power_cap",)),
        (pynvml.nvmlClocksThrottleReasonHwThermalSlowdown, ("hw_thermal",)),
    ],
)
def test_what_slows_a_gpu_has_a_name_and_idling_is_not_it(nvml, reasons, slowed_by):
    nvml["CurrentClocksEventReasons"] = reasons
    assert read_gpu_state("GPU-1", ours={7}) == GpuState(1980, 3201, 512.3, 41, slowed_by, 0)


@pytest.mark.parametrize(
    ("seen", "ours", "others"),
    [([7, 99], {7, 8}, 1), ([], {7}, None)],
)
def test_other_processes_are_those_that_are_not_ours_if_ours_are_seen(nvml, seen, ours, others):
    nvml["ComputeRunningProcesses"] = seen
    assert read_gpu_state("GPU-1", ours=ours).other_processes == others


def test_what_the_driver_does_not_say_is_none(nvml, monkeypatch):
    assert read_gpu_settings("GPU-1") == GpuSettings(700.0, 1980, 1980, 1980, 3201)
    nvml.update(dict.fromkeys(nvml, UNSUPPORTED))
    assert read_gpu_settings("GPU-1") == GpuSettings(None, None, None, 1980, 3201)
    assert read_gpu_state("GPU-1", ours={7}) == GpuState(1980, 3201, None, None, (), None)
    assert (read_gpu_state("GPU-2"), read_gpu_settings("GPU-2")) == (None, None)
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: (_ for _ in ()).throw(UNSUPPORTED))
    gpu_state.handle.cache_clear()
    assert read_gpu_state("GPU-1") is None
