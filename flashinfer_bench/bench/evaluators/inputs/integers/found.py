"""What is known of the values in a reference that come from its inputs, and what was seen of each input."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from flashinfer_bench.bench.evaluators.inputs.integers.amounts import (
    FAR,
    Amount,
    Applied,
    Elements,
    Extent,
    Formula,
    Given,
    Reach,
    combine,
    list_names,
)

TURNED: Final[Mapping[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.Gt,
    ast.Gt: ast.Lt,
    ast.LtE: ast.GtE,
    ast.GtE: ast.LtE,
}
SIGN_TESTS: Final = frozenset({(ast.Lt, 0), (ast.GtE, 0), (ast.Gt, -1), (ast.LtE, -1)})
USUAL_PADDING: Final = -1
MOST_AXES: Final = 8
"""Tensors of unknown shape have no more axes, so that one that is counted from the last is not taken for the first."""


class Use(NamedTuple):
    """How a reference uses an input."""

    extents: frozenset[Amount | Reach] = frozenset()
    """What its values, or what is computed of them, have to stay below."""
    is_clear: bool = False
    """Whether all places where it stands are known."""
    is_tested: bool = False
    """Whether the reference tests it for padding, and bears it."""
    padding: int = USUAL_PADDING
    """What stands where there is padding."""
    wraps: frozenset[Reach] = frozenset()
    """Where the reference brings what is computed of it into a range, whatever it is."""


class Held(NamedTuple):
    """An input, or what has no other values than it."""

    name: str
    is_whole: bool = True
    """It has the input's shape."""
    is_exact: bool = True
    """Its values were not rounded."""
    has_no_padding: bool = False
    applied: tuple[Applied, ...] = ()
    """What was computed of the input's values, in this order."""
    sizes: tuple[Amount | None, ...] | None = None
    """Its sizes where it has another shape, and that is known."""
    moves: tuple[str, ...] = ()
    """What has brought its values into another order, or taken some of them, in this order: as the source says it."""

    @property
    def mask(self) -> Mask:
        """What tells of each of its values whether it is padding."""
        return Mask(self.name, moves=self.moves)

    def is_like(self, other: Held) -> bool:
        """Tell whether another one's values were computed of the same input in the same way."""
        return self.name == other.name and self.applied == other.applied

    def part(self) -> Held:
        """Return some of its values, or all in an unknown shape."""
        return self._replace(is_whole=False, sizes=None)

    def move(self, how: str) -> Held:
        """Return its values in another order, or some of them."""
        return self.part()._replace(moves=(*self.moves, how))

    def apply(self, kind: str, least: Amount = 0, most: Amount = 0) -> Held:
        """Return what one computation more gives."""
        return self._replace(applied=(*self.applied, Applied(kind, least, most)))


class ShapeOf(NamedTuple):
    """The shape of an input."""

    name: str


class Made(NamedTuple):
    """A new tensor: its sizes, or the input whose shape it has."""

    sizes: tuple[Amount | None, ...] | str


class Mask(NamedTuple):
    """Where an input has padding, or has none; or what follows from that alone."""

    name: str
    is_plain: bool = True
    """It has a value for each element, and chooses only elements that are no padding."""
    moves: tuple[str, ...] = ()
    """What has brought the elements into another order, or taken some of them."""


class Number(NamedTuple):
    """A whole number that is no input's."""

    value: int | None = None


@dataclass(frozen=True)
class Within:
    """Whole numbers that are no input's, between two sizes, both included."""

    least: Amount
    most: Amount
    is_single: bool = False
    """It is one number, as a loop's is."""
    of: Held | None = None
    """The input whose values were brought between them, and what was computed of it."""


ANY_ORDER: Final = ("in one order or another",)
"""`moves` of values that were moved in one of several ways."""
ALL: Final = Within(0, FAR)
"""All of an axis."""


class Joint(NamedTuple):
    """The sum of some inputs, of which each was noted as unclear; where it indexes, all have to be small enough."""

    parts: tuple[Held, ...]


Size = Extent | Given | Elements | Formula
SIZES: Final = (Extent, Given, Elements, Formula)
Value = Held | ShapeOf | Made | Mask | Number | Within | Joint | Size | None
"""What an expression is; None where nothing is known that depends on an input."""


def to_amount(value: Value) -> Amount | None:
    """Return what a value says if it is one whole number that is known once a workload is."""
    if isinstance(value, Number):
        return value.value
    return value if isinstance(value, SIZES) else None


def to_value(amount: Amount) -> Value:
    """Return a size as a value."""
    return Number(amount) if isinstance(amount, int) else amount


def is_single_number(value: Value) -> bool:
    """Tell whether a value is one whole number that is no input's element."""
    return isinstance(value, (Number, *SIZES)) or (isinstance(value, Within) and value.is_single)


def find_left(base: Held, taken: Sequence[Value]) -> tuple[Amount | None, ...] | None:
    """Return the sizes of what numbers and whole slices leave of a tensor; None where others are among them.

    Sizes of axes that it does not have are without a value.
    """
    sizes = base.sizes or tuple(Extent(base.name, axis) for axis in range(MOST_AXES) if base.is_whole)
    are_known = all(one == ALL or is_single_number(one) for one in taken) and len(taken) <= len(sizes)
    if not are_known:
        return None
    return (*(size for size, one in zip(sizes, taken, strict=False) if one == ALL), *sizes[len(taken) :])


def find_size(table: Value, axis: int | None) -> Amount | None:
    """Return the size of an axis of a tensor; None where it is not known."""
    if axis is None:
        return None
    match table:
        case Held(sizes=tuple(sizes)) | Made(sizes=tuple(sizes)):
            return sizes[axis] if -len(sizes) <= axis < len(sizes) else None
        case Held(name=name, is_whole=True) | Made(sizes=str(name)):
            return Extent(name, axis)
        case _:
            return None


def _is_own_remainder(held: Held, table: Value) -> bool:
    """Tell whether values were brought below the size of an axis of the tensor that they index."""
    step = held.applied[-1]
    if not isinstance(table, Held) or not table.is_whole or step.kind != "%":
        return False
    return isinstance(step.least, Extent) and step.least.name == table.name


class Found:
    """What was seen of all inputs."""

    def __init__(self) -> None:
        self.extents: dict[str, set[Amount | Reach]] = defaultdict(set)
        self.wraps: dict[str, set[Reach]] = defaultdict(set)
        self.unclear: set[str] = set()
        self.tested: set[str] = set()
        self.paddings: dict[str, set[int]] = defaultdict(set)
        """Negative numbers that the reference compares an input with."""
        self.refused: set[str] = set()
        """Inputs that may hold no padding."""
        self.bare: set[str] = set()
        """Inputs that may hold no padding but -1, which is the last of a table."""
        self.reshaped: set[str] = set()
        """Inputs whose shape is changed in place."""
        self.is_guard = False
        """Whether what is read now is a test after which the reference fails."""

    def tell(self, name: str) -> Use:
        """Say how an input is used."""
        tables = {table for extent in self.extents[name] | self.wraps[name] for table in list_names(extent)}
        is_clear = name not in self.unclear and not tables & self.reshaped
        is_tested = is_clear and name in self.tested and name not in self.refused and len(self.paddings[name]) <= 1
        padding = min(self.paddings[name], default=USUAL_PADDING)
        is_tested = is_tested and (padding == USUAL_PADDING or name not in self.bare)
        padding = padding if is_tested else USUAL_PADDING
        return Use(frozenset(self.extents[name]), is_clear, is_tested, padding, frozenset(self.wraps[name]))

    def take(self, *values: Value) -> Value:
        """Note that values go where nothing is known of what they do; nothing is known of what comes of them."""
        held = (value.of if isinstance(value, Within) else value for value in values)
        self.unclear.update(value.name for value in held if isinstance(value, Held))
        return None

    def keep(self, result: Value, *values: Value) -> Value:
        """Return what comes of some values; those whose input it does not tell any more go where nothing is known."""
        if not isinstance(result, Within) or result.of is None:
            self.take(*(value for value in values if isinstance(value, Within)))
        return result

    def join_masks(self, values: Iterable[Value], *, is_plain: bool) -> Value:
        """Return what follows from some values: where it follows from a mask, a mask."""
        values = list(values)
        self.take(*values)
        masks = [value for value in values if isinstance(value, Mask)]
        if not masks:
            return None
        plain = [mask for mask in masks if mask.is_plain] if is_plain else []
        return plain[0] if plain else Mask(masks[0].name, is_plain=False)

    def index(self, index: Value, table: Value, axis: int | None, *, takes_negative: bool) -> None:
        """Note that one value indexes an axis of another one."""
        extent = find_size(table, axis)
        if isinstance(index, Joint) and extent is not None:
            self._share(index, extent)
        if isinstance(index, Within) and index.of is not None:
            if extent is None and not _is_own_remainder(index.of, table):
                self.take(index)
            if extent is not None:
                index = index.of
        if not isinstance(index, Held):
            return
        if not index.has_no_padding:
            (self.bare if takes_negative and not index.applied else self.refused).add(index.name)
        if extent is None or not index.is_exact:
            self.take(index)
        else:
            self.extents[index.name].add(Reach(extent, index.applied, takes_negative) if index.applied else extent)

    def _share(self, index: Joint, size: Amount) -> None:
        """Note that a sum indexes an axis: each part has an equal share of it."""
        below = combine("+", combine("//", combine("-", size, 1), len(index.parts)), 1)
        for part in index.parts:
            self.extents[part.name].add(Reach(below, part.applied))

    def wrap(self, value: Held, below: Amount) -> None:
        """Note that what is computed of an input is brought below a size, whatever it is."""
        if value.is_exact:
            self.wraps[value.name].add(Reach(below, value.applied))
        else:
            self.take(value)

    def pad(self, value: Held, padding: int) -> None:
        """Note that the reference looks whether an input is a negative number."""
        self.tested.add(value.name)
        self.paddings[value.name].add(padding)

    def compare(self, left: Value, kind: type[ast.cmpop], right: Value) -> Value:
        """Note a comparison, and return what it gives."""
        if kind in (ast.Is, ast.IsNot):
            return None
        if not isinstance(left, Held):
            left, kind, right = right, TURNED.get(kind, kind), left
        if not isinstance(left, Held):
            return self.take(left, right)
        number = right.value if isinstance(right, Number) else None
        is_equality = number is not None and number < 0 and kind in (ast.Eq, ast.NotEq)
        is_padding = not left.applied and (is_equality or (kind, number) in SIGN_TESTS)
        if self.is_guard or kind in (ast.In, ast.NotIn):
            self.refused.add(left.name)
            if left.applied or (not is_padding and not isinstance(right, Extent)):
                self.take(left, right)
            return None
        if is_padding and is_equality and number is not None:
            self.pad(left, number)
        elif is_padding:
            self.tested.add(left.name)
        return left.mask if is_padding else None
