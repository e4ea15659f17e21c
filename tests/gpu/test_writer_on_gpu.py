"""Our kernel writes on a GPU what torch writes there, and the inputs of a call are the same each time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs.contents import Contents, VariedInput
from flashinfer_bench.bench.evaluators.inputs.writer import (
    DRAWN,
    MULTIPLIED,
    KernelWriter,
    TorchWriter,
    draw_example,
    find_kernel,
    looks_drawn,
    open_writer,
    write_example,
)
from tests.kit.philox import draw_normal

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


@pytest.mark.parametrize("dtype", [*DRAWN])
def test_the_kernel_draws_normal_values_by_key_and_place(dtype):
    """Held against the numbers that the tests of the kernel's source hold it against on a CPU."""
    launch = find_kernel(DEVICE)
    assert looks_drawn(draw_example(dtype, launch, DEVICE))
    drawn = torch.zeros(70_003, dtype=dtype, device=DEVICE)
    writer = KernelWriter(DEVICE, launch)
    writer.draw_rows([drawn[:70_001]], np.array([2**62 + 12_345], np.uint64), 0.5)
    writer.finish()
    assert not drawn[70_001:].any()
    expected = torch.tensor(draw_normal(2**62 + 12_345, 70_001, 0.5), dtype=torch.float64)
    torch.testing.assert_close(drawn[:70_001].cpu().double(), expected, rtol=1e-2, atol=1e-5)


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
