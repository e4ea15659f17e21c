"""Stress cases: inputs of unusual scale, sign or distribution, for some calls of a job.

Usual inputs are normal values around zero, with a deviation near one. For usual inputs, shortcuts look right: 30 tanh(x
/ 30) is about x, rows need no normalisation, a part of a row predicts the row's norm, and a mean is zero. Each case
breaks such a shortcut. `STRESS_CASES` is the table of cases. A case has steps, and the number of its calls in a job. A
step has a support (which elements) and a transform (their new values). Bytes and bools are changed by `redraw` instead
of the transform, except in ZEROS.

The definition and the workload decide the list of cases, so each run tries the same cases. The changed positions and
values are secret, and so is the time of the calls. Only random inputs are changed, and only if no rule gives their
values a meaning. No function here waits for a GPU.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import takewhile
from typing import Any, Final, NamedTuple

import torch

from flashinfer_bench.bench.evaluators.inputs.generate import count_bytes, find_varied_inputs
from flashinfer_bench.bench.evaluators.inputs.rules import Kind, VariedInput
from flashinfer_bench.bench.evaluators.inputs.seeds import derive_seed
from flashinfer_bench.bench.evaluators.inputs.source_checks import find_source_checks
from flashinfer_bench.data import Definition, Workload
from flashinfer_bench.data.dtypes import DTYPES

FEW: Final = 8
"""Number of large values in a row. With fewer large values, the rounding of a single value would change the whole
row."""
LOUD: Final = 15
"""Number of columns, and of rows, that `quieten` leaves unchanged. So a solution that samples the elements reads some
unchanged elements."""
QUIET_SHARE: Final = 1 / 400
"""The scaled-down elements have this share of the sum of squares. Rounding these elements to zero makes an error of
half of the usual norm limit."""
ROWS_PER_CHOSEN: Final = 64
"""One in this many rows, or groups of rows, is chosen. A solution that samples the rows rarely reads the chosen row."""
OUTWEIGHS: Final = 32
"""A dominant row is this many times as large as all other rows together. Half of such a row still dominates."""
USUAL_REACH: Final = 10.0
"""Largest magnitude of usual values."""
NEAR: Final = (0.9, 1.2)
"""Range of a small shift. Formats of eight bits are precise enough to subtract a mean of this size."""
FAR: Final = (2.5, 4.5)
"""Range of a large shift. A mean of sigmoids of shifted values is at least 0.9, or at most 0.1."""
GATE: Final = (3.5, 5.0)
"""Range of the shift of a gate's input. Such a shift makes the gate's sigmoid nearly 1 or nearly 0."""
OPEN_STEPS: Final = 80
"""Some gates are shifted only in this many steps at the end. In earlier steps the gates are as usual, so the state
takes in values."""
LEAST_LENGTH: Final = 4
"""`part_of` chooses nothing along a shorter axis."""
DENSITIES: Final = (0.02, 0.1, 0.9, 0.98)
"""Shares of true elements among changed bools; a call uses one of these."""
LEAST_BOOLS: Final = 8
"""A changed row is expected to have at least this many true and this many false elements. A row that is all true or all
false may have no right answer."""
FEW_NUMBERS: Final = 16
"""An output with fewer elements than this is checked by more calls, since it may be right by chance."""
MOST_BYTES: Final = 1 << 30
"""Maximum bytes of inputs that a job's stress calls keep until they are judged. A single call may exceed this."""
MANY_ELEMENTS: Final = 1 << 28
"""8-bit inputs with more elements than this are not changed. A change needs several times the input's memory."""
QUICK_MS: Final = 5.0
SLOW_CALLS: Final = 2
"""Number of cases that are tried if a call of the reference takes more than QUICK_MS on a GPU."""
TIME_LIMIT_MS: Final = 1e3
"""Milliseconds that a reference on a CPU may take for all cases. The reference is called at least once."""
HAVE_RULES: Final = re.compile(r"gdn|mamba.*")
"""Op types with rules for gates in `rules.py`."""
RATES: Final = re.compile(r"a_?log|log_?a|dt_bias|(log_?)?decays?(_rates?)?")
"""Names of inputs that set how fast a state forgets. These inputs are not changed, because their values have meaning at
one scale only."""


class Chance:
    """Draws random numbers on the host, and random tensors on a device without waiting for it."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self.seed, self.device = seed, device

    @cached_property
    def host(self) -> random.Random:
        return random.Random(self.seed)

    @cached_property
    def many(self) -> torch.Generator:
        return torch.Generator(device=self.device).manual_seed(self.seed)

    def order(self, count: int) -> torch.Tensor:
        """Return the numbers below a count in random order."""
        return torch.randperm(count, generator=self.many, device=self.device)

    def positions(self, below: int, count: int) -> torch.Tensor:
        """Return `count` random numbers below `below`; some may repeat."""
        return torch.randint(below, (count,), generator=self.many, device=self.device)


class Free(NamedTuple):
    """An input that stress cases change."""

    name: str
    kind: Kind
    axes: tuple[str, ...]
    groups: int
    """Number of groups of consecutive rows. An output has separate numbers for each group."""


class Field(NamedTuple):
    """An input that is changed."""

    values: torch.Tensor
    """The values in any shape, contiguous."""
    rows: torch.Tensor
    """The values as [rows, columns]."""
    chance: Chance
    """Random numbers of this input and call."""
    of_columns: Chance
    """Shared by all inputs with the same last axis."""
    of_rows: Chance
    """Shared by all inputs with the same axes before the last."""
    free: Free
    part: int
    """Number of the part that `part_of` chooses."""
    not_finite: tuple[float, ...]
    """NaN and infinities that the reference tests for."""

    @property
    def side(self) -> int:
        """1 or -1: the side to which this input is shifted in this call."""
        return 1 if self.chance.seed % 2 else -1


Support = Callable[[Field], Any]
"""Returns an index into a field's `rows`; an index that begins with an ellipsis is an index into `values`. None if no
element is chosen."""
Transform = Callable[[torch.Tensor, Field], torch.Tensor]
"""Changes some elements of a field in place, and returns them."""


def everything(_field: Field) -> Any:
    """Choose all elements."""
    return (...,)


def part_of(axis: int, *, offset: int = 0, late: bool = False) -> Support:
    """Choose every second position in one half of an axis.

    A solution that reads only one half, or every second position, misses the chosen part in one of two calls. Parts 0
    and 1 together, and also parts 2 and 3 together, cover both halves, and even and odd positions.

    Args:
        axis: -1 or -2.
        offset: added to the number of the field's part.
        late: whether only the last OPEN_STEPS steps are chosen; steps lie along the axis before the last.
    """

    def choose(field: Field) -> Any:
        shape = field.values.shape
        if len(shape) < max(-axis, 1 + late) or shape[axis] < LEAST_LENGTH:
            return None
        number = (field.part + offset) % 4
        half, second = number % 2, (number % 2) ^ (number // 2)
        begin, end = (math.ceil(at * shape[axis] / 2) for at in (half, half + 1))
        chosen = slice(begin + (begin + second) % 2, end, 2)
        return (..., slice(-OPEN_STEPS, None), chosen) if late else (..., chosen, slice(None))[: 1 - axis]

    return choose


def sixth_of_rows(number: int) -> Support:
    """Choose a sixth of the rows in random order. Both sixths of a call use the same order. A single row is in the
    first sixth."""

    def choose(field: Field) -> Any:
        sixth = math.ceil(len(field.rows) / 6)
        order = Chance(field.chance.seed, field.values.device).order(len(field.rows))
        return (order[number * sixth : (number + 1) * sixth],)

    return choose


def few_columns(rows_per_chosen: int | None = None) -> Support:
    """Choose FEW columns of one row, or of one in every `rows_per_chosen` rows."""

    def choose(field: Field) -> Any:
        rows, columns = field.rows.shape
        number = math.ceil(rows / (rows_per_chosen or rows))
        chosen = field.chance.positions(columns, number * min(FEW, columns))
        return field.chance.positions(rows, number)[:, None], chosen.view(number, -1)

    return choose


def stretch(field: Field) -> Any:
    """Choose columns of one row. A small number of columns dominates the row's sum of squares, a large number a sum
    over all rows. The number is one of these two, or their geometric mean."""
    rows, columns = field.rows.shape
    fewest = max(1.0, columns / 1e5)
    most = max(fewest, min(columns / 4, columns * math.sqrt(rows) / 1e3))
    count = math.ceil(fewest * (most / fewest) ** field.chance.host.choice((0.0, 0.5, 1.0)))
    return field.chance.host.randrange(rows), _spaced(count, columns, field.chance)


def _spaced(count: int, columns: int, chance: Chance) -> torch.Tensor:
    """Return columns that are neighbours or 32 apart. A solution that reads every second or eighth column reads either
    all columns that are 32 apart, or none."""
    step = min(chance.host.choice((1, 32, 32)), columns // count)
    first = chance.host.randrange(columns)
    return torch.arange(first, first + count * step, step, device=chance.device) % columns


def loud_row(field: Field) -> Any:
    """Choose columns of one row in one of ROWS_PER_CHOSEN groups: FEW columns, or all if the dtype lacks large enough
    numbers."""
    rows, columns = field.rows.shape
    per_group, size = rows // field.free.groups, loud_size(field)
    if per_group < 2 or size < OUTWEIGHS / 2 * per_group:
        return None
    groups = math.ceil(field.free.groups / ROWS_PER_CHOSEN)
    chosen = field.of_rows.positions(per_group, groups) + field.of_rows.order(field.free.groups)[:groups] * per_group
    is_enough = size * FEW >= OUTWEIGHS * per_group * columns
    return chosen[:, None], _spaced(min(FEW, columns) if is_enough else columns, columns, field.chance)


def loud_size(field: Field) -> float:
    """Return the magnitude that the chosen elements of a row need, so that the row outweighs all others in a sum."""
    rows, columns = field.rows.shape
    wanted = OUTWEIGHS * (rows // field.free.groups) * max(1.0, columns / FEW)
    return min(wanted, torch.finfo(field.values.dtype).max / USUAL_REACH)


def most_of(axis: int) -> Support:
    """Choose all rows (0) or columns (1) except LOUD of them. Inputs that share the axes get the same choice. None if
    the axis has at most LOUD rows or columns."""

    def choose(field: Field) -> Any:
        count, chance = field.rows.shape[axis], (field.of_rows, field.of_columns)[axis]
        return (*[slice(None)] * axis, chance.order(count)[LOUD:]) if count > LOUD else None

    return choose


def half_of_some_rows(field: Field) -> Any:
    """Choose half of the columns in one of eight rows."""
    rows, columns = field.rows.shape
    chosen = field.chance.order(rows)[: math.ceil(rows / 8)]
    return chosen[:, None], field.chance.order(columns)[: math.ceil(columns / 2)]


def one_element(field: Field) -> Any:
    """Choose one element."""
    return tuple(map(field.chance.host.randrange, field.rows.shape))


def redraw(values: torch.Tensor, field: Field) -> torch.Tensor:
    """Draw bools with an unusual share of true elements, or move bytes to a small part of their range: low numbers, or
    one end.

    Each row of bools is expected to have true and false elements.
    """
    host = field.chance.host
    if values.dtype is torch.bool:
        least = min(0.5, LEAST_BOOLS / field.values.shape[-1])
        drawn = torch.rand(values.shape, generator=field.chance.many, device=values.device)
        return values.copy_(drawn < min(max(host.choice(DENSITIES), least), 1 - least))
    bits, end = host.choice((1, 3, 4)), host.choice((0, 1, -1))
    if not end:
        return values.bitwise_right_shift_(bits)
    bounds = torch.iinfo(values.dtype)
    values.view(torch.uint8).bitwise_right_shift_(bits)
    return values.neg_().add_(bounds.max) if end > 0 else values.add_(bounds.min)


def scale(low: float, high: float) -> Transform:
    """Multiply all elements by one random factor."""
    return lambda values, field: values.mul_(field.chance.host.uniform(low, high))


def shift(low: float, high: float, side: int = 0) -> Transform:
    """Add one random number to all elements. If no side is given, the field decides the sign of the number."""
    return lambda values, field: values.add_((side or field.side) * field.chance.host.uniform(low, high))


def quieten(axis: int, least: float = 0.0) -> Transform:
    """Scale rows (0) or columns (1) down, so that they have QUIET_SHARE of a sum of squares. The factor is at least
    `least`."""
    return lambda values, field: values.mul_(max(least, math.sqrt(QUIET_SHARE * LOUD / field.rows.shape[axis])))


def large(size: Callable[[Field], float]) -> Transform:
    """Replace elements by random values of either sign, with magnitudes of 0.7 to 1 times a size. The values use the
    full precision of the dtype."""

    def change(values: torch.Tensor, field: Field) -> torch.Tensor:
        top = size(field)
        values.uniform_(-0.3 * top, 0.3 * top, generator=field.chance.many)
        return values.add_(values.sgn(), alpha=0.7 * top)

    return change


def one_sided(values: torch.Tensor, field: Field) -> torch.Tensor:
    """Replace elements by values near 200 of one sign, which is positive in three of four calls."""
    low, high = field.chance.host.choice(((168, 240), (168, 240), (168, 240), (-240, -168)))
    return values.uniform_(low, high, generator=field.chance.many)


def same(choose: Callable[[Field], float]) -> Transform:
    """Replace all elements by one number."""
    return lambda values, field: values.fill_(choose(field))


def spike(field: Field) -> float:
    """Return a number of 10 to 1,000 of either sign; in one of three calls, a number beyond float16's range."""
    chance = field.chance.host
    size = 10 ** chance.uniform(*chance.choice(((1, 3), (1, 3), (4.9, 5.5))))
    return min(size, torch.finfo(field.values.dtype).max) * chance.choice((1, -1))


class StressCase(NamedTuple):
    """One change of a call's usual inputs."""

    steps: Sequence[tuple[Support, Transform]]
    calls: Mapping[str, int]
    """Trait of a job → number of calls if the job has the trait; the largest number counts. See `StressPlan`."""
    strength: float = 2.0
    """Weight in the random order of the cases, for jobs that cannot try all. A case's chance to come first is
    proportional to its weight."""
    is_of_floats: bool = True
    """Whether the case leaves bytes and bools unchanged."""


TO_80: Final = large(lambda _: 80.0)
"""Replaces elements by values of up to 80. float16 can hold the square of such a value, and a sum of FEW such squares.
Another case has values of up to 240, whose squares float16 can hold, too. A single such value has a large share of a
sum of squares with 100,000 usual values."""
TO_SMALL: Final = ((everything, scale(1 / 32, 1 / 16)), (most_of(1), quieten(1)), (most_of(0), quieten(0, 1 / 256)))
"""Makes values small. Even the squares of the smallest rows are not rounded to zero."""
TWO_SIXTHS: Final = ((sixth_of_rows(0), shift(*NEAR)), (sixth_of_rows(1), shift(*FAR)))
SOME_OF_GATES: Final = tuple(
    (part_of(-1, offset=offset, late=offset > 1), shift(GATE[1], GATE[1], (-1) ** offset)) for offset in range(4)
)
SHIFTED_ROWS: Final = "some rows shifted"
CUBED: Final = "cubed values (heavy tails)"
ZEROS: Final = "zeros in half of some rows"
ONE_ROW: Final = "one row that outweighs all others"
NOT_FINITE: Final = "one infinite value or NaN"
STRESS_CASES: Final = {
    "a few large values in one row of 64": StressCase([(few_columns(ROWS_PER_CHOSEN), TO_80)], {"any": 1}),
    SHIFTED_ROWS: StressCase(TWO_SIXTHS, {"any": 1, "constants": 4}, 2.0, False),
    "small values, all but a few rows and columns smaller still": StressCase(
        TO_SMALL, {"any": 1, "few numbers": 10}, 2.0, False
    ),
    "all values about 20 times as large": StressCase([(everything, scale(16, 24))], {"any": 1}, 1.0, False),
    CUBED: StressCase([(everything, lambda values, _: values.pow_(3))], {"any": 1}, 4.0, False),
    "a few large values in one row": StressCase([(few_columns(), TO_80)], {"floats": 3}),
    "a stretch of one row near 200": StressCase([(stretch, one_sided)], {"floats": 6}, 0.5),
    "every second column of one half shifted": StressCase([(part_of(-1), shift(*FAR))], {"any": 6}, 0.5, False),
    "every second row of one half shifted": StressCase([(part_of(-2), shift(*FAR))], {"joined rows": 6}, 0.5, False),
    ONE_ROW: StressCase([(loud_row, large(loud_size))], {"few numbers": 9, "groups": 3}),
    ZEROS: StressCase([(half_of_some_rows, same(lambda _: 0))], {"zeros": 3}, 2.0, False),
    NOT_FINITE: StressCase(
        [(one_element, same(lambda field: field.chance.host.choice(field.not_finite)))], {"not finite": 9}
    ),
    "gates shifted up": StressCase([(everything, shift(*GATE, 1))], {"gates": 3}),
    "gates shifted down": StressCase([(everything, shift(*GATE, -1))], {"gates": 3}),
    "some gates shifted": StressCase(SOME_OF_GATES, {"gates": 12}, 0.5),
    "one huge value": StressCase([(one_element, same(spike))], {"constants": 12}),
    "all values 100 to 1,000 times as large": StressCase([(everything, scale(1e2, 1e3))], {"constants": 3}, 1.0),
}
"""Name of a case → the case. Traces and messages have these names. A case that changes only a small part of an input
has several calls. A solution that reads only a part misses the change in some of them."""
GATES: Final = frozenset(name for name, case in STRESS_CASES.items() if "gates" in case.calls)
"""Cases that change the inputs of a sigmoid or softplus, if a state is carried from step to step."""
FOR_CONSTANTS_ALONE: Final = frozenset(name for name, case in STRESS_CASES.items() if {*case.calls} == {"constants"})
"""Cases only for outputs that are the same on all usual inputs. In these cases float outputs are not judged by norms,
since float16 intermediates of a kernel would overflow."""


def why_no_stress(definition: Definition) -> str | None:
    """Return why a definition is judged only on usual inputs; None if it has stress cases. Indices and counts have no
    norm."""
    return None if _float_outputs(definition) else "none of its outputs is a float"


def _float_outputs(definition: Definition) -> dict[str, tuple[str, ...]]:
    """Return the axes of each float output."""
    specs = definition.outputs.items()
    return {name: tuple(spec.shape or ()) for name, spec in specs if DTYPES[spec.dtype].kind == "float"}


def _find_free(definition: Definition, varied: VariedInput, shape: Sequence[int]) -> Free | None:
    """Return how an input is changed. None if it is not changed: it is not random, a rule or its name fixes its range,
    or it is too large."""
    name, kind, count = varied.name, varied.kind, math.prod(shape)
    is_large = kind != "float" and count > MANY_ELEMENTS
    if kind is None or is_large or RATES.fullmatch(name.lower()) or not shape or not count:
        return None
    axes = tuple(definition.inputs[name].shape or ())
    groups = 1
    for wanted in _float_outputs(definition).values():
        made = math.prod(size for size, _ in zip(shape, takewhile(wanted.__contains__, axes[:-1]), strict=False))
        if axes[-1] not in wanted and made < math.prod(shape[:-1]):
            groups = max(groups, made)
    return Free(name, kind, axes, groups)


def count_affordable(latency_ms: float | None, device_type: str) -> int | None:
    """Return the number of cases for which a reference is called; None if it is fast enough for all cases.

    Args:
        latency_ms: latency of one call; None if it was not timed.
        device_type: "cuda" or "cpu".
    """
    if latency_ms is None:
        return None
    if device_type == "cuda":
        return SLOW_CALLS if latency_ms > QUICK_MS else None
    return max(1, int(TIME_LIMIT_MS / max(latency_ms, 1e-3)))


class StressPlan:
    """The stress cases of one job.

    Args:
        definition: the definition.
        workload: has the random inputs.
        seed: seed of the job; secret while the job is judged.
        has_constants: whether some outputs are the same on all usual inputs; the plan then has additional cases for
            such outputs.
        most: maximum number of calls; None for all.

    Raises:
        WorkloadFault: an axis of the workload has no size.
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
        self._source_checks = find_source_checks(definition.reference or "")
        self._changed: Counter[str] = Counter()
        """Case → number of calls whose inputs were changed so far."""
        varied = find_varied_inputs(definition, workload).values()
        shapes = definition.get_input_shapes(workload.axes)
        self.free = [_find_free(definition, one, shape or ()) for one, shape in zip(varied, shapes, strict=True)]
        """How each input is changed, in the order of the definition; None if it is not changed."""
        result = [one for one in self.free if one is not None]
        self._guarded = self._source_checks.guarded & {one.name for one in result}
        self._gates = self._source_checks.gates & {one.name for one in result if one.kind == "float"}
        traits = self._find_traits(definition, workload, result)
        traits |= {"any": bool(result), "constants": has_constants and bool(result)}
        counts = {
            name: max(count * bool(traits[trait]) for trait, count in case.calls.items())
            for name, case in STRESS_CASES.items()
        }
        self.names = [name for name, count in counts.items() if count]
        """All cases that the job may have."""
        affordable = max(1, MOST_BYTES // max(count_bytes(definition.inputs.values(), shapes), 1))
        fixed = random.Random(derive_seed(0, "stress", definition.name, workload.uuid))
        keys = {name: fixed.expovariate(STRESS_CASES[name].strength) for name in self.names}
        calls = sorted((again, keys[name], name) for name in self.names for again in range(counts[name]))
        self.calls = [name for _, _, name in calls[: min(affordable, affordable if most is None else most)]]
        """The case of each stress call of the job, in order. All cases come once before a case is repeated. Strong
        cases tend to come early."""

    def _find_traits(self, definition: Definition, workload: Workload, free: Sequence[Free]) -> dict[str, Any]:
        """Return the traits of the job. Traits decide which cases make sense, and how many calls each case needs to
        find a shortcut."""
        outputs = _float_outputs(definition)
        shapes = dict(zip(definition.outputs, definition.get_output_shapes(workload.axes), strict=True))
        has_rules = HAVE_RULES.fullmatch(definition.op_type.replace("-", "_"))
        return {
            "floats": any(one.kind == "float" for one in free),
            # Rows are combined into one number if an output lacks their axis. Bytes may be images, whose statistics
            # combine all rows.
            "joined rows": any(
                one.kind in ("bytes", "bools") or any(one.axes[-2] not in axes for axes in outputs.values())
                for one in free
                if len(one.axes) > 1
            ),
            "gates": not has_rules and self._gates,
            "few numbers": free and any(0 < math.prod(shapes[name] or ()) < FEW_NUMBERS for name in outputs),
            "groups": any(one.groups >= FEW_NUMBERS for one in free),
            "zeros": free and self._source_checks.zeros,
            "not finite": free and self._source_checks.not_finite,
        }

    def change(self, name: str, number: int, values: Sequence[torch.Tensor | None]) -> None:
        """Turn usual inputs of a call into the inputs of a case, in place.

        Args:
            name: name of the case.
            number: number of the call.
            values: inputs of the call, in the order of the definition; None for an input that is no tensor.
        """
        self._changed[name] += 1
        for index, (free, value) in enumerate(zip(self.free, values, strict=True)):
            if free is None or value is None or not self._concerns(name, free):
                continue
            is_narrow = free.kind in ("bytes", "bools") and name != ZEROS
            wide = value.float() if free.kind == "float8" else value
            field = self._open(name, number, index, free, wide)
            usual = wide.clone() if free.kind == "bools" else wide
            for support, transform in STRESS_CASES[name].steps[: 1 if is_narrow else None]:
                if (positions := support(field)) is not None:
                    whole = wide if positions[0] is ... else field.rows
                    whole[positions] = (redraw if is_narrow else transform)(whole[positions], field)
            if free.kind == "bools":
                _keep_some(value, usual)
                if self._source_checks.empty_rows and name in (SHIFTED_ROWS, CUBED) and len(field.rows) > 1:
                    field.rows[field.of_rows.host.randrange(len(field.rows))] = False
            if free.kind == "float8":
                largest = torch.finfo(value.dtype).max
                value.copy_(wide.clamp_(-largest, largest))

    def _concerns(self, name: str, free: Free) -> bool:
        """Return whether a case changes an input."""
        if name in GATES:
            return free.name in self._gates
        if name == NOT_FINITE and self._guarded and free.name not in self._guarded:
            return False
        return free.kind in ("float", "float8") or not STRESS_CASES[name].is_of_floats

    def _open(self, name: str, number: int, index: int, free: Free, values: torch.Tensor) -> Field:
        def draw(*names: str | int) -> Chance:
            return Chance(derive_seed(self._seed, name, number, *names), values.device)

        part = derive_seed(self._seed, "part", name, free.name) % 4 ^ (self._changed[name] - 1) % 4
        of_columns, of_rows = draw("positions", *free.axes[-1:]), draw("positions", *free.axes[:-1])
        rows = values.view(-1, values.shape[-1])
        return Field(values, rows, draw(index), of_columns, of_rows, free, part, self._source_checks.not_finite)


def _keep_some(values: torch.Tensor, usual: torch.Tensor) -> None:
    """Undo changes of rows and columns that are now all true or all false, because they may have no right answer."""
    for dim in (-1, -2)[: values.ndim]:
        is_odd = values.all(dim, keepdim=True) | ~values.any(dim, keepdim=True)
        torch.where(is_odd, usual, values, out=values)
