"""The reference as a callable: how it is called, what of it is a fault, and that inputs stay what they were."""

from __future__ import annotations

import inspect

import pytest
import torch

from flashinfer_bench.bench.evaluators import reference as reference_module
from flashinfer_bench.bench.evaluators.reference import Reference
from flashinfer_bench.errors import DefinitionFault, WorkloadFault
from tests.kit.make import make_definition

pytestmark = pytest.mark.cpu

TWO = {"outputs": {"a": "float32[n]", "b": "int64[n]"}}
PAIR = {"inputs": {"x": "float32[n]", "w": "float32[n]"}}


def reference(body: str, *, head: str = "def run(x):", before: str = "", **parts) -> Reference:
    source = f"import torch\n{before}\n{head}\n    " + body.replace("\n", "\n    ") + "\n"
    return Reference.compile(make_definition(reference=source, **parts))


@pytest.mark.parametrize(
    ("parameters", "result"),
    [
        ("w, x, eps=1e-5, **others", "x - w"),
        ("**others", "others['x'] - others['w']"),
        ("w, *, x", "x - w"),
    ],
)
def test_parameters_are_passed_by_name_and_those_of_other_names_by_position(parameters, result):
    called = reference(f"return {result}", head=f"def run({parameters}):", **PAIR)
    assert called([torch.tensor([3.0]), torch.tensor([1.0])])[0].tolist() == [2.0]


NEEDS_ITS_MODULE = """
import inspect, pickle, sys
from dataclasses import dataclass

@dataclass(frozen=True, slots=True)
class Two:
    k: int = 2

assert pickle.loads(pickle.dumps(Two())).k == 2
assert sys.modules[__name__].Two is Two
assert "k: int = 2" in inspect.getsource(Two)
if __name__ == "__main__":
    raise SystemExit
"""


def test_classes_of_a_reference_find_the_module_that_they_are_of():
    called = Reference.compile(make_definition(reference=f"{NEEDS_ITS_MODULE}\ndef run(x):\n    return x * 2\n"))
    assert called([torch.ones(1)])[0].item() == 2
    assert "return x * 2" in inspect.getsource(called.run)


@pytest.mark.parametrize("returned", ["(x, x.long())", "[x, x.long()]", "{'b': x.long(), 'a': x}"])
def test_several_outputs_come_in_the_order_of_the_definition(returned):
    outputs = reference(f"return {returned}", **TWO)([torch.ones(3)])
    assert [output.dtype for output in outputs] == [torch.float32, torch.int64]


@pytest.mark.parametrize(
    ("body", "parts", "words"),
    [
        pytest.param("return x", TWO, ["2 outputs (a, b), got 1 values"], id="too few"),
        pytest.param("return x[:-1]", {}, ["'y'", "[2]", "[3]"], id="shape"),
        pytest.param("return x.half()", {}, ["'y'", "float16", "float32"], id="dtype"),
        pytest.param("assert x.shape[0] == 7, 'seven'", {}, ["Error: seven", "line 4", "x.shape[0] == 7"], id="raises"),
        pytest.param("import sys\nsys.exit(3)", {}, ["SystemExit"], id="exits"),
        pytest.param("return x", {"head": "def norm(x):"}, ["norm"], id="no run"),
        pytest.param(
            "return x[:, None].expand(-1, 5), torch.zeros(4)",
            {"axes": {"n": None, "k": None}, "outputs": {"y": "float32[n, k]", "z": "float32[k]"}},
            ["'z'"],
            id="an axis that only outputs have",
        ),
    ],
)
def test_a_reference_that_does_not_fit_is_a_fault_of_the_definition(body, parts, words):
    with pytest.raises(DefinitionFault) as fault:
        reference(body, **parts)([torch.ones(3)])
    assert [word for word in words if word not in str(fault.value)] == []


def test_want_of_memory_is_the_workloads_fault_and_not_the_definitions():
    with pytest.raises(WorkloadFault, match="does not fit into the device's memory") as fault:
        reference("raise torch.OutOfMemoryError('80 GB')")([torch.ones(2)])
    assert not isinstance(fault.value, DefinitionFault)


@pytest.mark.parametrize(
    ("body", "written", "result"),
    [
        ("y = x * w\nw.numpy()[0] = 7\nreturn y", {"w"}, 1.0),  # without torch's knowing
        ("return x.view(-1)", set(), 1.0),
    ],
)
def test_inputs_that_it_writes_to_or_returns_stay_as_they_were(body, written, result):
    called = reference(body, head="def run(x, w):", **PAIR)
    given = [torch.ones(2), torch.ones(2)]
    for _ in range(2):
        (output,) = called(given)
        assert output.tolist() == [result] * 2
        output.zero_()
        assert [value.tolist() for value in given] == [[1.0, 1.0]] * 2
    assert called.mutates == written
    assert called.returns_inputs == ("view" in body)


def test_writing_in_some_calls_only_is_a_fault():
    called = reference("if x[0] > 1:\n    x += 1\nreturn x * 2")
    called([torch.ones(2)])
    with pytest.raises(DefinitionFault, match="writes to x"):
        called([torch.full((2,), 5.0)])


def check(called: Reference, size: int) -> None:
    def differs(first, second):
        return None if torch.equal(first[0], second[0]) else "they differ"

    inputs = [torch.ones(size)]
    called.check_repeats(inputs, called(inputs), differs)


def test_a_reference_that_disagrees_with_itself_is_used_only_if_it_agreed_before():
    never = reference("calls.append(x)\nreturn x * len(calls)", before="calls = []")
    with pytest.raises(DefinitionFault, match="second call with equal inputs gives something else; they differ"):
        check(never, 2)
    with pytest.raises(DefinitionFault, match="second call"):
        never([torch.ones(3)])
    assert len(never.run.__globals__["calls"]) == 2
    once = reference("calls.append(x)\nreturn x * (len(calls) if len(x) == 3 else 1)", before="calls = []")
    check(once, 2)
    with pytest.raises(DefinitionFault, match="second call"):
        check(once, 3)
    check(once, 4)


def test_second_calls_are_made_until_they_have_taken_too_long(monkeypatch):
    clock = iter(range(0, 1000, 6))
    monkeypatch.setattr(reference_module.time, "monotonic", lambda: next(clock))
    called = reference("calls.append(len(x))\nreturn x", before="calls = []")
    for size in (2, 3, 4, 5):
        check(called, size)
    assert called.run.__globals__["calls"] == [2, 2, 3, 3, 4, 5]
