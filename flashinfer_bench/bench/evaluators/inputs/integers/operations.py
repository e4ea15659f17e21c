"""What torch's functions and methods do with the values that come from inputs."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from flashinfer_bench.bench.evaluators.inputs.integers.amounts import Amount, Elements, Extent, combine
from flashinfer_bench.bench.evaluators.inputs.integers.arithmetic import METHODS, accumulate, compute
from flashinfer_bench.bench.evaluators.inputs.integers.found import (
    MOST_AXES,
    Found,
    Held,
    Joint,
    Made,
    Mask,
    Number,
    ShapeOf,
    Value,
    Within,
    find_size,
    to_amount,
)

FACT_METHODS: Final = frozenset({"numel", "nelement", "dim", "stride", "is_contiguous", "element_size"})
SAME: Final = frozenset({"long", "int", "to", "contiguous", "clone", "detach", "cuda", "cpu", "float", "double"})
"""Methods that keep values and shape."""
ROUNDED: Final = frozenset({"half", "bfloat16"})
NARROW: Final = ("int8", "int16", "short", "char", "byte", "bool")
RESHAPED: Final = frozenset(
    {"view", "reshape", "flatten", "unsqueeze", "squeeze", "expand", "expand_as", "permute", "transpose", "t", "flip"}
)
"""Methods that keep values, in another shape."""
MOVED: Final = frozenset({"permute", "transpose", "t", "flip"})
"""Those of them that may bring values into another order."""
ELEMENTWISE: Final = frozenset(
    {"softmax", "log_softmax", "sigmoid", "exp", "log", "tanh", "relu", "silu", "gelu", "softplus", "sqrt", "rsqrt"}
)
"""Functions and methods of one tensor that give other values in its shape."""
RESHAPED_IN_PLACE: Final = frozenset(
    {"transpose_", "t_", "squeeze_", "unsqueeze_", "swapaxes_", "swapdims_", "resize_", "resize_as_", "set_"}
)
IN_PLACE: Final = frozenset(
    {"scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy", "index_fill"}
    | {"masked_fill", "clamp", "clamp_min", "clip"}
)
"""Methods that may be written with `_`, and change values in place."""
BY_DIMENSION: Final = frozenset(
    {"index_select", "gather", "scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy", "index_fill"}
)
CREATED: Final = frozenset({"zeros", "ones", "empty", "full"})
COMPARED: Final[Mapping[str, type[ast.cmpop]]] = {
    "lt": ast.Lt,
    "le": ast.LtE,
    "gt": ast.Gt,
    "ge": ast.GtE,
    "eq": ast.Eq,
    "ne": ast.NotEq,
}


class TorchCall:
    """A call with its arguments after the first one, or after the tensor whose method it is.

    Args:
        found: gets what is seen of inputs.
        value: returns what an expression is.
        args: the arguments by position.
        keywords: those by name.
    """

    def __init__(
        self,
        found: Found,
        value: Callable[[ast.expr], Value],
        args: Sequence[ast.expr],
        keywords: Mapping[str, ast.expr],
    ) -> None:
        self._found = found
        self._value = value
        self._args = list(args)
        self._keywords = dict(keywords)

    def call(self, name: str, first: ast.expr) -> Value:
        """Return what a function of torch gives."""
        match name:
            case "zeros" | "ones" | "empty" | "full":
                self._args.insert(0, first)
                return self._make(1 if name == "full" else None)
            case "zeros_like" | "ones_like" | "empty_like" | "full_like":
                value = self._value(first)
                self._take_rest()
                return Made(value.name) if isinstance(value, Held) and value.is_whole else None
            case "arange":
                return self._count(self._value(first))
            case "cat" | "concat" if isinstance(first, ast.Tuple | ast.List):
                return self._concatenate(list(map(self._value, first.elts)))
            case "where" if len(self._args) == 2:
                return self._choose(self._value(first))
            case "embedding" | "cross_entropy" | "nll_loss" | "one_hot":
                return self._look_up(name, self._value(first))
            case _:
                pass
        return self.apply(name, self._value(first))

    def apply(self, name: str, first: Value) -> Value:
        """Return what a tensor's method gives."""
        if isinstance(first, Held) and name in RESHAPED_IN_PLACE:
            self._found.reshaped.add(first.name)
        name = name.removesuffix("_") if name.removesuffix("_") in IN_PLACE else name
        if name in COMPARED and len(self._args) == 1:
            return self._found.compare(first, COMPARED[name], self._value(self._args[0]))
        if name in FACT_METHODS or name == "size":
            axis = self._take("dim", 0)
            self._take_rest()
            self._found.take(axis)
            if name != "size" or not isinstance(first, Held) or not first.is_whole:
                return None
            if isinstance(axis, Number) and axis.value is not None:
                return Extent(first.name, axis.value)
            return ShapeOf(first.name) if axis is None else None
        if name in METHODS and len(self._args) == 1 and not self._keywords:
            return compute(self._found, METHODS[name], first, self._value(self._args[0]))
        if name in ("new_zeros", "new_ones", "new_empty", "new_full"):
            return self._make(1 if name == "new_full" else None)
        if name in BY_DIMENSION or name == "take_along_dim":
            return self._index(name, first)
        is_same = name in SAME or (name in RESHAPED and not isinstance(first, Made))
        if is_same and isinstance(first, Made | Within | Joint):
            self._take_rest()
            return self._found.take(first) if self._changes_type(name) else first
        if isinstance(first, Held) and first.is_whole and name in ELEMENTWISE:
            self._take_rest()
            self._found.take(first)
            return Made(first.name)
        if isinstance(first, Held):
            return self._change(name, first)
        text = self._text(name)
        self._take_rest()
        self._found.take(first)
        if not isinstance(first, Mask):
            return None
        moves = (*first.moves, text) if name in MOVED else first.moves
        return Mask(first.name, first.is_plain and name in RESHAPED, moves)

    def _changes_type(self, name: str) -> bool:
        """Tell whether the arguments ask for a type that may not hold the values, or for their bits as another type."""
        text = " ".join(map(ast.unparse, (*self._args, *self._keywords.values())))
        narrow = rf"float16|half|dtype|{'|'.join(NARROW)}"
        return (name in RESHAPED and "torch." in text) or re.search(narrow, text) is not None

    def _change(self, name: str, first: Held) -> Value:
        """Return what a method gives whose result has no other values than the tensor."""
        text = " ".join(map(ast.unparse, (*self._args, *self._keywords.values())))
        if name in SAME | ROUNDED and not any(word in text for word in NARROW):
            self._take_rest()
            is_rounded = name in ROUNDED or re.search(r"float16|half|\bdtype\b(?!=)", text) is not None
            return first._replace(is_exact=first.is_exact and not is_rounded)
        if name in RESHAPED and "torch." not in text and "dtype" not in text:
            return self._reshape(name, first)
        if name in ("item", "tolist") and not text:
            return first.part()
        if name == "cumsum":
            axis = self._take("dim", 0)
            self._take_rest()
            return accumulate(self._found, first, axis.value if isinstance(axis, Number) else None)
        if name in ("clamp", "clip", "clamp_min"):
            return self._clamp(first)
        if name == "masked_fill" and len(self._args) == 2:
            mask, filled = map(self._value, self._args)
            if filled == Number(0):
                return first._replace(has_no_padding=first.has_no_padding or mask == first.mask)
        self._take_rest()
        return self._found.take(first)

    def _reshape(self, name: str, first: Held) -> Value:
        """Return the values in another shape; its sizes are known where `view` and `reshape` say them one by one."""
        values, text = [self._value(one) for one in self._args], self._text(name)
        self._take_rest()
        amounts = [to_amount(value) for value in values]
        if name not in ("view", "reshape") or not first.is_whole or self._keywords or None in amounts:
            return first.move(text) if name in MOVED else first.part()
        others: Amount = 1
        for amount in amounts:
            if amount is not None and amount != -1:
                others = amount if others == 1 else combine("*", others, amount)
        left = Elements(first.name) if others == 1 else combine("//", Elements(first.name), others)
        return first.part()._replace(sizes=tuple(left if amount == -1 else amount for amount in amounts))

    def _clamp(self, first: Held) -> Value:
        """Return the values of an input that are brought into a range; from below that is told of 0 alone."""
        least, most = self._take("min", 0), self._take("max", 0)
        self._take_rest()
        if not first.applied:
            self._found.take(most)
            if least in (None, Number(0)):
                return first._replace(has_no_padding=first.has_no_padding or least is not None)
            return self._found.take(first, least)
        low, high = to_amount(least), to_amount(most)
        if (least is not None and low is None) or (most is not None and high is None):
            return self._found.take(first, least, most)
        if high is not None:
            self._found.wrap(first, combine("+", high, 1))
            first = first.apply("most", high, high)
        return first if low is None else first.apply("least", low, low)

    def _concatenate(self, parts: Sequence[Value]) -> Value:
        """Return what `cat` gives: the first size is known, if that is what grows."""
        is_given = bool(self._args or self._keywords)
        is_first = (self._take("dim", 0) == Number(0) or not is_given) and not self._keywords
        self._take_rest()
        self._found.take(*parts)
        sizes = [find_size(part, 0) for part in parts]
        if not is_first or None in sizes or not sizes:
            return None
        total: Amount = 0
        for size in sizes:
            total = total if size is None else combine("+", total, size)
        return Made((total, *[None] * MOST_AXES))

    def _count(self, first: Value) -> Value:
        """Return what `arange` gives: whole numbers from a size, or from 0, to another one."""
        ends = [first, *(self._value(self._args.pop(0)) for _ in range(min(len(self._args), 2)))]
        is_named = not self._keywords.keys().isdisjoint(("start", "end", "step"))
        self._found.take(*ends)
        self._take_rest()
        if is_named:
            return None
        low, high = (Number(0), ends[0]) if len(ends) == 1 else (ends[0], ends[1])
        return count(low, high, ends[2] if len(ends) == 3 else Number(1), is_single=False)

    def _choose(self, mask: Value) -> Value:
        """Return what `where` gives: the values of an input, where one of the two is that, and the other one zero."""
        sides = [self._value(one) for one in self._args]
        for held, other, zero in ((*sides, self._args[1]), (*sides[::-1], self._args[0])):
            is_zeros = isinstance(zero, ast.Call) and ast.unparse(zero.func) in ("torch.zeros_like", "torch.zeros")
            if isinstance(held, Held) and (other == Number(0) or is_zeros):
                return held.part()._replace(has_no_padding=held.has_no_padding or mask == held.mask)
        return self._found.take(mask, *sides)

    def _index(self, name: str, table: Value) -> Value:
        """Note an index along one axis; what changes a tensor in places leaves its shape."""
        text = self._text(name)
        if name == "take_along_dim":
            index, axis = self._take("indices", 0), self._take("dim", 0)
        else:
            axis, index = self._take("dim", 0), self._take("index", 0)
        self._take_rest()
        self._found.take(axis)
        known = axis.value if isinstance(axis, Number) else None
        self._found.index(index, table, known, takes_negative=False)
        if name in ("index_select", "gather", "take_along_dim"):
            return table.move(text) if isinstance(table, Held) else self._found.take(table)
        self._found.take(table)
        return Made(table.name) if isinstance(table, Held) and table.is_whole else table

    def _look_up(self, name: str, first: Value) -> Value:
        """Note what functions look up by whole numbers: rows, classes."""
        second = self._take({"embedding": "weight", "one_hot": "num_classes"}.get(name, "target"), 0)
        ignored = self._take("ignore_index", len(self._args))
        self._take_rest()
        self._found.keep(None, ignored, second if name == "one_hot" else first)
        match name:
            case "embedding":
                self._found.index(first, second, 0, takes_negative=False)
                return second.part() if isinstance(second, Held) else self._found.take(second)
            case "one_hot":
                self._found.index(first, Made((to_amount(second),)), 0, takes_negative=False)
            case _:
                padding = to_amount(ignored)
                if isinstance(second, Held) and not second.applied and isinstance(padding, int) and padding < 0:
                    self._found.pad(second, padding)
                    second = second._replace(has_no_padding=True)
                self._found.index(second, first, 1, takes_negative=False)
        return None

    def _make(self, count: int | None) -> Value:
        """Return a new tensor, given its sizes one by one or together; `count` arguments say them."""
        given = self._args[:count]
        if len(given) == 1 and isinstance(given[0], ast.Tuple | ast.List):
            given = given[0].elts
        values = [self._value(one) for one in given]
        self._found.take(*values, *map(self._value, (*self._args[len(given) :], *self._keywords.values())))
        return Made(tuple(map(to_amount, values))) if values else None

    def _take(self, name: str, at: int) -> Value:
        """Take an argument by its name, or by its position among those that are left; None where it is not given."""
        if name in self._keywords:
            return self._value(self._keywords.pop(name))
        return self._value(self._args.pop(at)) if len(self._args) > at else None

    def _text(self, name: str) -> str:
        """Return the call as the source has it, without what it is called with first."""
        keywords = [f"{key}={ast.unparse(one)}" for key, one in self._keywords.items()]
        return f"{name}({', '.join([*map(ast.unparse, self._args), *keywords])})"

    def _take_rest(self) -> None:
        self._found.take(*map(self._value, (*self._args, *self._keywords.values())))


def count(low: Value, high: Value, step: Value, *, is_single: bool) -> Value:
    """Return whole numbers from one size to another one, without that; None where nothing is known of them."""
    least, end, width = to_amount(low), to_amount(high), to_amount(step)
    if least is None or end is None or not isinstance(width, int) or width < 1:
        return None
    return Within(least, combine("-", end, 1), is_single)
