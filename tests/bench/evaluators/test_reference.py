"""The reference as a callable: its calls, its faults, and that inputs stay unchanged."""

import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs import threads
from flashinfer_bench.bench.evaluators.reference import Reference
from flashinfer_bench.errors import DefinitionFault, WorkloadFault
from tests.kit.make import make_definition

pytestmark = pytest.mark.cpu
TWO = {"outputs": {"a": "float32[n]", "b": "int64[n]"}}
PAIR = {"inputs": {"x": "float32[n]", "w": "float32[n]"}}
INNER = {"axes": {"n": None, "k": None}, "outputs": {"y": "float32[n, k]", "z": "float32[k]"}}


def reference(body, *, head="def run(x):", before="", **parts):
    source = f"import torch\n{before}\n{head}\n    " + body.replace("\n", "\n    ") + "\n"
    return Reference.compile(make_definition(reference=source, **parts))


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
GIVEN = [torch.tensor([3.0, 4.0]), torch.tensor([1.0, 1.0])]
CALLED = [
    # by name, and other names by position
    *((result, f"def run({parameters}):", "", PAIR, [[2, 3]]) for parameters, result in (
        ("w, x, eps=1e-5, **others", "x - w"), ("**others", "others['x'] - others['w']"), ("w, *, x", "x - w"),
    )),
    # classes find the module that they are of
    ("x * Two().k", "def run(x):", NEEDS_ITS_MODULE, {}, [[6, 8]]),
    # several outputs in the order of the definition
    *((f"{made}", "def run(x):", "", TWO, [[3, 4], [3, 4]]) for made in ("(x, x.long())", "{'b': x.long(), 'a': x}")),
    ("x.view(-1)", "def run(x):", "", {}, [[3, 4]]),
]  # fmt: skip


@pytest.mark.parametrize(("result", "head", "before", "parts", "outputs"), CALLED)
def test_a_reference_is_called_as_it_is_written_and_its_outputs_are_its_own(result, head, before, parts, outputs):
    called = reference(f"return {result}", head=head, before=before, **parts)
    given = [one.clone() for one in GIVEN[: 2 if parts is PAIR else 1]]
    for _ in range(2):
        made = called(given)
        assert [one.tolist() for one in made] == outputs
        assert [one.dtype for one in made] == [torch.float32, torch.int64][: len(made)]
        made[0].zero_()
        assert all(map(torch.equal, given, GIVEN))


@pytest.mark.parametrize(
    ("body", "parts", "words"),
    [
        ("return x", TWO, ["2 outputs (a, b), got 1 values"]),
        ("return x[:-1]", {}, ["'y'", "[2]", "[3]"]),
        ("return x[:-1]", {"outputs": {"y": "float32[3]"}}, ["'y'", "[2]", "[3]"]),
        ("return x.half()", {}, ["'y'", "float16", "float32"]),
        ("assert x.shape[0] == 7, 'seven'", {}, ["Error: seven", "line 4", "x.shape[0] == 7"]),
        ("import sys\nsys.exit(3)", {}, ["SystemExit"]),
        ("return x", {"head": "def norm(x):"}, ["norm"]),
        ("return x[:, None].expand(-1, 5), torch.zeros(4)", INNER, ["'z'"]),  # an axis that only outputs have
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


def test_writing_in_some_calls_only_is_a_fault_and_in_all_calls_is_undone():
    called, given = reference("y = x * 2\nx.numpy()[0] = 7\nreturn y"), torch.ones(2)  # without torch's knowing
    for _ in range(2):
        assert (called([given])[0].tolist(), given.tolist()) == ([2.0] * 2, [1.0] * 2)
    called = reference("if x[0] > 1:\n    x += 1\nreturn x * 2")
    called([torch.ones(2)])
    with pytest.raises(DefinitionFault, match="writes to x"):
        called([torch.full((2,), 5.0)])


def check(called, size):
    inputs = [torch.ones(size)]
    called.check_repeats(
        inputs, called(inputs), lambda first, second: None if torch.equal(first[0], second[0]) else "odd"
    )


def test_a_reference_that_disagrees_with_itself_is_used_only_if_it_agreed_before():
    never = reference("calls.append(x)\nreturn x * len(calls)", before="calls = []")
    with pytest.raises(DefinitionFault, match="second call with equal inputs gives something else; odd"):
        check(never, 2)
    with pytest.raises(DefinitionFault, match="second call"):
        never([torch.ones(3)])
    assert len(never.run.__globals__["calls"]) == 2
    once = reference("calls.append(x)\nreturn x * (len(calls) if len(x) == 3 else 1)", before="calls = []")
    check(once, 2)
    with pytest.raises(DefinitionFault, match="second call"):
        check(once, 3)
    check(once, 4)


def test_a_reference_has_the_usual_threads_and_they_are_taken_back_if_it_raises(monkeypatch):
    monkeypatch.setattr(threads, "_usual", [3])
    before = torch.get_num_threads()
    assert reference("return x * 0 + torch.get_num_threads()")([torch.ones(1)])[0].tolist() == [3.0]
    with pytest.raises(ZeroDivisionError), threads.usual_threads():
        raise ZeroDivisionError
    assert torch.get_num_threads() == before != 3
