"""Which stress cases a job has, in which order, and which of its inputs they change.

The definition and the workload settle the list: each run tries the same cases. What is secret is where they come among
the calls, and the places and values of each. Only random values that a definition leaves free are changed: no stored
values, no scales, probabilities or decays, whose range means something.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from typing import Final, Literal, NamedTuple

import torch

from flashinfer_bench.bench.evaluators.inputs.make import bind_axes
from flashinfer_bench.bench.evaluators.inputs.random_values import Blank
from flashinfer_bench.bench.evaluators.inputs.rules import FEW_BOOLS, find_flips, has_any_bools, is_free
from flashinfer_bench.bench.evaluators.inputs.seeds import derive_seed
from flashinfer_bench.bench.evaluators.inputs.stress.cases import (
    A_FEW_IN_ONE_ROW,
    A_FEW_VALUES,
    CUBED,
    FAR_LARGER,
    GATES_DOWN,
    GATES_UP,
    LARGE,
    NOT_FINITE,
    ONE_ROW,
    PART_OF_COLUMNS,
    PART_OF_ROWS,
    SHIFTED_ROWS,
    SMALL,
    SOME_GATES,
    SPIKE,
    STRESS_CASES,
    STRETCH,
    ZEROS,
)
from flashinfer_bench.bench.evaluators.inputs.stress.chance import Chance
from flashinfer_bench.bench.evaluators.inputs.stress.looks import INFINITE, NAN, NOTHING, look_at
from flashinfer_bench.bench.evaluators.inputs.stress.supports import Field
from flashinfer_bench.bench.evaluators.inputs.writer import MULTIPLIED
from flashinfer_bench.data import Definition, RandomInput, Workload
from flashinfer_bench.data.dtypes import DTYPES

FEW_NUMBERS: Final = 16
"""An output of fewer elements may be right by chance, so there are more calls of what shows it."""
USUAL: Final = (A_FEW_VALUES, SHIFTED_ROWS, SMALL, LARGE, CUBED)
PARTS: Final = frozenset({PART_OF_COLUMNS, PART_OF_ROWS})
"""These change one of four parts of an input, each call another."""
GATES: Final = frozenset({GATES_UP, GATES_DOWN, SOME_GATES})
"""These change inputs that a sigmoid or softplus is given, where a state is carried from step to step."""
FOR_CONSTANTS_ALONE: Final = frozenset({SPIKE, FAR_LARGER})
"""Floats are not judged in these: float16 has no such numbers between the operations of a kernel."""
MOST_BYTES: Final = 1 << 30
"""Inputs of all these calls, which are kept until they are judged; one call may take more."""
MANY_BYTES: Final = 1 << 28
"""Larger inputs of 8 bits stay as they are: what is worked out of one takes its memory a few times over."""
QUICK_MS: Final = 5.0
SLOW_CALLS: Final = 2
"""On a GPU a reference that takes longer than QUICK_MS is called for so many cases."""
PATIENCE_MS: Final = 1e3
"""Elsewhere it is called as often as takes it no longer together, once at least."""
HAVE_RULES: Final = re.compile(r"gdn|mamba.*")
"""Op types whose gates have rules of their own: what they keep is known to be much."""
RATES: Final = re.compile(r"a_?log|log_?a|dt_bias|(log_?)?decays?(_rates?)?")
"""Names of inputs that say how fast a state forgets: other scales are none of theirs."""
VALUES: Final = {INFINITE: (math.inf, -math.inf), NAN: (math.nan,)}


def why_no_stress(definition: Definition) -> str | None:
    """Say why a definition is judged on usual inputs only; None where it is not.

    Indices and counts have no norm. A float output that depends on a choice has one; rows near a tie are left out.
    """
    is_float = any(DTYPES[spec.dtype].kind == "float" for spec in definition.outputs.values())
    return None if is_float else "none of its outputs is a float"


def has_few_numbers(definition: Definition, workload: Workload) -> bool:
    """Say whether an output of floats has few elements; False also where its shape cannot be told."""
    try:
        shapes = definition.get_output_shapes(workload.axes)
    except (KeyError, ValueError):
        return False
    specs = zip(definition.outputs.values(), shapes, strict=True)
    return any(0 < math.prod(shape or ()) < FEW_NUMBERS for spec, shape in specs if DTYPES[spec.dtype].kind == "float")


Kind = Literal["float", "float8", "bytes", "bools"]


class Free(NamedTuple):
    """An input that stress cases change."""

    name: str
    kind: Kind
    axes: tuple[str, ...]
    groups: int
    """So many groups of its rows follow one another, of each of which one number of an output is made."""


def find_free(definition: Definition, workload: Workload) -> list[Free | None]:
    """Return which inputs of a workload are changed, in the order of the definition; None where one is not.

    Raises:
        WorkloadFault: an axis of the workload has no size.
    """
    axes, shapes = bind_axes(definition, workload)
    found: list[Free | None] = []
    for name, shape in shapes.items():
        is_random = name not in workload.inputs or isinstance(workload.inputs[name], RandomInput)
        kind = None
        if is_random and shape and math.prod(shape) > 0 and RATES.fullmatch(name.lower()) is None:
            kind = _find_kind(Blank(name, definition, shape, axes, {}, 0, torch.device("cpu")))
        named = tuple(definition.inputs[name].shape or ())
        found.append(Free(name, kind, named, _count_groups(definition, workload, named, shape or ())) if kind else None)
    return found


def _find_kind(blank: Blank) -> Kind | None:
    dtype = DTYPES[blank.dtype_name]
    if is_free(blank):
        return "float"
    if has_any_bools(blank):
        return "bools"
    flips = find_flips(blank) if dtype.bits == 8 else 0
    if dtype.kind == "float":
        return "float8" if flips else None
    return "bytes" if flips == 0xFF else None


def _count_groups(definition: Definition, workload: Workload, axes: tuple[str, ...], shape: tuple[int, ...]) -> int:
    """Return of how many groups of an input's rows one number of an output is made each; 1 where there are none."""
    try:
        shapes = definition.get_output_shapes(workload.axes)
    except (KeyError, ValueError):
        return 1
    counts = [1]
    for spec, made in zip(definition.outputs.values(), shapes, strict=True):
        wanted = tuple(spec.shape or ())
        count = math.prod(shape[: len(list(takewhile(wanted.__contains__, axes[:-1])))])
        is_one_each = axes[-1] not in wanted and math.prod(made or ()) == count < math.prod(shape[:-1])
        if DTYPES[spec.dtype].kind == "float" and is_one_each:
            counts.append(count)
    return max(counts)


def _may_join_rows(definition: Definition, free: Free) -> bool:
    """Tell whether rows of an input may come together in one number: an output does not have their axis.

    Statistics of bytes are those of whole images, also where each pixel has a number of the output.
    """
    if len(free.axes) < 2:
        return False
    outputs = [spec.shape or () for spec in definition.outputs.values() if DTYPES[spec.dtype].kind == "float"]
    return free.kind in {"bytes", "bools"} or any(free.axes[-2] not in shape for shape in outputs)


def count_affordable(latency_ms: float | None, device_type: str) -> int | None:
    """Return for how many cases a reference is called; None where it is quick enough for all.

    Args:
        latency_ms: what one call of it takes; None where it was not timed.
        device_type: "cuda" or "cpu".
    """
    if latency_ms is None:
        return None
    if device_type == "cuda":
        return SLOW_CALLS if latency_ms > QUICK_MS else None
    return max(1, int(PATIENCE_MS / max(latency_ms, 1e-3)))


class StressPlan:
    """The stress cases of one job.

    Args:
        definition: what is computed.
        workload: says which inputs are random.
        seed: of the job; nobody outside the judge knows it while the job is judged.
        has_constants: whether outputs that are the same on all usual inputs are tried on others, too.
        most: so many calls at most; None for all.
    """

    def __init__(
        self,
        definition: Definition,
        workload: Workload,
        seed: int,
        *,
        has_constants: bool = False,
        most: int | None = None,
    ) -> None:
        self._seed = derive_seed(seed, "stress")
        self._settled = derive_seed(0, "stress", definition.name, workload.uuid)
        self.free = find_free(definition, workload)
        """Which inputs are changed, in the order of the definition."""
        self._looks = look_at(definition.reference or "") or NOTHING
        self._calls_of: Counter[str] = Counter()
        self._has_constants = has_constants
        self._counts = self._count(definition, has_few_numbers(definition, workload))
        _, shapes = bind_axes(definition, workload)
        specs = zip(definition.inputs.values(), shapes.values(), strict=True)
        size = sum(math.prod(shape or ()) * DTYPES[spec.dtype].bits // 8 for spec, shape in specs)
        self._most = max(1, MOST_BYTES // max(size, 1))
        self._most = self._most if most is None else min(self._most, most)

    def _count(self, definition: Definition, has_few_numbers: bool) -> dict[str, int]:
        """Return how many calls each case has in a job.

        Of what differs in a small part there are more: a look at some elements sees nothing of it in some calls.
        """
        free = [one for one in self.free if one is not None]
        counts: Counter[str] = Counter(dict.fromkeys(USUAL, 1))
        if not free:
            return {}
        has_groups = any(one.groups >= FEW_NUMBERS for one in free)
        counts[PART_OF_COLUMNS] += 6
        counts[PART_OF_ROWS] += 6 * any(_may_join_rows(definition, one) for one in free)
        if any(one.kind == "float" for one in free):
            counts += Counter({A_FEW_IN_ONE_ROW: 3, STRETCH: 6})
        counts[ZEROS] += 3 * self._looks.looks_for_zeros
        counts[NOT_FINITE] += 9 * bool(self._looks.not_finite)
        counts[ONE_ROW] += 9 if has_few_numbers else 3 * has_groups
        counts[SMALL] += 9 * has_few_numbers
        if any(map(self._is_gate, free)) and HAVE_RULES.fullmatch(definition.op_type.replace("-", "_")) is None:
            counts += Counter({GATES_UP: 3, GATES_DOWN: 3, SOME_GATES: 12})
        if self._has_constants:
            counts += Counter({SPIKE: 12, FAR_LARGER: 3, SHIFTED_ROWS: 3})
        return dict(+counts)

    @property
    def names(self) -> list[str]:
        """All cases that the job may have."""
        return list(self._counts)

    @property
    def calls(self) -> list[str]:
        """The case of each call of the job, in the order in which they come, as many as there is room and time for.

        One of each case comes before others of it, and strong ones sooner.
        """
        chance = random.Random(self._settled)
        keys = {name: chance.expovariate(STRESS_CASES[name].strength) for name in self._counts}
        found = [(again, keys[name], name) for name, count in self._counts.items() for again in range(count)]
        return [name for _, _, name in sorted(found)][: self._most]

    def change(self, name: str, number: int, values: Sequence[torch.Tensor | None]) -> None:
        """Turn usual inputs of a call into those of a case, in place.

        Args:
            name: of the case.
            number: of the call.
            values: its inputs, in the order of the definition; None for one that is no tensor.
        """
        self._calls_of[name] += 1
        for index, (free, value) in enumerate(zip(self.free, values, strict=True)):
            if free is None or value is None or not self._concerns(name, free) or self._is_too_large(free, value):
                continue
            wide = value.float() if free.kind == "float8" else value
            STRESS_CASES[name].change(self._open(name, number, index, free, wide))
            if free.kind == "bools" and self._looks.tells_of_empty_rows and name in (SHIFTED_ROWS, CUBED):
                rows = value.view(-1, value.shape[-1])
                if len(rows) > 1:
                    rows[Chance(derive_seed(self._seed, name, number), value.device).below(len(rows))] = False
            if wide is not value:
                largest = torch.finfo(value.dtype).max
                value.copy_(wide.clamp_(-largest, largest))

    def _is_too_large(self, free: Free, value: torch.Tensor) -> bool:
        if free.kind == "float":
            return value.dtype not in MULTIPLIED
        return value.nbytes > MANY_BYTES or (free.kind == "bools" and value.numel() < FEW_BOOLS)

    def _open(self, name: str, number: int, index: int, free: Free, values: torch.Tensor) -> Field:
        def draw(*names: str | int) -> Chance:
            return Chance(partial(derive_seed, self._seed, name, number, *names), values.device)

        first = derive_seed(self._seed, "part", name, free.name) % 4 if name in PARTS else 0
        return Field(
            values,
            draw(index),
            draw("places", *free.axes[-1:]),
            draw("places", *free.axes[:-1]),
            groups=free.groups,
            part=first ^ (self._calls_of[name] - 1) % 4,
            not_finite=tuple(value for kind in sorted(self._looks.not_finite or VALUES) for value in VALUES[kind]),
        )

    def _concerns(self, name: str, free: Free) -> bool:
        """Tell whether a case changes an input."""
        if name in GATES:
            return self._is_gate(free)
        guarded = self._looks.guarded & {one.name for one in self.free if one is not None}
        return name != NOT_FINITE or not guarded or free.name in guarded

    def _is_gate(self, free: Free) -> bool:
        return free.kind == "float" and free.name in self._looks.gates
