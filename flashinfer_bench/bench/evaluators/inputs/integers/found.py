"""What is known of the values in a reference that come from its inputs, and what was seen of each input."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

TURNED: Final[Mapping[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.Gt,
    ast.Gt: ast.Lt,
    ast.LtE: ast.GtE,
    ast.GtE: ast.LtE,
}
PADDING_TESTS: Final = frozenset(
    {(ast.Lt, 0), (ast.GtE, 0), (ast.Eq, -1), (ast.NotEq, -1), (ast.Gt, -1), (ast.LtE, -1)}
)


class Extent(NamedTuple):
    """The size of one axis of an input."""

    name: str
    axis: int


class Use(NamedTuple):
    """How a reference uses an input."""

    extents: frozenset[Extent | int] = frozenset()
    """What its values have to stay below."""
    is_clear: bool = False
    """Whether all places where it stands are known."""
    is_tested: bool = False
    """Whether the reference tests it for padding, and bears a -1."""


class Held(NamedTuple):
    """An input, or what has no other values than it."""

    name: str
    is_whole: bool = True
    """It has the input's shape."""
    is_exact: bool = True
    """Its values were not rounded."""
    has_no_padding: bool = False


class ShapeOf(NamedTuple):
    """The shape of an input."""

    name: str


class Made(NamedTuple):
    """A new tensor: its sizes, or the input whose shape it has."""

    sizes: tuple[Extent | int | None, ...] | str


class Mask(NamedTuple):
    """Where an input has padding, or has none; or what follows from that alone."""

    name: str
    is_plain: bool = True
    """It has a value for each element, and chooses only elements that are no padding."""


class Number(NamedTuple):
    """A whole number that is no input's."""

    value: int | None = None


Value = Held | ShapeOf | Made | Mask | Number | Extent | None
"""What an expression is; None where nothing is known that depends on an input."""


class Found:
    """What was seen of all inputs."""

    def __init__(self) -> None:
        self.extents: dict[str, set[Extent | int]] = defaultdict(set)
        self.unclear: set[str] = set()
        self.tested: set[str] = set()
        self.refused: set[str] = set()
        """Inputs that may hold no padding."""
        self.reshaped: set[str] = set()
        """Inputs whose shape is changed in place."""
        self.is_guard = False
        """Whether what is read now is a test after which the reference fails."""

    def tell(self, name: str) -> Use:
        """Say how an input is used."""
        tables = {extent.name for extent in self.extents[name] if isinstance(extent, Extent)}
        is_clear = name not in self.unclear and not tables & self.reshaped
        is_tested = is_clear and name in self.tested and name not in self.refused
        return Use(frozenset(self.extents[name]), is_clear, is_tested)

    def take(self, *values: Value) -> Value:
        """Note that values go where nothing is known of what they do; nothing is known of what comes of them."""
        self.unclear.update(value.name for value in values if isinstance(value, Held))
        return None

    def join_masks(self, values: Iterable[Value], *, is_plain: bool) -> Value:
        """Return what follows from some values: where it follows from a mask, a mask."""
        values = list(values)
        self.take(*values)
        masks = [value for value in values if isinstance(value, Mask)]
        return Mask(masks[0].name, is_plain and any(mask.is_plain for mask in masks)) if masks else None

    def index(self, index: Value, table: Value, axis: int | None, *, takes_negative: bool) -> None:
        """Note that one value indexes an axis of another one."""
        if not isinstance(index, Held):
            return
        if not takes_negative and not index.has_no_padding:
            self.refused.add(index.name)
        extent: Extent | int | None = None
        if axis is not None and index.is_exact:
            match table:
                case Held(name=name, is_whole=True) | Made(sizes=str(name)):
                    extent = Extent(name, axis)
                case Made(sizes=sizes) if not isinstance(sizes, str) and -len(sizes) <= axis < len(sizes):
                    extent = sizes[axis]
        if extent is None:
            self.take(index)
        else:
            self.extents[index.name].add(extent)

    def compare(self, left: Value, kind: type[ast.cmpop], right: Value) -> Value:
        """Note a comparison, and return what it gives."""
        if kind in (ast.Is, ast.IsNot):
            return None
        if not isinstance(left, Held):
            left, kind, right = right, TURNED.get(kind, kind), left
        if not isinstance(left, Held):
            return None
        is_padding = isinstance(right, Number) and (kind, right.value) in PADDING_TESTS
        if self.is_guard or kind in (ast.In, ast.NotIn):
            self.refused.add(left.name)
            if not is_padding and not isinstance(right, Extent):
                self.take(left, right)
            return None
        if is_padding:
            self.tested.add(left.name)
        return Mask(left.name) if is_padding else None
