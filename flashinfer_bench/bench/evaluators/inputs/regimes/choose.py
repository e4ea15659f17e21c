"""Inputs of other regimes, which a few calls of a job get in secret. They serve correctness, never the latency.

Usual inputs are normal values around zero, near one. There x passes for 30 tanh(x / 30), rows need no normalisation, a
part of a row tells the size of all of it, and a mean is nothing. In another regime these are wrong. Only random values
that a definition leaves free are changed: no stored values, no scales, probabilities or decays, whose range means
something. `values.py` says how floats look then, `narrow.py` how bytes and bools do.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Sequence
from itertools import takewhile
from typing import Final, Literal, NamedTuple

import torch

from flashinfer_bench.bench.evaluators.inputs.make import bind_axes
from flashinfer_bench.bench.evaluators.inputs.random_values import Blank
from flashinfer_bench.bench.evaluators.inputs.regimes.chance import Chance
from flashinfer_bench.bench.evaluators.inputs.regimes.looks import NOTHING, look_at
from flashinfer_bench.bench.evaluators.inputs.regimes.narrow import MANY_BYTES, change_bools, change_bytes
from flashinfer_bench.bench.evaluators.inputs.regimes.order import put_in_order
from flashinfer_bench.bench.evaluators.inputs.regimes.parts import FEW_GATES, PART_OF_COLUMNS, PART_OF_ROWS, STRETCH
from flashinfer_bench.bench.evaluators.inputs.regimes.values import REGIMES, Shared
from flashinfer_bench.bench.evaluators.inputs.rules import find_flips, has_any_bools, is_free
from flashinfer_bench.bench.evaluators.inputs.seeds import derive_seed
from flashinfer_bench.bench.evaluators.inputs.writer import MULTIPLIED
from flashinfer_bench.data import Definition, RandomInput, Workload
from flashinfer_bench.data.dtypes import DTYPES

IN_ALL_JOBS: Final = ("few_large", "offset", "smaller")
"""These come in every job; a job of three trials has the others, too."""
OTHERS: Final = ("larger", "heavy_tails")
MORE_IN_LAST: Final = len(IN_ALL_JOBS) + len(OTHERS) - 3
"""The last trial has so many more than one."""
FEW_NUMBERS: Final = 16
"""An output of fewer elements may be right by chance on inputs of a regime: of a single number, who looks at half of a
row is off by no more than roundings may move it in 45 of 100 calls."""
MORE_CALLS: Final = 3
"""So there each trial has so many more calls of these regimes."""
FOR_FEW_NUMBERS: Final = ("smaller", "one_row")
FOR_CONSTANTS: Final = ("spike", "far", "offset")
"""Each trial has more calls of these where an output is the same on all usual inputs: the only ones that may change it
are strong, and often rare."""
SPIKE_CALLS: Final = 12
"""Calls of the first of these in a job, at least: who looks at half of an input misses what one of them shows in all of
them once in 4,000 jobs, where that counts with either sign."""
MOST_BYTES: Final = 1 << 30
"""Inputs of the calls that a trial has more for that are kept until they are judged. Of larger ones there are fewer
calls, one at least."""
NONFINITE: Final = "nonfinite"
NONFINITE_CALLS: Final = 3
"""Each trial has so many: who looks at half of an input passes in one of 500 jobs of three trials."""
ZEROS: Final = "zeros"
GATES: Final = ("gates", "other_gates", FEW_GATES)
"""These come only where the reference says that they matter: it looks for such values, or keeps a state by gates."""
FEW_GATES_CALLS: Final = 4
"""Each trial has so many: who looks at one gate of eight sees nothing of a quarter of them."""
ONE_ROW: Final = "one_row"
FEWEST_LARGE: Final = "fewest_large"
FOR_FLOATS: Final = (FEWEST_LARGE, STRETCH, STRETCH)
"""Each trial has these where an input of floats is changed: who looks at a fourth of its elements, evenly, sees nothing
of half of the calls of `stretch`."""
PARTS: Final = frozenset({PART_OF_COLUMNS, PART_OF_ROWS, STRETCH})
"""Of large inputs no calls are kept for these."""
PART_CALLS: Final = 2
"""Each trial has so many calls in which a part differs: who looks at a fixed part sees nothing of half of them."""
FOR_CONSTANTS_ALONE: Final = frozenset({"spike", "far"})
"""Floats are not judged in these: kernels that round to float16 have no such numbers between their operations."""
HAVE_RULES: Final = re.compile(r"gdn|mamba.*")
"""Op types whose gates have rules of their own: what they keep is known to be much."""
RATES: Final = re.compile(r"a_?log|log_?a|dt_bias|(log_?)?decays?(_rates?)?")
"""Names of inputs that say how fast a state forgets: twenty times as much, or a third power, is none of theirs."""


def why_no_regimes(definition: Definition) -> str | None:
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
    """An input that regimes change."""

    name: str
    kind: Kind
    axes: tuple[str, ...]
    groups: int
    """So many groups of its rows follow one another, of each of which one number of an output is made."""


def find_free(definition: Definition, workload: Workload) -> list[Free | None]:
    """Return which inputs of a workload are changed by regimes, in the order of the definition; None where one is not.

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


def leave_out_repeats(names: list[str], most: int) -> list[str]:
    """Return each name once, and again as often as it comes while there are no more than so many.

    Where there is no room for all, those of which a part differs are left out.
    """
    once = list(dict.fromkeys(names))
    if len(once) > most:
        return [name for name in once if name not in PARTS]
    again = list((Counter(names) - Counter(once)).elements())
    return once + again[: max(0, most - len(once))]


class Regimes:
    """The regimes of one job.

    Args:
        definition: what is computed.
        workload: says which inputs are random.
        seed: of the job; nobody outside the judge knows it while the job is judged.
        has_constants: whether outputs that are the same on all usual inputs are tried on others, too.
    """

    def __init__(self, definition: Definition, workload: Workload, seed: int, *, has_constants: bool = False) -> None:
        self._seed = derive_seed(seed, "regimes")
        self.free = find_free(definition, workload)
        """Which inputs are changed, in the order of the definition."""
        self._looks = look_at(definition.reference or "") or NOTHING
        self._for_few = [*FOR_FEW_NUMBERS] * (MORE_CALLS if has_few_numbers(definition, workload) else 0)
        self._for_constants: list[str] = []
        if has_constants:
            is_asked = bool(self._looks.not_finite)
            self._for_constants = [*FOR_CONSTANTS[:1], *([NONFINITE] if is_asked else []), *FOR_CONSTANTS[1:]]
        _, shapes = bind_axes(definition, workload)
        specs = zip(definition.inputs.values(), shapes.values(), strict=True)
        size = sum(math.prod(shape or ()) * DTYPES[spec.dtype].bits // 8 for spec, shape in specs)
        self._most_calls = max(1, MOST_BYTES // max(size, 1))
        self._asked = leave_out_repeats(self._find_asked(definition), self._most_calls)

    def _find_asked(self, definition: Definition) -> list[str]:
        """Return the regimes that each trial has since its reference, or the form of inputs or outputs, asks for them.

        Some are weak by chance, or seen by who looks at a part.
        """
        free = [one for one in self.free if one is not None]
        asked = [PART_OF_COLUMNS] * PART_CALLS
        if any(_may_join_rows(definition, one) for one in free):
            asked += [PART_OF_ROWS] * PART_CALLS
        if any(one.kind == "float" for one in free):
            asked += FOR_FLOATS
        if self._looks.looks_for_zeros:
            asked.append(ZEROS)
        if self._looks.not_finite and not self._for_constants:
            asked += [NONFINITE] * NONFINITE_CALLS
        if any(map(self._is_gate, free)) and HAVE_RULES.fullmatch(definition.op_type.replace("-", "_")) is None:
            asked += [*GATES, *[FEW_GATES] * (FEW_GATES_CALLS - 1)]
        if any(one.groups >= FEW_NUMBERS for one in free) and not self._for_few:
            asked.append(ONE_ROW)
        return asked if free else []

    @property
    def names(self) -> list[str]:
        """All regimes that the job may have."""
        return list(dict.fromkeys((*IN_ALL_JOBS, *OTHERS, *self._asked, *self._for_constants, *self._for_few)))

    def choose(self, trial: int, trials: int) -> list[str]:
        """Return the regimes of a trial: one in each, the rest in the last; and those that are asked for.

        The order is secret, too (`order.py`).
        """
        chance = random.Random(self._seed)
        others = chance.sample(OTHERS, len(OTHERS))
        wanted = [*IN_ALL_JOBS, *others][: trials + MORE_IN_LAST]
        chance.shuffle(wanted)
        chosen = wanted[trial : trial + 1] if trial < trials - 1 else wanted[trial:]
        spikes = [FOR_CONSTANTS[0]] * (math.ceil(SPIKE_CALLS / trials) - 1 if self._for_constants else 0)
        if NONFINITE in self._for_constants:  # who looks at a part of an input sees one now and then
            spikes[::2] = [NONFINITE] * len(spikes[::2])
        strong = [*self._for_constants, *spikes][: self._most_calls]
        # A trial of slow calls has the first only.
        order = random.Random(derive_seed(self._seed, "order", trial))
        return put_in_order([*strong, *self._for_few, *self._asked, *chosen], order)

    def plan(self, trials: int) -> list[str]:
        """Return the regimes that come in a job of so many trials, where calls are not slow."""
        return list(dict.fromkeys(name for trial in range(trials) for name in self.choose(trial, trials)))

    def change(self, name: str, number: int, values: Sequence[torch.Tensor | None]) -> None:
        """Turn usual inputs of a call into those of a regime, in place."""
        for index, (free, value) in enumerate(zip(self.free, values, strict=True)):
            if free is None or value is None or not self._concerns(name, free):
                continue
            chance = Chance(derive_seed(self._seed, name, number, index), value.device)
            if free.kind == "bools":
                change_bools(name, value, chance, with_empty_rows=self._looks.tells_of_empty_rows)
            elif free.kind == "bytes":
                change_bytes(name, value, chance)
            elif free.kind == "float8" and value.nbytes <= MANY_BYTES:
                wide = value.float()
                REGIMES[name](wide, chance, self._share(name, number, free, value.device))
                largest = torch.finfo(value.dtype).max
                value.copy_(wide.clamp_(-largest, largest))
            elif value.dtype in MULTIPLIED:
                REGIMES[name](value, chance, self._share(name, number, free, value.device))

    def _concerns(self, name: str, free: Free) -> bool:
        """Tell whether a regime changes an input."""
        if name in GATES:
            return self._is_gate(free)
        guarded = self._looks.guarded & {one.name for one in self.free if one is not None}
        return name != NONFINITE or not guarded or free.name in guarded

    def _is_gate(self, free: Free) -> bool:
        return free.kind == "float" and free.name in self._looks.gates

    def _share(self, name: str, number: int, free: Free, device: torch.device) -> Shared:
        """Return what a regime has to know of an input."""

        def choose_places(axes: tuple[str, ...]) -> Chance:
            return Chance(derive_seed(self._seed, name, number, *axes), device)

        side = Chance(derive_seed(self._seed, "side", free.name), device).sign() if name in GATES else 1.0
        return Shared(
            choose_places(free.axes[-1:]),
            choose_places(free.axes[:-1]),
            groups=free.groups,
            not_finite=self._looks.not_finite,
            side=side if name == GATES[0] else -side,
        )
