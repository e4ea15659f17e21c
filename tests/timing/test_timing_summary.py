"""From trials to one number with its record: latency, flags, and how much room the record takes."""

import json
import random
from statistics import fmean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.timing.gpu_state import GpuState
from flashinfer_bench.timing.measurement import Sample, Trial, join_facts
from flashinfer_bench.timing.statistics import LONG_SAMPLE_NS
from flashinfer_bench.timing.summary import summarise

FACTS = {"method": "cupti", "cache_state": "cold", "launch": "stream", "enqueue_ns": 2_000}
COOL = GpuState(1980, 3201, 300.0, 50, (), 0)


def trial(*spans_ns, stop="count", facts=(), **sample):
    """Return a trial of one-operation calls that kept the GPU busy all the time, unless it is said otherwise."""
    spans_ns = spans_ns or (10_000,) * 20
    samples = [
        Sample(**{"span_ns": span, "enqueue_ns": 2_000, "busy_ns": span, "operations": 1, **sample})
        for span in spans_ns
    ]
    return Trial(tuple(samples), stop, {**FACTS, **dict(facts)})


def flags(*trials, before=COOL, after=COOL):
    return summarise(trials or (trial(),), before=before, after=after).record.get("flags", [])


spans = st.lists(st.lists(st.integers(1, 10**9), min_size=1, max_size=9), min_size=1, max_size=4)


@given(spans, st.integers(0, 5_000))
def test_latency_is_the_launch_gap_and_the_mean_of_the_trials_medians(series, gap_ns):
    measured = summarise([trial(*values) for values in series], launch_gap_ns=gap_ns)
    assert measured.latency_ms == pytest.approx(fmean([median(values) for values in series]) / 1e6 + gap_ns / 1e6)
    assert measured.latency_ms == pytest.approx(fmean(measured.trials))
    assert measured.record["samples"] == sum(map(len, series))


@given(spans)
def test_the_record_of_any_trials_is_json_and_in_order(series):
    record = json.loads(json.dumps(summarise([trial(*values) for values in series]).record, allow_nan=False))
    order = [record[f"{name}_ms"] for name in ("min", "q25", "median", "q75", "max")]
    assert order == sorted(order)
    assert ("interval95_ms" in record) == (record["samples"] >= 9)


def test_a_trial_with_extra_readings_counts_no_more_than_the_others():
    """Its inputs may make the call quicker or slower: figures over all readings would be that trial's."""
    steady = [trial(*values) for values in ([12_000, 12_100] * 275, [14_000, 14_100] * 25, [14_000, 14_100] * 25)]
    measured = summarise(steady)
    record = measured.record
    for figure in (measured.latency_ms, record["mean_ms"], record["busy_ms"]):
        assert figure == pytest.approx(0.040_150 / 3, abs=1e-9)
    assert (record["q25_ms"], record["median_ms"], record["q75_ms"]) == (0.0121, 0.0140, 0.0141)
    low, high = record["interval95_ms"]
    assert low <= measured.latency_ms <= high
    assert (record["min_ms"], record["max_ms"], record["samples"]) == (0.012, 0.0141, 650)
    assert record["std_ms"] == pytest.approx(0.000_944, rel=0.01)
    assert "noisy" in record["flags"]  # they disagree


def test_trials_that_disagree_are_seen_to():
    tight = [trial(*[base, base + 300, base - 300] * 17) for base in (100_000, 150_000, 200_000)]
    measured = summarise(tight)
    low, high = measured.record["interval95_ms"]
    assert low < 0.130 < measured.latency_ms < 0.170 < high
    assert (measured.record["q25_ms"], measured.record["q75_ms"]) == pytest.approx((0.1, 0.2), rel=0.01)
    assert "noisy" in measured.record["flags"]


def test_an_interval_of_equal_trials_is_as_wide_as_that_of_all_their_readings():
    drawn = random.Random(3)
    alike = [trial(*[drawn.randrange(9_000, 11_000) for _ in range(50)]) for _ in range(3)]
    together = Trial(tuple(sample for one in alike for sample in one.samples), "count", FACTS)
    widths = []
    for trials in (alike, [together]):
        low, high = summarise(trials).record["interval95_ms"]
        widths.append(high - low)
    assert widths[0] == pytest.approx(widths[1], rel=0.5)


def drifting(first, last):
    """A trial whose readings change once: how long a call takes is not known well."""
    return trial(*[first] * 10, *[last] * 10)


def test_what_does_not_hold_for_all_trials_is_not_told():
    assert join_facts([{"graphs": 8}, {"graphs": 8}])["graphs"] == 8
    assert "graphs" not in join_facts([{}, {"graphs": 8}])
    assert "graphs" not in join_facts([{"graphs": 4}, {"graphs": 8}])


def test_a_call_without_gpu_work_costs_what_the_host_needs_and_no_launch_gap():
    measured = summarise([trial(0, 0, 0, operations=0, busy_ns=0, enqueue_ns=7_000)], launch_gap_ns=1_000)
    assert (measured.latency_ms, measured.record["operations"]) == (0.007, 0)


def test_readings_of_a_clock_that_sees_no_operations_get_no_launch_gap():
    measured = summarise([trial(operations=None, busy_ns=None)], launch_gap_ns=1_000)
    assert measured.latency_ms == 0.010
    assert not {"busy_ms", "operations", "launch_gap_ns"} & measured.record.keys()


def test_busy_time_stands_beside_the_latency():
    record = summarise([trial(busy_ns=8_000, operations=3)], launch_gap_ns=900).record
    assert (record["busy_ms"], record["operations"], record["launch_gap_ns"]) == (0.008, 3, 900)
    assert record["median_ms"] == 0.0109


OTHERS = GpuState(1980, 3201, 300.0, 50, (), 1)
UNKNOWN = GpuState(None, None, None, None, (), None)
SLOWED = GpuState(1200, 3201, 700.0, 50, ("power_cap",), 0)
QUICK = {"enqueue_ns": 9_000}
WAITS = trial(facts={"waits_inside": True})
ON_A_CPU = trial(facts={"method": "wall", "enqueue_ns": 11_000})
BY_EVENTS = trial(facts={"method": "cuda_events"})
VARIED = Trial((*trial().samples, *trial(800_000, operations=4).samples), "count", FACTS)


@pytest.mark.parametrize(
    ("flag", "case", "control"),
    [
        ("no_gpu_work", {"trials": [trial(operations=0)]}, {}),
        ("host_bound", {"trials": [trial(facts={"enqueue_ns": 11_000})]}, {"trials": [trial(facts=QUICK)]}),
        ("host_bound", {"trials": [trial(late=True)]}, {"trials": [trial(*[10_000] * 30), trial(10_000, late=True)]}),
        (
            "host_bound",
            {"trials": [trial(facts={"waits_inside": True})]},
            {"trials": [trial(facts={"method": "wall"})]},
        ),
        ("waits_inside", {"trials": [WAITS]}, {}),
        (
            "mixed_methods",
            {"trials": [trial(), trial(facts={"method": "cuda_events"})]},
            {"trials": [trial(), trial()]},
        ),
        (
            "mixed_launches",
            {"trials": [trial(), trial(facts={"launch": "graph"})]},
            {"trials": [trial(), ON_A_CPU]},
        ),
        ("operations_vary", {"trials": [trial(), VARIED]}, {"trials": [trial(operations=2), trial(operations=3)]}),
        ("operations_vary", {"trials": [trial(facts={"operations_vary": True})]}, {}),
        ("contradictory", {"trials": [trial(10_000, busy_ns=10_001)]}, {"trials": [trial(10_000, busy_ns=10_000)]}),
        ("side_stream", {"trials": [trial(facts={"side_stream": True})]}, {}),
        ("persisting_l2", {"trials": [trial(facts={"lines_reset": True})]}, {}),
        ("noisy", {"trials": [drifting(10_000, 11_000)]}, {"trials": [drifting(10_000, 10_050)]}),
        ("noisy", {"trials": [drifting(1_000, 1_300)]}, {"trials": [drifting(1_000, 1_030)]}),  # a step of the clock
        ("too_few_samples", {"trials": [trial(*[10_000] * 8)]}, {"trials": [trial(*[10_000] * 9)]}),
        ("too_few_samples", {"trials": [trial(*[LONG_SAMPLE_NS] * 2)]}, {"trials": [trial(*[LONG_SAMPLE_NS] * 3)]}),
        ("throttled", {"before": SLOWED}, {"before": UNKNOWN}),
        ("throttled", {"after": SLOWED}, {"after": None}),
        ("other_processes", {"after": OTHERS}, {"after": UNKNOWN}),
    ],
)
def test_a_flag_stands_where_it_holds_and_nowhere_else(flag, case, control):
    def found(options):
        return flags(*options.get("trials", ()), **{name: options[name] for name in options if name != "trials"})

    assert flag in found(case)
    assert flag not in found(control)


def test_a_clean_measurement_has_no_flags():
    assert flags() == []


def test_a_noisy_host_is_noisy_where_the_gpu_does_nothing():
    noisy = Trial(tuple(Sample(0, host, 0, 0) for host in [7_000] * 10 + [9_000] * 10), "count", FACTS)
    assert flags(noisy) == ["no_gpu_work", "noisy"]


def test_trials_by_two_methods_get_the_launch_gap_only_where_it_is_missing():
    by_events = trial(*[12_000] * 20, facts={"method": "cuda_events"}, operations=None, busy_ns=None)
    measured = summarise([trial(), by_events], launch_gap_ns=1_000)
    assert measured.trials == [0.011, 0.012]
    assert "mixed_methods" in measured.record["flags"]


def test_facts_of_several_trials_are_medians_and_the_rest_is_the_last_ones():
    tables = [{**FACTS, "enqueue_ns": value, "calls": 60} for value in (1, 5, 90)]
    tables[0]["fallback"] = "CUPTI lost records"
    assert join_facts(tables) == {**FACTS, "enqueue_ns": 5, "calls": 60, "fallback": "CUPTI lost records"}


@pytest.mark.parametrize("sees_operations", [True, False])
def test_late_readings_are_counted_whatever_the_clock(sees_operations):
    unseen = {} if sees_operations else {"operations": None, "busy_ns": None}
    assert summarise([trial(late=True, **unseen), trial(**unseen)]).record["late"] == 20
    assert "late" not in summarise([trial(**unseen)]).record


@pytest.mark.parametrize("stops", [["count"] * 3, ["count", "precision", "count"], ["budget", "precision", "count"]])
def test_the_reason_to_stop_is_the_least_welcome_of_all_trials(stops):
    record = summarise([trial(stop=stop) for stop in stops]).record
    assert record["stop"] == {1: "count", 2: "precision", 3: "budget"}[len(set(stops))]


def test_the_gpu_before_and_after_stands_in_pairs():
    record = summarise([trial()], before=COOL, after=SLOWED).record
    assert record["gpu"] == {
        "sm_mhz": [1980, 1200],
        "memory_mhz": [3201, 3201],
        "power_w": [300.0, 700.0],
        "temperature_c": [50, 50],
        "other_processes": [0, 0],
        "slowed_by": ["power_cap"],
    }


def test_other_processes_that_are_not_known_are_told_from_none():
    records = [summarise([trial()], before=COOL, after=after).record for after in (UNKNOWN, COOL)]
    assert [record["gpu"]["other_processes"] for record in records] == [[0, None], [0, 0]]


def test_a_record_with_everything_in_it_is_short_unless_every_reading_is_kept():
    facts = {
        **FACTS,
        "launch_reason": "the call uses a stream that does not wait for the current one",
        "fallback": "another subscriber of CUPTI, such as a profiler, is attached to this process",
        **dict.fromkeys(("waits_inside", "side_stream", "lines_reset"), True),
        **dict.fromkeys(("spin_ns", "lead_ns", "calls", "retaken", "empty_pair_ns", "enqueue_ns"), 12_345_678),
    }
    trials = [trial(*range(123_456_789, 987_654_321, 17_283_951), facts=facts, stop="precision", late=True)] * 3
    crowded = GpuState(1755, 3201, 699.9, 71, ("power_cap", "hw_slowdown", "sw_thermal", "hw_thermal"), 3)
    measured = summarise(trials, launch_gap_ns=1_150, before=crowded, after=crowded)
    assert len(json.dumps(measured.record)) < 1_200
    kept = summarise(trials, launch_gap_ns=1_150, before=crowded, after=crowded, keep_samples=True)
    assert {name: kept.record[name] for name in kept.record if name != "samples_ns"} == measured.record
    assert [len(series) for series in kept.record["samples_ns"]["span"]] == [50] * 3


@pytest.mark.parametrize(("late", "flagged"), [(4, False), (6, True)])
def test_a_quarter_of_late_readings_makes_a_call_host_bound(late, flagged):
    readings = trial(*[10_000] * (20 - late)).samples + trial(*[10_000] * late, late=True).samples
    assert ("host_bound" in flags(Trial(readings, "count", FACTS))) == flagged


def test_busy_time_is_the_trimmed_mean_and_operations_the_usual_number():
    readings = [*trial(*[1_000] * 6).samples, *trial(*[2_000] * 4, operations=5).samples]
    record = summarise([Trial(tuple(readings), "count", FACTS)]).record
    assert (record["busy_ms"], record["operations"]) == (pytest.approx(0.001_375), 1)


def test_one_call_without_gpu_work_is_flagged():
    readings = trial().samples + trial(0, operations=0, busy_ns=0).samples
    assert flags(Trial(readings, "count", FACTS)) == ["no_gpu_work", "operations_vary"]


def test_of_facts_that_differ_the_last_one_is_told():
    assert join_facts([{"fallback": "first"}, {"fallback": "last"}, {}])["fallback"] == "last"
