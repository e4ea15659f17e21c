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

from flashinfer_bench.bench.evaluators.compare.outputs import is_whole
from flashinfer_bench.bench.evaluators.compare.packed import is_packed
from flashinfer_bench.bench.evaluators.evaluator import JudgedCall
from flashinfer_bench.bench.evaluators.integrity.stability import FEWEST_DRAWS, REGIME_ROUNDING, call_rounded

FLOAT_CHANGE: Final = 0.01
"""A float counts as changed if it differs by more than this share of its value on usual inputs."""
LEAST_FLOAT: Final = 1e-12
"""The same for a value of zero: a share of very many elements is more, and what some processors take for zero less."""
WRONG_SHARE: Final = 0.25
"""Elements that may be wrong, as a share of those that differ from the usual output."""

Constants = Mapping[int, torch.Tensor]
"""Number of an output → its value on all usual inputs."""


class LeftOut(NamedTuple):
    """An output that stays as it is on usual inputs though the reference's does not."""

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
    found: dict[int, torch.Tensor] = {}
    for number, value in enumerate(calls[0] if calls else ()):
        whole, others = is_whole(value), [call[number] for call in calls[1:]]
        if not value.numel() or not (whole or (others and not is_packed(value.dtype))):
            continue
        first = value.reshape(-1)[0]
        is_one = bool((value == first).all()) and bool(first.isfinite())
        if (is_one or (whole and others)) and all(torch.equal(value, other) for other in others):
            found[number] = value
    return found


def differs(value: torch.Tensor, usual: torch.Tensor) -> torch.Tensor:
    """Tell of each element whether it differs from its value on usual inputs; roundings of floats are no difference.

    Args:
        value: of any shape.
        usual: of the same shape and dtype: an output of `find_constants`.
    """
    if is_whole(value):
        return value != usual
    bound = usual.double().abs().mul_(FLOAT_CHANGE).clamp_(min=LEAST_FLOAT)
    return ~((value.double() - usual.double()).abs() <= bound)  # also where it is no number


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
    suspects, made = {}, 0
    for number, usual in constants.items():
        changed = differs(call.expected[number], usual)
        wrong = (changed != differs(call.got[number], usual)) & differs(call.expected[number], call.got[number])
        if _is_left_out(changed, wrong):
            suspects[number] = changed, wrong
    for drawn, _ in call_rounded(reference, call.inputs, REGIME_ROUNDING, seed, now) if suspects else ():
        made += 1
        for number, (changed, wrong) in list(suspects.items()):
            settled = differs(drawn[number], constants[number]) == changed
            suspects[number] = changed & settled, wrong & settled
            if not _is_left_out(*suspects[number]):
                del suspects[number]
        if not suspects:
            break
    if made < FEWEST_DRAWS:
        return None
    left = (LeftOut(number, int(wrong.sum()), int(changed.sum())) for number, (changed, wrong) in suspects.items())
    return next(left, None)


def _is_left_out(changed: torch.Tensor, wrong: torch.Tensor) -> bool:
    count = int(changed.sum())
    return count > 0 and int(wrong.sum()) > WRONG_SHARE * count
