from dataclasses import replace

import pytest

from flashinfer_bench.base.wire import WireError
from flashinfer_bench.timing.measurement import Sample
from flashinfer_bench.worker.protocol import (
    MAX_CALLS,
    Called,
    Loaded,
    Started,
    Stopped,
    answer_readings,
    check_answer,
)

READINGS = answer_readings([Sample(span_ns=5, enqueue_ns=6)] * 2)
CALLED = {"id": 3, "readings": READINGS, "facts": {}}
GPU = {"busy_ns": 40, "operations": 2, "late": True, "escaped": True, "work_ns": 60}
SEEN = Sample(span_ns=50, enqueue_ns=9, launched=(("a", 1), ("b", 1)), **GPU)


@pytest.mark.parametrize("sample", [SEEN, Sample(span_ns=7, enqueue_ns=7)], ids=["gpu", "cpu"])
def test_a_reading_comes_through_whole_and_of_what_was_launched_a_digest(sample):
    called = check_answer({"id": 1, "readings": answer_readings([sample] * 2)}, 1, Called)
    first, second = called.readings.to_samples()
    assert first == second
    assert vars(first) | {"launched": ()} == vars(sample) | {"launched": ()}
    ((digest, count),) = first.launched
    assert (len(digest), count) == (16, 1)

    other = replace(sample, launched=(("a", 2),))
    assert len(set(answer_readings([sample, other, sample])["launched"])) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"late": [True, 1]},
        {"span_ns": [5, -1]},
        {"span_ns": [5, float("nan")]},
        {"span_ns": [5, 10**18]},
        {"span_ns": [5]},
        {"span_ns": 5},
        {"launched": ["a" * 17] * 2},
        {name: [] for name in READINGS},
        {"stop": "count"},
    ],
    ids=str,
)
def test_readings_out_of_bounds_are_refused(change):
    with pytest.raises(WireError):
        check_answer({**CALLED, "readings": {**READINGS, **change}}, 3, Called)


@pytest.mark.parametrize(
    "change",
    [
        {"verdict": "PASSED"},
        {"readings": []},
        {"facts": {"x": 1}},
        {"facts": {"empty_pair_ns": 10**400}},
        {"lost": "x" * 513},
        {"returned": [[]] * (MAX_CALLS + 1)},
        {"id": 4},
        {"error": {"type": "ValueError", "message": "x" * 20_000, "traceback": ""}},
    ],
    ids=lambda change: str(change)[:40],
)
def test_a_claim_out_of_bounds_is_refused(change):
    with pytest.raises(WireError):
        check_answer({**CALLED, **change}, 3, Called)


@pytest.mark.parametrize(
    "launches",
    [
        {"a" * 17: {"x": 1}},
        {"a": {"x" * 201: 1}},
        {"a": {"x": -1}},
        {"a": dict.fromkeys(map(str, range(34)), 1)},
        {str(at): {"x": 1} for at in range(17)},
    ],
    ids=lambda launches: str(launches)[:20],
)
def test_names_of_operations_out_of_bounds_are_refused(launches):
    assert check_answer({"id": 1, "launches": {"a": {"x\n": 1}}}, 1, Stopped).launches == {"a": {"x\\n": 1}}
    with pytest.raises(WireError):
        check_answer({"id": 1, "launches": launches}, 1, Stopped)


def test_a_missing_part_is_named_and_texts_are_bounded_and_move_no_cursor():
    with pytest.raises(WireError, match="signature"):
        check_answer({"id": 1}, 1, Loaded)
    with pytest.raises(WireError) as refused:
        check_answer({**CALLED, "\x1b[2J" + "x" * 10_000: 1}, 3, Called)
    assert len(str(refused.value)) < 1000
    assert str(refused.value).isprintable()
    clock = {"method": "wall", "cache_state": "warm", "fills_queue": False, "sees_operations": False}
    assert check_answer({"id": 1, "clock": clock, "lost": "no\x1b[2J\nCUPTI"}, 1, Started).lost == "no\\x1b[2J\\nCUPTI"
