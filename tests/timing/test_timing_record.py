"""From trials to one number with its record: latency, flags, and the state of the GPU."""

import json
from statistics import fmean, median
from types import SimpleNamespace

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.report.timing import MEANINGS
from flashinfer_bench.timing import nvml
from flashinfer_bench.timing.measurement import Sample, Trial
from flashinfer_bench.timing.nvml import GpuSettings, GpuState, read_gpu_settings, read_gpu_state
from flashinfer_bench.timing.statistics import LONG_SAMPLE_NS
from flashinfer_bench.timing.summary import summarise

pytestmark = pytest.mark.cpu
METADATA = {"method": "cupti", "cache_state": "cold", "launch": "stream", "enqueue_ns": 2_000}
COOL = GpuState(1980, 3201, 300.0, 50, (), 0)
OTHERS = GpuState(1980, 3201, 300.0, 50, (), 1)
UNKNOWN = GpuState(None, None, None, None, (), None)
SLOWED = GpuState(1200, 3201, 700.0, 50, ("power_cap",), 0)


def trial(*spans_ns, stop="count", metadata=(), **sample):
    """Return a trial of one-operation calls that kept the GPU busy all the time, unless it is said otherwise."""
    spans_ns = spans_ns or (10_000,) * 20
    usual = {"enqueue_ns": 2_000, "operations": 1}
    samples = [Sample(**{"span_ns": span, "busy_ns": span, **usual, **sample}) for span in spans_ns]
    return Trial(tuple(samples), stop, {**METADATA, **dict(metadata)})


def record_of(*trials, **options):
    return summarise(trials, **options).record


spans = st.lists(st.lists(st.integers(1, 10**9), min_size=1, max_size=9), min_size=1, max_size=4)


@given(spans, st.integers(0, 5_000))
def test_latency_is_the_launch_overhead_and_the_mean_of_the_trials_medians(series, gap_ns):
    measured = summarise([trial(*values) for values in series], launch_gap_ns=gap_ns)
    assert measured.latency_ms == pytest.approx(fmean([median(values) for values in series]) / 1e6 + gap_ns / 1e6)
    assert measured.latency_ms == pytest.approx(fmean(measured.trials))
    json.dumps(measured.record, allow_nan=False)


def having(late=0, **metadata):
    samples = trial(*[10_000] * (20 - late)).samples + (trial(*[10_000] * late, late=True).samples if late else ())
    return Trial(samples, "count", {**METADATA, **metadata})


FLAGGED = [
    ("no_gpu_work", [Trial(trial().samples + trial(0, operations=0).samples, "count", METADATA)], [trial()]),
    ("host_bound", [having(enqueue_ns=11_000)], [having(enqueue_ns=9_000)]),
    ("host_bound", [having(late=6)], [having(late=4)]),
    ("host_bound", [having(waits_inside=True)], [having(method="wall", enqueue_ns=11_000)]),
    ("waits_inside", [having(waits_inside=True)], [trial()]),
    ("operations_vary", [having(operations_vary=True)], [trial(operations=2), trial(operations=3)]),
    ("contradictory", [trial(10_000, busy_ns=10_001)], [trial(10_000, busy_ns=10_000)]),
    ("side_stream", [having(side_stream=True)], [trial()]),
    ("persisting_l2", [having(lines_reset=True)], [trial()]),
    ("too_few_samples", [trial(*[10_000] * 8)], [trial(*[10_000] * 9)]),
    ("too_few_samples", [trial(*[LONG_SAMPLE_NS] * 2)], [trial(*[LONG_SAMPLE_NS] * 3)]),
]
STATES = [
    ("throttled", {"before": SLOWED}, {"before": UNKNOWN}),
    ("other_processes", {"after": OTHERS}, {"after": UNKNOWN}),
]


@pytest.mark.parametrize(("flag", "case", "control"), FLAGGED + STATES)
def test_a_flag_is_raised_only_if_its_condition_holds(flag, case, control):
    def found(given):
        trials, states = ([trial()], given) if isinstance(given, dict) else (given, {})
        return record_of(*trials, **{"before": COOL, "after": COOL, **states}).get("flags", [])

    assert (flag in found(case), flag in found(control), flag in MEANINGS) == (True, False, True)
    assert found([trial()]) == []


UNSUPPORTED = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
SAYS = {"CurrentClocksEventReasons": 0, "PowerUsage": 512_345, "Temperature": 41, "ComputeRunningProcesses": [7]}
SAYS |= {"EnforcedPowerLimit": 700_000, "ApplicationsClock": 1980, "ClockInfo": 1980, "MaxClockInfo": 3201}


@pytest.fixture
def query(monkeypatch):
    """Return the state and the settings of a GPU whose driver returns given values; a given error is raised."""

    def looked(uuid="GPU-1", ours=(7,), **changes):
        def answer(name):
            value = {**SAYS, **changes}[name]
            if isinstance(value, Exception):
                raise value
            return [SimpleNamespace(pid=pid) for pid in value] if isinstance(value, list) else value

        def find(wanted):
            if wanted != "GPU-1":
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

        for name in SAYS:
            monkeypatch.setattr(pynvml, f"nvmlDeviceGet{name}", lambda *_, name=name: answer(name))
        monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda wanted: find(wanted) or "handle")
        nvml.handle.cache_clear()
        return read_gpu_state(uuid, ours=ours), read_gpu_settings(uuid)

    yield looked
    nvml.handle.cache_clear()


@pytest.mark.parametrize(
    ("changes", "slowed_by", "others"),
    [
        ({"CurrentClocksEventReasons": pynvml.nvmlClocksEventReasonGpuIdle}, (), 0),
        ({"CurrentClocksEventReasons": pynvml.nvmlClocksEventReasonSwPowerCap}, ("power_cap",), 0),
        ({"ComputeRunningProcesses": [7, 99]}, (), 1),
        ({"ComputeRunningProcesses": []}, (), None),  # ours are missing: ids are of another namespace
    ],
)
def test_throttle_reasons_have_names_and_other_processes_are_counted_if_ours_are_listed(
    query, changes, slowed_by, others
):
    state, settings = query(**changes)
    assert state == GpuState(1980, 1980, 512.3, 41, slowed_by, others)
    assert settings == GpuSettings(700.0, 1980, 1980, 3201, 3201)


def test_a_value_that_the_driver_does_not_report_is_none(query):
    state, settings = query(**dict.fromkeys(SAYS, UNSUPPORTED))
    assert state == GpuState(None, None, None, None, (), None)
    assert settings == GpuSettings(None, None, None, None, None)
    assert query("GPU-2") == (None, None)
