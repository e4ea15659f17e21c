"""Finds ill-conditioned rows of an output: the reference itself returns other rows when its inputs are rounded.

A token near a tie is sent to another expert; a softmax of large numbers is all or nothing. No rule may blame a solution
for such rows. To find them, the reference is called on inputs with random rounding errors. Its choices among equal
values are made in another order. This is done only if a rule is about to reject.
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
"""Calls of the reference, at most. A row at the edge of a bfloat16's rounding is missed in one of 1,000 cases."""
FEWEST_DRAWS: Final = 4
TIME_LIMIT_S: Final = 30.0
"""Seconds for these calls. If a reference is so slow that there are fewer than FEWEST_DRAWS, no row is blamed."""
MOST_OF_SIGMOID: Final = 0.1
"""Largest share by which a number is moved for the error of sigmoids."""
FLOAT8: Final = (torch.float8_e4m3fn, torch.float8_e5m2)
REORDERED_SHARE: Final = 0.25
"""A row depends on the order of equal values if another order moves it by more than this share of its limit."""
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
"""Operations that return the indices of their choices → position of the dimension among the arguments, and its default.
Others, such as argsort, are made of these."""
MEMORY_SHARE: Final = 4
"""Inputs are rounded, the smallest first, while they fit into the device's free memory divided by this."""


Reference = Callable[[list[Any]], list[torch.Tensor]]


@dataclass(frozen=True)
class Rounding:
    """The rounding of inputs, and its effect that is tolerated."""

    size: float
    """Standard deviation of the errors that are added, as a share of each number."""
    moved_share: float
    """A row is ill-conditioned if it moves by more than this share of its allowed error."""
    judges_small: bool = False
    """Whether outputs too small for rows are judged by norms, too."""
    slack: float = math.inf
    """A row with an error of more than this many times its change under rounding is judged, ill-conditioned or not."""
    of_sigmoid: float = 0.0
    """Error of sigmoids: numbers are moved by the change that it causes."""


USUAL_ROUNDING: Final = Rounding(2.0**-7, 0.25)
"""Twice a unit in the last position of bfloat16. If a solution's own rounding, of a bfloat16's size at most, changes a
choice, one of the draws changes it too. Kernels that round four times as coarsely stay within the limit on
well-conditioned rows."""
STRESS_SLACK: Final = 16.0
"""Slack on stress inputs. If the square of an operand depends on another operand, errors of a twentieth move all rows.
A solution that skips work there exceeds this slack, and kernels of scaled fp8 stay below it."""
STRESS_ROUNDING: Final = Rounding(0.05, 1.0, judges_small=True, slack=STRESS_SLACK)
"""On inputs of stress cases: twice the errors of fp8. There softmax and gates may be all or nothing, and solutions that
round their operands to fp8 are right, too. A product of two inputs stays well-conditioned."""
LOUD_ROUNDING: Final = Rounding(0.05, 1.0, judges_small=True, slack=4.0)
"""For cases in which a few values of one row dominate all others: sixteen draws may move a result of one of them by an
eighth."""
GATE_ROUNDING: Final = Rounding(2.0**-7, 1.0, judges_small=True, of_sigmoid=5e-4)
"""For cases in which gates are nearly open or shut. A solution with gates in fp8 would be wrong there, and no kernel
does that. With STRESS_ROUNDING, no row that depends on hundreds of steps would be well-conditioned. A GPU's own `tanh`
makes sigmoids that are off by half of `of_sigmoid`."""


@dataclass
class Stability:
    """The effect of rounding on the reference for the inputs of one call.

    Args:
        reference: takes inputs and returns outputs.
        inputs: of the call, in the order of the definition.
        expected: the reference's outputs for them.
        seed: of the rounding errors.
        rounding: their size.
    """

    reference: Reference
    inputs: Sequence[Any]
    expected: Sequence[torch.Tensor]
    seed: int
    rounding: Rounding = USUAL_ROUNDING
    _moved: list[list[Norms | None]] = field(default_factory=list)
    """For each draw, the changes of the rows of each output."""
    _reordered: list[list[Norms | None]] = field(default_factory=list)
    """The same with only the order of equal values changed; empty without choices."""

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
            output: number of the output.
            limit: the allowed error of a row.
            suspects: bool [rows]: rows about to be blamed.
            shares: errors of the rows, as shares of their norms. A suspect with an error of more than `slack` times its
                change under rounding is judged, ill-conditioned or not. None disables this.
            left_out: bool [rows]: rows that are not compared with small rows; None for none.
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
        # If rows tie with one another, draws take some of them and a solution others. By Good and Turing's estimate,
        # these are at most the number of rows that moved in one draw alone.
        if int((suspects & ~ill_conditioned).sum()) <= int((reordered == 1).sum()):
            ill_conditioned |= suspects
        return ill_conditioned & ~is_beyond


def call_rounded(
    reference: Reference, inputs: Sequence[Any], rounding: Rounding, seed: int
) -> Iterator[tuple[list[torch.Tensor], list[torch.Tensor] | None]]:
    """Yield a reference's outputs for inputs with random rounding errors, MOST_DRAWS times within PATIENCE_S.

    Equal values are taken in another order. If the reference makes choices, its outputs for the unchanged inputs in
    that order are included.
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
    """While it is on, operations of torch that choose take another of equal values: saturated scores often tie.

    Args:
        seed: of the order of equal values. A stable sort keeps its promised order.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # likewise
        self.has_chosen = False
        """Whether anything was chosen."""
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call an operation; call a choosing operation on its elements in another order."""
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

    Compiled code and operations of higher order do not run under such a mode; they are called without it.
    """
    ties = OtherTies(seed)
    try:
        with ties:
            return reference(inputs), ties.has_chosen
    except (Fault, RuntimeError):
        return reference(inputs), False


def add_rounding(inputs: Sequence[Any], rounding: Rounding, seed: int) -> list[Any]:
    """Return inputs whose float tensors have random errors; a tensor of 8 bits gets neighbouring values.

    Small tensors come first: rounded copies may take a share of the free memory.
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
