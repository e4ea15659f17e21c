"""What is seen of a call's outputs once it is told as over."""

import numpy as np
import pytest
import torch

from flashinfer_bench.bench.runner.workers.timed.glances import (
    GLANCED_WORDS,
    WHOLE_BYTES,
    WORD,
    OutputGlances,
    choose_words,
)

pytestmark = pytest.mark.cpu
CALLS = 9
SIZES = {"small": [(0, 64)], "whole": [(0, WHOLE_BYTES)], "large": [(0, 1 << 16)], "two": [(0, 1 << 16), (1 << 16, 4)]}


def make_rows(outputs, gap=512):
    begin, size = outputs[-1]
    row = -(-(begin + size) // 256) * 256
    return torch.randint(0, 255, (CALLS, row + gap), dtype=torch.uint8)[:, :row]


@pytest.mark.parametrize("outputs", SIZES.values(), ids=SIZES)
def test_outputs_that_were_there_in_time_are_as_seen(outputs):
    rows = make_rows(outputs)
    seen = OutputGlances(rows, outputs)
    for call in range(CALLS):
        seen.look(call)
    assert seen.copy_if_as_seen() is not None


@pytest.mark.parametrize("outputs", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("late", range(2))
def test_an_output_that_is_written_late_is_found(outputs, late):
    """Each output alone, also a small one beside a large one."""
    rows = make_rows(outputs)
    begin, size = outputs[late % len(outputs)]
    in_time = rows[4, begin : begin + size].clone()
    rows[4, begin : begin + size] = 0xFF
    seen = OutputGlances(rows, outputs)
    for call in range(CALLS):
        seen.look(call)
    rows[4, begin : begin + size] = in_time
    assert seen.copy_if_as_seen() is None


def test_a_call_that_was_not_looked_at_is_not_as_seen():
    rows = make_rows(SIZES["large"])
    seen = OutputGlances(rows, SIZES["large"])
    for call in range(CALLS - 1):
        seen.look(call)
    assert seen.copy_if_as_seen() is None


def test_the_words_that_are_looked_at_are_others_each_time_and_lie_in_their_outputs():
    outputs = [(0, 1 << 16), (1 << 16, 1 << 16)]
    rng = np.random.default_rng()
    chosen = [sorted(choose_words(outputs, rng).tolist()) for _ in range(CALLS)]
    assert len({tuple(at) for at in chosen}) == CALLS
    assert all(len(at) == 2 * GLANCED_WORDS and at[-1] * WORD < 1 << 17 for at in chosen)
    assert all(sum(word * WORD < 1 << 16 for word in at) == GLANCED_WORDS for at in chosen)


@pytest.mark.parametrize("outputs", SIZES.values(), ids=SIZES)
def test_an_output_that_is_written_ahead_is_found(outputs):
    rows = make_rows(outputs)
    seen = OutputGlances(rows, outputs)
    seen.look_ahead(0)
    assert not seen.were_written_ahead()
    rows[2] += 1
    seen.look_ahead(1)
    assert not seen.were_written_ahead()
    seen.look_ahead(2)
    assert seen.were_written_ahead()
