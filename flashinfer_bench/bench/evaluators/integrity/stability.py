"""Finds ill-conditioned rows of an output: rows that change in the reference's own output if its inputs are rounded.

For example, a token near a tie is sent to another expert, or the largest element of a softmax of large numbers changes.
No rule may reject a solution because of such rows. To find them, the reference is called on inputs with random rounding
errors. A choice among equal values is also made in a different order. These calls are made only if a rule is about to
reject an output.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flashinfer_bench.bench.evaluators.inputs.memory import free_bytes
from flashinfer_bench.bench.evaluators.inputs.seeds import derive_seed, make_generator
from flashinfer_bench.bench.evaluators.inputs.writer import MULTIPLIED
from flashinfer_bench.bench.evaluators.integrity.norms import Norms, measure_norms
from flashinfer_bench.errors import Fault

MOST_DRAWS: Final = 16
"""Maximum number of draws: calls of the reference on rounded inputs. A row that rounding to bfloat16 can barely change
is missed in one of 1,000 cases."""
FEWEST_DRAWS: Final = 4
TIME_LIMIT_S: Final = 30.0
"""Seconds after which no more draws are made. If the reference is so slow that there are fewer than FEWEST_DRAWS draws,
no row is rejected."""
MOST_OF_SIGMOID: Final = 0.1
"""The errors that `of_sigmoid` adds have a standard deviation of at most this share of each number."""
FLOAT8: Final = (torch.float8_e4m3fn, torch.float8_e5m2)
REORDERED_SHARE: Final = 0.25
"""A row is ill-conditioned if a different order of equal values changes it by more than this share of its allowed
error."""
_ATEN: Final = torch.ops.aten
CHOOSING: Final = {
    _ATEN.topk.default: (2, -1),
    _ATEN.sort.default: (1, -1),
    _ATEN.sort.stable: (1, -1),
    _ATEN.kthvalue.default: (2, -1),
    _ATEN.median.dim: (1, -1),
    _ATEN.nanmedian.dim: (1, -1),
    _ATEN.max.dim: (1, -1),
    _ATEN.min.dim: (1, -1),
    _ATEN.argmax.default: (1, None),
    _ATEN.argmin.default: (1, None),
}
"""Operation that returns the indices of chosen elements → position of its `dim` argument, and the default of `dim`.
Operations that are not listed here, such as argsort, call listed operations."""
MEMORY_SHARE: Final = 4
"""The rounded copies of inputs may take 1/MEMORY_SHARE of the device's free memory. The smallest inputs are rounded
first."""


Reference = Callable[[list[Any]], list[torch.Tensor]]


@dataclass(frozen=True)
class Rounding:
    """How inputs are rounded, and when a row counts as ill-conditioned."""

    size: float
    """Standard deviation of the added errors, as a share of each number."""
    moved_share: float
    """A row is ill-conditioned if rounding changes it by more than this share of its allowed error."""
    judges_small: bool = False
    """Whether norms also judge outputs that are too small to be judged by rows."""
    slack: float = math.inf
    """An ill-conditioned row is judged if its error is more than this many times its change under rounding."""
    of_sigmoid: float = 0.0
    """Absolute error of a sigmoid. Each number gets an additional error that changes its sigmoid by about this much."""


USUAL_ROUNDING: Final = Rounding(2.0**-7, 0.25)
"""The size is twice the unit roundoff of bfloat16. If rounding to bfloat16 changes a choice of a solution, one of the
draws changes this choice, too. On well-conditioned rows, even kernels with four times bfloat16's rounding errors stay
within the limit."""
STRESS_SLACK: Final = 16.0
"""Slack on stress inputs, in multiples of a row's change under rounding. In some definitions, rounding changes all
rows. Solutions of such definitions exceed this slack if they skip work, but not if they compute in scaled fp8."""
STRESS_ROUNDING: Final = Rounding(0.05, 1.0, judges_small=True, slack=STRESS_SLACK)
"""For inputs of stress cases. The size is twice the rounding error of fp8, because solutions may round their operands
to fp8. Softmax or gates may then switch between 0 and 1. A product of two inputs stays well-conditioned."""
LOUD_ROUNDING: Final = Rounding(0.05, 1.0, judges_small=True, slack=4.0)
"""For cases in which a few values of one row dominate all others. Sixteen draws may change a result of a single
dominant value by an eighth, so a slack of 4 allows an error of a half."""
GATE_ROUNDING: Final = Rounding(2.0**-7, 1.0, judges_small=True, of_sigmoid=5e-4)
"""For cases in which gates are nearly open or shut. Gates computed in fp8 would be wrong, so no right kernel computes
them in fp8. Therefore the rounding is smaller than in STRESS_ROUNDING. With STRESS_ROUNDING, every row that depends on
hundreds of steps would be ill-conditioned. Sigmoids that use a GPU's `tanh` instruction have an error of half of
`of_sigmoid`."""


@dataclass
class Stability:
    """How much the reference's outputs for one call change if the inputs are rounded.

    Args:
        reference: takes inputs and returns outputs.
        inputs: inputs of the call, in the order of the definition.
        expected: the reference's outputs for the inputs.
        seed: seed of the rounding errors.
        rounding: size of the errors, and the limits for rows.
    """

    reference: Reference
    inputs: Sequence[Any]
    expected: Sequence[torch.Tensor]
    seed: int
    rounding: Rounding = USUAL_ROUNDING
    _moved: list[list[Norms | None]] = field(default_factory=list)
    """For each draw and each output, the norms of the rows' changes."""
    _reordered: list[list[Norms | None]] = field(default_factory=list)
    """Like `_moved`, for draws that change only the order of equal values; empty if the reference makes no choices."""

    def __post_init__(self) -> None:
        """Prepare the draws."""
        self._draws = call_rounded(self.reference, self.inputs, self.rounding, self.seed)

    def find_ill_conditioned(
        self,
        output: int,
        limit: float,
        suspects: torch.Tensor,
        shares: torch.Tensor | None = None,
        left_out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return which rows [rows] of an output are ill-conditioned, and so are not judged.

        Draws are made until all suspects are ill-conditioned, or no draw is left.

        Args:
            output: index of the output.
            limit: the allowed error of a row.
            suspects: bool [rows]: rows that are about to be rejected.
            shares: errors of the rows, as shares of their norms. An ill-conditioned suspect is judged if its error is
                more than `slack` times its change under rounding. None: `slack` is not applied.
            left_out: bool [rows]: rows that the norm of a usual row leaves out; None to use all rows.
        """

        def far(draws: list[list[Norms | None]]) -> torch.Tensor:
            result = [one.shares(left_out) for norms in draws if (one := norms[output]) is not None]
            return torch.stack([torch.zeros_like(suspects, dtype=torch.float64), *result])

        while True:
            reordered = (far(self._reordered) > REORDERED_SHARE * limit).sum(dim=0)
            moved = far(self._moved).amax(dim=0)
            ill_conditioned = (reordered > 0) | (moved > self.rounding.moved_share * limit)
            is_beyond = torch.zeros_like(suspects)
            if shares is not None and self._moved and not bool(reordered.any()):
                is_beyond = suspects & (shares > self.rounding.slack * moved)
            if self._moved and not bool(((suspects & ~ill_conditioned) | is_beyond).any()):
                return ill_conditioned
            drawn = next(self._draws, None)
            if drawn is None:
                break
            for outputs, draws in zip(drawn, (self._moved, self._reordered), strict=True):
                if outputs is not None:
                    draws.append(list(map(measure_norms, self.expected, outputs)))
        if len(self._moved) < FEWEST_DRAWS:
            return torch.ones_like(suspects)
        # If rows tie with one another, a solution may choose rows that no draw chose. The number of such rows is
        # estimated by the number of rows that changed in exactly one draw (Good-Turing).
        if int((suspects & ~ill_conditioned).sum()) <= int((reordered == 1).sum()):
            ill_conditioned |= suspects
        return ill_conditioned & ~is_beyond


def call_rounded(
    reference: Reference, inputs: Sequence[Any], rounding: Rounding, seed: int
) -> Iterator[tuple[list[torch.Tensor], list[torch.Tensor] | None]]:
    """Yield a reference's outputs for inputs with random rounding errors, at most MOST_DRAWS times within TIME_LIMIT_S.

    Each draw also changes the order of equal values. The second item has the outputs for unchanged inputs in this order
    of equal values; it is None if the reference makes no choices.
    """
    spent_s = 0.0
    for draw in range(MOST_DRAWS):
        start, drawn = time.monotonic(), derive_seed(seed, draw)
        outputs, has_chosen = call_with_other_ties(reference, add_rounding(inputs, rounding, drawn), drawn)
        reordered = call_with_other_ties(reference, list(inputs), drawn)[0] if has_chosen else None
        spent_s += time.monotonic() - start
        yield outputs, reordered
        if spent_s > TIME_LIMIT_S:
            return


class OtherTies(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch has no types for it
    """A torch mode in which the operations of `CHOOSING` make different choices among equal values. Saturated scores
    often tie.

    Args:
        seed: seed of the order of equal values. A stable sort keeps its guaranteed order.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # likewise
        self.has_chosen = False
        """Whether any operation of `CHOOSING` was called."""
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call an operation. A choosing operation gets its elements in a different order."""
        del types
        given = dict(kwargs or {})
        if func not in CHOOSING or given.get("stable") or not args[0].dim():
            return func(*args, **given)
        self.has_chosen = True
        position, default = CHOOSING[func]
        dim = args[position] if len(args) > position else given.get("dim", default)
        values, along = (args[0].reshape(-1), 0) if dim is None else (args[0], dim)
        order = torch.randperm(values.shape[along], generator=self._generator).to(values.device)
        result = func(values.index_select(along, order), *args[1:], **given)
        if isinstance(result, tuple):
            return result[0], order[result[1]]
        return order[result] if dim is not None or not result.dim() else order[result].view([1] * args[0].dim())


def call_with_other_ties(reference: Reference, inputs: list[Any], seed: int) -> tuple[list[torch.Tensor], bool]:
    """Call a reference under `OtherTies`; return its outputs, and whether it made a choice.

    Compiled code and higher-order operations fail under this mode. The reference is then called without the mode.
    """
    ties = OtherTies(seed)
    try:
        with ties:
            return reference(inputs), ties.has_chosen
    except (Fault, RuntimeError):
        return reference(inputs), False


def add_rounding(inputs: Sequence[Any], rounding: Rounding, seed: int) -> list[Any]:
    """Return inputs whose float tensors have random errors; float8 tensors get neighbouring values.

    Small tensors are rounded first. Tensors stay unchanged once the allowed share of free memory is used up.
    """
    rounded = list(inputs)
    known = (*MULTIPLIED, *FLOAT8)
    tensors = [(at, one) for at, one in enumerate(inputs) if isinstance(one, torch.Tensor) and one.dtype in known]
    room = free_bytes(tensors[0][1].device) // MEMORY_SHARE if tensors else 0
    for at, value in sorted(tensors, key=lambda pair: pair[1].numel()):
        is_wide = value.dtype in MULTIPLIED
        room -= (2 if is_wide else 10) * value.nbytes
        if room < 0:
            break
        generator = make_generator(seed, "rounding", at, device=value.device)
        wide = value if is_wide else value.float()
        made = torch.empty_like(wide).normal_(1.0, rounding.size, generator=generator).mul_(wide)
        if rounding.of_sigmoid:
            moved = (wide.abs().exp_() * rounding.of_sigmoid).minimum(wide.abs() * MOST_OF_SIGMOID)
            made += torch.empty_like(wide).normal_(generator=generator) * moved
        largest = torch.finfo(value.dtype).max
        rounded[at] = made if is_wide else made.clamp_(-largest, largest).to(value.dtype)
    return rounded
