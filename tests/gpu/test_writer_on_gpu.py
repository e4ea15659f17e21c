"""Our kernel writes on a GPU what torch writes there, and the inputs of a call are the same each time."""

from __future__ import annotations

import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs.contents import Contents, VariedInput
from flashinfer_bench.bench.evaluators.inputs.writer import (
    MULTIPLIED,
    KernelWriter,
    TorchWriter,
    find_kernel,
    open_writer,
    write_example,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
DEVICE = torch.device("cuda", 0)


@pytest.mark.parametrize("dtype", [*MULTIPLIED, torch.uint8, torch.int64, torch.bool])
def test_the_kernel_writes_what_torch_writes(dtype):
    launch = find_kernel(DEVICE)
    assert launch is not None
    by_torch, by_kernel = write_example(dtype, launch, DEVICE)
    assert by_torch.any()
    assert torch.equal(by_torch, by_kernel)


@pytest.mark.parametrize("count", [1, 7, 4_095, 1 << 20, (1 << 22) + 3])
def test_sizes_and_places_of_all_kinds(count):
    assert isinstance(open_writer(DEVICE), KernelWriter)
    value = torch.randn(count, device=DEVICE).bfloat16()
    contents = [
        Contents([value, value.view(1, -1).mT], [VariedInput("x", "scaled"), VariedInput("y", "rolled")], 3, -1)
    ]
    made = contents[0].make(5)
    again = contents[0].make(5)
    assert all(torch.equal(one, other) for one, other in zip(made, again, strict=True))
    by_torch = [torch.empty_like(one) for one in made]
    contents[0].write_all([5], [by_torch], TorchWriter())
    assert all(torch.equal(one, other) for one, other in zip(made, by_torch, strict=True))
