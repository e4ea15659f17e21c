"""Tensors at regular places that are made when they are asked for."""

import numpy as np
import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs.contents import Contents, VariedInput
from flashinfer_bench.bench.evaluators.inputs.targets import Targets, addresses_of, pick
from flashinfer_bench.bench.evaluators.inputs.writer import KernelWriter, TorchWriter
from flashinfer_bench.worker.arena import Slot

SLOT = Slot(256, (4, 8), torch.float32)
STEP = 1024


@pytest.fixture(name="block")
def fixture_block():
    return torch.zeros(16 * STEP, dtype=torch.uint8)


@pytest.fixture(name="targets")
def fixture_targets(block):
    return Targets(SLOT.maker(block, STEP), block.data_ptr() + SLOT.offset, STEP, [7, 0, 3])


def test_they_are_the_tensors_of_their_places_in_order(block, targets):
    usual = SLOT.views(block, 16, STEP)
    assert [one.data_ptr() for one in targets] == [usual[place].data_ptr() for place in (7, 0, 3)]
    assert len(targets) == 3
    assert targets[1].data_ptr() == usual[0].data_ptr()
    assert [one.data_ptr() for one in targets[1:]] == [usual[place].data_ptr() for place in (0, 3)]
    assert targets[2].shape == SLOT.shape


@pytest.mark.parametrize("positions", [[0, 1, 2], [2], [2, 0], []])
def test_addresses_are_those_of_the_tensors_also_of_some(targets, positions):
    some, usual = pick(targets, positions), pick(list(targets), positions)
    assert isinstance(some, Targets)
    assert addresses_of(some).tolist() == [one.data_ptr() for one in usual]
    assert addresses_of(some).dtype == addresses_of(usual).dtype == np.uint64


def test_what_only_wants_addresses_makes_no_tensor(block):
    def refuse(_):
        raise AssertionError("a tensor was made")

    base = torch.randn(SLOT.shape)
    contents = Contents([base], [VariedInput("x", "scaled")], seed=3, base_number=1)
    told = []
    for make in (refuse, SLOT.maker(block, STEP)):
        writer = KernelWriter(torch.device("cpu"), None)
        targets = Targets(make, block.data_ptr() + SLOT.offset, STEP, range(5))
        contents.write_all(range(5), [targets], writer)
        told.append(writer.take_pieces()[0])
    assert np.array_equal(*told)
    assert len(told[0]) == 5


def test_what_is_written_comes_to_their_places(block, targets):
    contents = Contents([torch.randn(SLOT.shape)], [VariedInput("x", "scaled")], seed=3, base_number=5)
    contents.write_all([4, 5, 6], [targets], TorchWriter())
    for target, (made,) in zip(targets, contents.make_all([4, 5, 6]), strict=True):
        assert torch.equal(target, made)
    assert torch.equal(SLOT.views(block, 16, STEP)[0], contents.base[0])
