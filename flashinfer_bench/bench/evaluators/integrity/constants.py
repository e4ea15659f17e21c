"""Outputs that are the same on all usual inputs, such as a count or a flag: such an output may be left out unseen.

These are outputs of whole numbers and bools, and of floats that are one number over and over. On stress inputs one
thing is judged: whether the solution's output differs from the usual one in the elements in which the reference's does.
Numbers near a threshold may differ by rounding, so elements that roundings of the inputs turn are left out, and some
others may be wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch

from flashinfer_bench.bench.evaluators.compare.packed import is_packed
from flashinfer_bench.bench.evaluators.evaluator import JudgedCall
from flashinfer_bench.bench.evaluators.inputs.seeds import derive_seed
from flashinfer_bench.bench.evaluators.integrity.stability import (
    FEWEST_DRAWS,
    MOST_DRAWS,
    PATIENCE_S,
    REGIME_ROUNDING,
    add_rounding,
    call_with_other_ties,
)

FLOAT_CHANGE: Final = 0.01
"""A float counts as changed where it differs by more than this share of what it is on usual inputs."""
LEAST_FLOAT: Final = 1e-12
"""Where that is zero, where it is more than this: a share of very many elements is more, and what some processors take
for zero is less."""
WRONG_SHARE: Final = 0.25
"""Elements that may be wrong, as a share of those that differ from the usual output."""

Constants = Mapping[int, torch.Tensor]
"""Number of an output → what it is on all usual inputs."""


class LeftOut(NamedTuple):
    """An output that stays as it is on usual inputs where the reference's does not."""

    output: int
    wrong: int
    """Elements that differ from the usual ones in one of both only."""
    changed: int
    """Elements of the reference's that differ from the usual ones."""


def find_constants(outputs: Sequence[Sequence[torch.Tensor]]) -> Constants:
    """Return the outputs that are the same in all calls.

    Args:
        outputs: what the reference gave, for each call. Of a single call, an output of whole numbers or bools counts
            that is one number over and over: nothing says that it differs elsewhere. One of floats has to be that in
            several calls.
    """
    calls = list({id(one): one for one in outputs}.values())  # where memory is short, trials share what is expected
    if not calls:
        return {}
    first, *others = calls
    return {
        number: value
        for number, value in enumerate(first)
        if value.numel()
        and (is_whole(value) or (others and value.dtype.is_floating_point and not is_packed(value.dtype)))
        and ((others and is_whole(value)) or _is_one_number(value))
        and all(torch.equal(value, other[number]) for other in others)
    }


def _is_one_number(value: torch.Tensor) -> bool:
    first = value.reshape(-1)[0]
    return bool((value == first).all()) and bool(first.isfinite())


def differs(value: torch.Tensor, usual: torch.Tensor) -> torch.Tensor:
    """Tell of each element whether it differs from what it is on usual inputs; roundings of floats are no difference.

    Args:
        value: of any shape.
        usual: of the same shape and dtype: an output of `find_constants`.
    """
    if is_whole(value):
        return value != usual
    bound = usual.double().abs().mul_(FLOAT_CHANGE).clamp_(min=LEAST_FLOAT)
    return ~((value.double() - usual.double()).abs() <= bound)  # also where it is no number


def is_whole(output: torch.Tensor) -> bool:
    """Tell whether an output is of whole numbers or bools."""
    return not output.dtype.is_floating_point and not output.dtype.is_complex and not is_packed(output.dtype)


def find_left_out(
    constants: Constants,
    call: JudgedCall,
    reference: Callable[[list[Any]], list[torch.Tensor]],
    seed: int,
    now: Callable[[], float] = time.monotonic,
) -> LeftOut | None:
    """Return the first output that was left out in a call; None if there is none.

    Args:
        constants: the outputs, as they are on usual inputs.
        call: on other inputs.
        reference: is called on these with rounding errors before anything is blamed.
        seed: of these errors.
        now: a clock.
    """
    suspects = {}
    for number, usual in constants.items():
        changed = differs(call.expected[number], usual)
        wrong = changed != differs(call.got[number], usual)
        wrong &= differs(call.expected[number], call.got[number])
        suspects[number] = changed, wrong
    start = now()
    for draw in range(MOST_DRAWS + 1):
        suspects = {number: one for number, one in suspects.items() if _is_left_out(*one)}
        if not suspects or draw == MOST_DRAWS or now() - start > PATIENCE_S:
            break
        drawn = derive_seed(seed, "constants", draw)
        found, _ = call_with_other_ties(reference, add_rounding(call.inputs, REGIME_ROUNDING, drawn), drawn)
        for number, (changed, wrong) in suspects.items():
            settled = differs(found[number], constants[number]) == changed
            suspects[number] = changed & settled, wrong & settled
    if not suspects or draw < FEWEST_DRAWS:
        return None
    number, (changed, wrong) = next(iter(suspects.items()))
    return LeftOut(number, int(wrong.sum()), int(changed.sum()))


def _is_left_out(changed: torch.Tensor, wrong: torch.Tensor) -> bool:
    count = int(changed.sum())
    return count > 0 and int(wrong.sum()) > WRONG_SHARE * count
