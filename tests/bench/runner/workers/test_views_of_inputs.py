"""An output that lies in an input's memory: accepted where the reference's does, else refused."""

import pytest
import torch

from flashinfer_bench.bench.evaluators.reference import Reference
from flashinfer_bench.errors import SolutionFailure
from tests.kit.make import make_definition

pytestmark = pytest.mark.cpu

SOURCES = {
    "the input": "def run(x):\n    return x\n",
    "a view": "def run(x):\n    return x.view(-1)[:]\n",
    "detached": "def run(x):\n    return x.detach()\n",
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_a_view_of_an_input_is_refused_and_told(open_kernel, source):
    with open_kernel(source) as kernel, pytest.raises(SolutionFailure) as failure:
        kernel(torch.rand(4))
    assert failure.value.status == "INCORRECT_NUMERICAL"
    assert "lies in the memory of an input" in failure.value.message


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_a_view_of_an_input_is_accepted_where_the_reference_returns_one(open_kernel, source):
    x = torch.rand(4)
    with open_kernel(source, may_return_inputs=True) as kernel:
        assert torch.equal(kernel(x)[0], x)


def test_a_view_in_timed_calls_alone_is_an_output_that_was_not_written(open_kernel):
    source = "calls = []\ndef run(x):\n    calls.append(1)\n    return x.clone() if len(calls) < 2 else x\n"
    with open_kernel(source) as kernel:
        x = torch.rand(4)
        kernel(x)
        kernel.measure([[x]])
        assert any(not torch.equal(read.outputs[0], read.inputs[0]) for read in kernel.reads[0])


@pytest.mark.parametrize(
    ("body", "does"),
    [("x.t()", True), ("(x.t(),)", True), ("{'y': x[:]}", True), ("x.t().contiguous()", False), ("x * 1", False)],
)
def test_a_reference_tells_whether_it_returns_its_inputs(body, does):
    definition = make_definition(
        axes={"n": 4},
        inputs={"x": "float32[n, n]"},
        outputs={"y": "float32[n, n]"},
        reference=f"def run(x):\n    return {body}\n",
    )
    reference = Reference.compile(definition)
    assert reference.returns_inputs is None
    reference([torch.rand(4, 4)])
    assert reference.returns_inputs is does
