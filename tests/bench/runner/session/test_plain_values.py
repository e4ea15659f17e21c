"""Values of numpy, torch and Python as JSON has them, and what has no such form."""

import collections
import dataclasses
import datetime
import enum
import json
import pathlib

import numpy as np
import pytest

from flashinfer_bench.base.plain_values import to_number
from flashinfer_bench.bench.runner.session.outcome import NotPlain, to_json_value


class Kind(enum.Enum):
    FIRST = "first"


@dataclasses.dataclass
class Pair:
    left: object


def endless():
    found = {}
    found["again"] = found
    return found


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.float32(1.5), 1.5),
        (np.bool_(True), True),
        (np.int64(3), 3),
        (np.arange(3), [0, 1, 2]),
        (np.str_("a"), "a"),
        ({1: (np.int8(2), {3})}, {"1": [2, [3]]}),
        (pathlib.Path("/x"), "/x"),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        (Kind.FIRST, "first"),
        (Pair(np.float16(2)), {"left": 2.0}),
        (collections.deque([1]), [1]),
        ("\ud800", "\\ud800"),
        (10**30, hex(10**30)),
        (np.dtype("float32"), "float32"),
    ],
)
def test_a_value_gets_the_form_that_json_has(value, plain):
    found = to_json_value(value)
    assert (found, type(found)) == (plain, type(plain))
    json.dumps(found, allow_nan=False)


@pytest.mark.cpu
def test_tensors_become_numbers_and_lists():
    import torch

    values = [torch.tensor(2.5), torch.ones(2, dtype=torch.bfloat16, requires_grad=True), torch.float32]
    assert to_json_value(values) == [2.5, [1.0, 1.0], "torch.float32"]
    assert [to_number(one) for one in (torch.tensor(3), np.int64(3), 3)] == [3, 3, 3]
    with pytest.raises(NotPlain, match="cannot be read"):
        to_json_value(torch.empty(3, device="meta"))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "a.b is a builtins.object"),
        (np, "module"),
        (np.zeros(10**6), "1,000,000 elements"),
        (endless(), "levels"),
    ],
)
def test_a_value_without_such_a_form_is_told_with_its_place(value, words):
    with pytest.raises(NotPlain, match=words):
        to_json_value({"b": value}, "a")
