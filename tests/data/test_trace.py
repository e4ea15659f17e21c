"""Workloads, evaluations and traces: the parts for each status, and numbers that JSON cannot write."""

from __future__ import annotations

import json
import math

import pytest
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from flashinfer_bench.data import Trace
from tests.kit import make_evaluation, make_trace, make_workload


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


@pytest.mark.parametrize("size", [-1, "5", 2.5, True, None, 2**63])
def test_the_size_of_an_axis_is_a_whole_number(size):
    assert make_workload(axes={"n": 0}).axes == {"n": 0}
    with pytest.raises(ValidationError, match=r"axes\.n"):
        make_workload(axes={"n": size})


def test_the_digest_of_a_workload_is_of_its_content():
    assert make_workload("a").digest() == make_workload("b").digest()
    others = [make_workload(axes={"n": 9}), make_workload(inputs={"x": 1}), make_workload(inputs={"x": 2})]
    assert len({one.digest() for one in (make_workload(), *others)}) == 4


@pytest.mark.parametrize("parts", [{"solution": "s"}, {"evaluation": make_evaluation()}])
def test_solution_and_evaluation_come_together(parts):
    with pytest.raises(ValidationError, match="but no"):
        Trace(definition="double", workload=make_workload(), **parts)
