import pytest

from flashinfer_bench.worker.protocol import Called, Failed, Loaded, Sampled, check_answer
from flashinfer_bench.worker.wire import WireError

SAMPLED = {
    "id": 3,
    "span_ns": [5, 6],
    "enqueue_ns": [5, 6],
    "busy_ns": None,
    "operations": None,
    "late": [False, False],
    "stop": "count",
    "facts": {"method": "wall", "cache_state": "warm", "calls": 2},
}


def test_a_sound_answer_becomes_a_value():
    assert check_answer(SAMPLED, 3, Sampled).trial().spans_ns == [5, 6]


def test_an_error_is_an_answer_to_any_request():
    error = {"type": "ValueError", "message": "no", "traceback": ""}
    assert isinstance(check_answer({"id": 1, "error": error}, 1, Called), Failed)


@pytest.mark.parametrize(
    "change",
    [
        {"span_ns": []},
        {"enqueue_ns": [5]},
        {"late": [True]},
        {"span_ns": [-1, 6]},
        {"span_ns": ["5", 6]},
        {"span_ns": [1.5, 6]},
        {"span_ns": [float("nan"), 6]},
        {"span_ns": [10**18, 6]},
        {"stop": "because"},
        {"verdict": "PASSED"},
        {"facts": {"x": [1]}},
        {"id": 4},
        {"id": "3"},
    ],
    ids=str,
)
def test_a_claim_out_of_bounds_is_refused(change):
    with pytest.raises(WireError):
        check_answer({**SAMPLED, **change}, 3, Sampled)


def test_a_missing_part_is_named():
    with pytest.raises(WireError, match="signature"):
        check_answer({"id": 1}, 1, Loaded)


def test_texts_are_bounded():
    error = {"type": "E", "message": "x" * 20_000, "traceback": ""}
    with pytest.raises(WireError, match=r"error\.message"):
        check_answer({"id": 1, "error": error}, 1, Called)
