"""Workloads, evaluations and traces: which parts go with which status, and numbers that JSON has no word for."""

from __future__ import annotations

import json
import math

import pytest
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from flashinfer_bench.data import Trace, Workload
from tests.kit import make_evaluation, make_trace, make_workload


@pytest.mark.parametrize(
    ("status", "part"),
    [
        ("PASSED", {"correctness": None}),
        ("INCORRECT_NUMERICAL", {"correctness": None}),
        ("INCORRECT_NUMERICAL", {"performance": make_evaluation().performance}),
        *((status, {"correctness": {}}) for status in ("INCORRECT_SHAPE", "INCORRECT_DTYPE", "RUNTIME_ERROR")),
        ("COMPILE_ERROR", {"correctness": {}}),
    ],
)
def test_a_part_too_many_or_too_few_is_refused(status, part):
    assert make_evaluation(status).status == status
    with pytest.raises(ValidationError, match=f"status {status}"):
        make_evaluation(status, **part)


def test_what_json_has_no_word_for_is_written_as_words_and_read_back():
    extra = {"k": ["\udfff", -math.inf]}
    trace = make_trace(log="a\udc80", max_absolute_error=math.nan, max_relative_error=math.inf, extra=extra)
    evaluation = json.loads(trace.to_json().encode(), parse_constant=pytest.fail)["evaluation"]
    assert evaluation["log"] == "a?"
    assert evaluation["extra"] == {"k": ["?", "-Infinity"]}
    assert evaluation["correctness"]["max_absolute_error"] == "NaN"
    correctness = Trace.model_validate_json(trace.to_json()).evaluation.correctness
    assert math.isnan(correctness.max_absolute_error)
    assert correctness.max_relative_error == math.inf


def test_an_extra_that_is_no_json_is_an_error_and_not_silently_dropped():
    with pytest.raises(PydanticSerializationError):
        make_trace(extra={"value": object()}).to_json()


def test_a_trace_writes_every_required_key():
    assert make_trace(solution=None).to_dict() == {
        "definition": "double",
        "workload": {"uuid": "w0", "axes": {"n": 8}, "inputs": {"x": {"type": "random"}}},
        "solution": None,
        "evaluation": None,
    }
    evaluation = make_trace(status="TIMEOUT").to_dict()["evaluation"]
    assert list(evaluation) == ["status", "log", "timestamp", "environment", "correctness", "performance"]
    assert make_trace().to_dict()["evaluation"]["correctness"]["extra"] is None


def test_a_trace_reads_back_equal_with_keys_that_nobody_knows():
    raw = make_trace().to_dict()
    raw["evaluation"]["environment"]["driver"] = "580"
    raw["workload"]["origin"] = {"atol": 1}
    trace = Trace.model_validate(raw)
    assert trace.to_dict() == raw
    assert Trace.model_validate_json(trace.to_json()) == trace


@pytest.mark.parametrize("parts", [{"solution": "s"}, {"evaluation": make_evaluation()}])
def test_solution_and_evaluation_come_together(parts):
    with pytest.raises(ValidationError, match="but no"):
        Trace(definition="double", workload=make_workload(), **parts)


@pytest.mark.parametrize("value", [True, 3, 0.5])
def test_a_scalar_keeps_its_type(value):
    workload = make_workload(inputs={"x": value})
    again = Workload.model_validate_json(workload.to_json()).inputs["x"].value
    assert (again, type(again)) == (value, type(value))


@pytest.mark.parametrize("size", [-1, "5", 2.5, True, None, 2**63])
def test_the_size_of_an_axis_is_a_whole_number(size):
    assert make_workload(axes={"n": 0}).axes == {"n": 0}
    with pytest.raises(ValidationError, match=r"axes\.n"):
        make_workload(axes={"n": size})


def test_the_digest_of_a_workload_is_of_its_content():
    assert make_workload("a").digest() == make_workload("b").digest()
    others = [make_workload(axes={"n": 9}), make_workload(inputs={"x": 1}), make_workload(inputs={"x": 2})]
    assert len({one.digest() for one in (make_workload(), *others)}) == 4
