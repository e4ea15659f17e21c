"""How a reference uses an integer input: which inputs it indexes with it, and whether it tests it for padding.

The syntax tree of `run` is followed; nothing is executed. A wrong index ends a GPU's session, so every place where the
input or an alias of it stands has to be one that is known here. If there is any other place, the use is not clear, and
the input keeps the range that it has without this.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

from flashinfer_bench.bench.evaluators.inputs.integers.amounts import Extent, Given
from flashinfer_bench.bench.evaluators.inputs.integers.arithmetic import KINDS, compute
from flashinfer_bench.bench.evaluators.inputs.integers.bound import list_bound, list_shared
from flashinfer_bench.bench.evaluators.inputs.integers.found import (
    ALL,
    ANY_ORDER,
    Found,
    Held,
    Joint,
    Mask,
    Number,
    ShapeOf,
    Use,
    Value,
    Within,
    find_left,
    is_single_number,
)
from flashinfer_bench.bench.evaluators.inputs.integers.operations import TorchCall, count
from flashinfer_bench.data.reference import ENTRY_NAME, parse_module

DEEPEST: Final = 3
"""Functions that call one another are followed so far."""
PASSES: Final = 6
"""The body of a loop is read again until its names stay what they are; so often at the most."""
MODULES: Final = frozenset({"torch", "F", "torch.nn.functional", "nn.functional", "functional"})
UNREADABLE: Final = frozenset({"eval", "exec", "locals", "globals", "vars", "setattr"})
KEEPING: Final = (ast.NotEq, ast.GtE, ast.Gt)
"""Tests for padding that hold where there is none."""
LEAVING: Final = (ast.Eq, ast.Lt, ast.LtE)
"""Tests for padding that hold where there is some."""
FACTS: Final = frozenset({"shape", "device", "dtype", "ndim", "is_cuda", "layout"})
"""Attributes of a tensor that do not depend on its values."""


@lru_cache(maxsize=256)
def find_uses(source: str, numbers: frozenset[str] = frozenset()) -> Mapping[str, Use]:
    """Return parameter of a reference's `run` → how it is used; nothing where the source cannot be read.

    Args:
        source: the reference.
        numbers: the parameters that are single numbers.
    """
    try:
        tree = parse_module(source)
        nodes = list(ast.walk(tree))
        called = Counter(node.name for node in nodes if isinstance(node, ast.FunctionDef))
        functions = {
            node.name: node for node in tree.body if isinstance(node, ast.FunctionDef) and called[node.name] == 1
        }
        if ENTRY_NAME not in functions or any(isinstance(node, ast.Name) and node.id in UNREADABLE for node in nodes):
            return {}
        found, parameters = Found(), list_parameters(functions[ENTRY_NAME])
        names = {name: Given(name) if name in numbers else Held(name) for name in parameters}
        constants = _read_constants(tree, functions)
        _Reader(found, functions, {**constants, **names}, constants).read(functions[ENTRY_NAME].body)
    except (ValueError, RecursionError, MemoryError):
        return {}
    return {name: found.tell(name) for name in parameters}


def find_use(source: str, name: str, numbers: frozenset[str] = frozenset()) -> Use:
    """Return how a reference uses one of its inputs."""
    return find_uses(source, numbers).get(name, Use())


def list_parameters(function: ast.FunctionDef) -> list[str]:
    """Return the names of a function's parameters, but for those that take any number."""
    return [one.arg for one in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]


def _read_constants(tree: ast.Module, functions: Mapping[str, ast.FunctionDef]) -> dict[str, Value]:
    """Return the names of a module that stand for one whole number, wherever they are read."""
    reader = _Reader(Found(), functions, {}, {})
    bound = Counter(name for node in ast.walk(tree) for name in list_bound(node))
    reader.read([one for one in tree.body if isinstance(one, ast.Assign | ast.AnnAssign)])
    return {
        name: value
        for name, value in reader.names.items()
        if isinstance(value, Number) and value.value is not None and bound[name] == 1 and "*" not in bound
    }


class _Reader:
    """Follows the values of inputs through the statements of one function."""

    def __init__(
        self,
        found: Found,
        functions: Mapping[str, ast.FunctionDef],
        names: dict[str, Value],
        constants: Mapping[str, Value],
        depth: int = 0,
    ) -> None:
        self.returned: list[Value] = []
        self.names = names
        self._found = found
        self._functions = functions
        self._constants = constants
        self._depth = depth
        self._marked: set[str] = set()
        """Names that hold no padding as far as the block goes that is read."""
        self._shared: set[str] = set()
        """Names that functions inside this one may read or change whenever they are called."""

    def read(self, body: Sequence[ast.stmt], *, is_once: bool = True) -> None:
        """Read statements; `is_once` where each is executed exactly once, so that a name has its last value."""
        for statement in body:
            self._read_statement(statement, is_once)

    def _read_statement(self, statement: ast.stmt, is_once: bool) -> None:
        match statement:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, value, is_once)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, value, is_once)
            case ast.AugAssign(target=target, value=value):
                self._found.take(self._value(value), self._value(target))
                self._bind(target, None, is_once)
            case ast.Expr(value=value):
                self._value(value)
            case ast.Return(value=value):
                parts = value.elts if isinstance(value, ast.Tuple) and not self._depth else [value]
                self.returned += [None if part is None else self._value(part) for part in parts]
            case ast.If(test=test, body=body, orelse=orelse):
                self._test(test, is_guard=any(isinstance(one, ast.Raise) for one in body))
                kept = self._leave_padding_out(test, KEEPING)
                self._read_block(body, {kept} if kept is not None else set())
                self._read_block(orelse, set())
                if isinstance(body[-1], ast.Continue | ast.Return) and not orelse:
                    left = self._leave_padding_out(test, LEAVING)
                    self._marked |= {left} if left is not None else set()
            case ast.For() | ast.While():
                self._read_loop(statement)
            case ast.With(items=items, body=body):
                for item in items:
                    self._found.take(self._value(item.context_expr))
                    if item.optional_vars is not None:
                        self._bind(item.optional_vars, None, is_once)
                may_stop = any("suppress" in ast.unparse(item.context_expr) for item in items)
                self.read(body, is_once=is_once and not may_stop)
            case ast.Assert(test=test):
                self._test(test, is_guard=True)
            case ast.Import() | ast.ImportFrom():
                self._forget(statement)
            case ast.Pass() | ast.Break() | ast.Continue() | ast.Raise():
                pass
            case _:
                self._lose(statement)

    def _read_block(self, body: Sequence[ast.stmt], marked: set[str]) -> None:
        """Read statements that may be skipped; that some names hold no padding is known only in them."""
        outer, self._marked = self._marked, marked
        self.read(body, is_once=False)
        for name in self._marked:
            if isinstance(held := self.names.get(name), Held):
                self.names[name] = held._replace(has_no_padding=False)
        self._marked = outer

    def _leave_padding_out(self, test: ast.expr, kinds: tuple[type[ast.cmpop], ...]) -> str | None:
        """Note that a name holds no padding, where it is tested for that by such a test; return it."""
        match test:
            case ast.Compare(left=ast.Name(id=name), ops=[op]) if isinstance(op, kinds):
                held = self.names.get(name)
                if isinstance(held, Held) and not held.has_no_padding and self._value(test) == held.mask:
                    self.names[name] = held._replace(has_no_padding=True)
                    return name
            case _:
                pass
        return None

    def _read_loop(self, loop: ast.For | ast.While) -> None:
        for _ in range(PASSES):
            before = dict(self.names)
            if isinstance(loop, ast.For):
                self._bind_items(loop.target, loop.iter)
            else:
                self._test(loop.test, is_guard=True)
            self._read_block(loop.body, set())
            if self.names == before:
                break
        else:
            self._found.take(*self.names.values())
        self._read_block(loop.orelse, set())

    def _bind_items(self, target: ast.expr, of: ast.expr) -> None:
        """Bind the names of a loop to what each of some values may be."""
        match of, target:
            case ast.Call(func=ast.Name(id="range"), args=given), _:
                ends = list(map(self._value, given))
                self._found.take(*ends)
                low, high = (ends[0], ends[1]) if len(ends) > 1 else (Number(0), ends[0] if ends else None)
                counted = count(low, high, ends[2] if len(ends) == 3 else Number(1), is_single=True)
                self._bind(target, Number() if counted is None else counted, False)
            case ast.Call(func=ast.Name(id="enumerate"), args=[one]), ast.Tuple(elts=[first, second]):
                self._bind(first, Number(), False)
                self._bind_items(second, one)
            case _:
                value = self._value(of)
                item = value.part() if isinstance(value, Held) else self._found.take(value)
                self._bind(target, item, False)

    def _assign(self, target: ast.expr, value: ast.expr, is_once: bool) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for part, given in zip(target.elts, [self._value(one) for one in value.elts], strict=True):
                self._bind(part, given, is_once)
        else:
            self._bind(target, self._value(value), is_once)

    def _bind(self, target: ast.expr, value: Value, is_once: bool) -> None:
        match target:
            case ast.Name(id=name) if name in self._shared:
                self.names[name] = self._found.take(value)
            case ast.Name(id=name):
                self.names[name] = value if is_once or name not in self.names else self._join(name, value)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                sizes = isinstance(value, ShapeOf) and not any(isinstance(part, ast.Starred) for part in parts)
                self._found.take(value)
                for axis, part in enumerate(parts):
                    given = Extent(value.name, axis) if sizes and isinstance(value, ShapeOf) else None
                    self._bind(part.value if isinstance(part, ast.Starred) else part, given, is_once)
            case ast.Subscript(value=owner):
                self._value(target)
                self._found.take(value)
                if value != Number(0):
                    self._found.take(self._value(owner))
            case ast.Attribute(value=owner):
                self._found.take(value)
                changed = self._value(owner)
                if isinstance(changed, Held):
                    self._found.reshaped.add(changed.name)
            case _:
                self._found.take(value)

    def _join(self, name: str, value: Value) -> Value:
        """Return what a name is that may have its old value, or a new one."""
        old = self.names[name]
        if isinstance(old, Held) and isinstance(value, Held) and old.is_like(value):
            return old._replace(
                is_whole=old.is_whole and value.is_whole,
                is_exact=old.is_exact and value.is_exact,
                has_no_padding=old.has_no_padding and value.has_no_padding,
                moves=old.moves if old.moves == value.moves else ANY_ORDER,
                sizes=old.sizes if old.sizes == value.sizes else None,
            )
        if old == value:
            return value
        self._found.take(old, value)
        return None

    def _test(self, test: ast.expr, *, is_guard: bool) -> None:
        before, self._found.is_guard = self._found.is_guard, is_guard or self._found.is_guard
        self._found.take(self._value(test))
        self._found.is_guard = before

    def _lose(self, node: ast.AST) -> Value:
        """Note that nothing is known of what a piece of code does with the names in it, nor of what they are then."""
        nodes = list(ast.walk(node))
        self._found.take(*(self.names.get(one.id) for one in nodes if isinstance(one, ast.Name)))
        self._shared |= list_shared(node)
        self._forget(node)
        if any(isinstance(one, ast.Return) for one in nodes):
            self.returned.append(None)
        return None

    def _forget(self, node: ast.AST) -> None:
        """Note that nothing is known of the names that a piece of code binds; modules that it imports stay modules."""
        for one in ast.walk(node):
            for name in list_bound(one):
                if not isinstance(one, ast.alias) or name in self.names or name in self._functions:
                    self.names[name] = self._found.take(self.names.get(name))

    def _value(self, node: ast.expr) -> Value:
        match node:
            case ast.Constant(value=int() as number) if not isinstance(number, bool):
                return Number(number)
            case ast.Constant():
                return None
            case ast.JoinedStr():
                self._forget(node)
                return None
            case ast.Name(id=name):
                value = self.names.get(name)
                if isinstance(value, Mask) and self._found.is_guard:
                    self._found.refused.add(value.name)
                return value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as number)):
                return Number(-number)
            case ast.Attribute(value=owner, attr=attribute):
                return self._attribute(self._value(owner), attribute)
            case ast.Subscript():
                return self._subscript(node)
            case ast.Call():
                return self._call(node)
            case ast.Compare(left=left, ops=ops, comparators=others):
                sides = [self._value(side) for side in (left, *others)]
                pairs = zip(sides, ops, sides[1:], strict=False)
                told = [self._found.compare(a, type(op), b) for a, op, b in pairs]
                return told[0] if len(told) == 1 else None
            case ast.IfExp(test=test, body=body, orelse=orelse):
                self._test(test, is_guard=False)
                values = self._value(body), self._value(orelse)
                return values[0] if values[0] == values[1] else self._found.take(*values)
            case ast.NamedExpr(target=target, value=value):
                self._assign(target, value, False)
                return self._value(value)
            case ast.ListComp(elt=part, generators=loops) | ast.GeneratorExp(elt=part, generators=loops):
                for again in (one for one in ast.walk(node) if isinstance(one, ast.NamedExpr)):
                    self._forget(again)
                for loop in loops:
                    self._bind_items(loop.target, loop.iter)
                    for test in loop.ifs:
                        self._test(test, is_guard=False)
                return self._found.take(self._value(part))
            case ast.BinOp(op=op, left=left, right=right):
                one, other = self._value(left), self._value(right)
                if type(op) in KINDS:
                    return compute(self._found, KINDS[type(op)], one, other)
                return self._found.join_masks((one, other), is_plain=isinstance(op, ast.BitAnd))
            case ast.UnaryOp(operand=operand):
                return self._found.join_masks([self._value(operand)], is_plain=False)
            case ast.BoolOp(values=parts):
                return self._found.join_masks(map(self._value, parts), is_plain=False)
            case ast.Tuple() | ast.List() | ast.Set() | ast.Starred():
                parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
                return self._found.take(*map(self._value, parts))
            case _:
                return self._lose(node)

    def _attribute(self, owner: Value, attribute: str) -> Value:
        if attribute in FACTS:
            is_known = attribute == "shape" and isinstance(owner, Held) and owner.is_whole
            return ShapeOf(owner.name) if is_known and isinstance(owner, Held) else None
        if not isinstance(owner, Held):
            return self._found.take(owner)
        if attribute in ("T", "mT", "data"):
            return owner.part() if attribute == "data" else owner.move(attribute)
        return self._found.take(owner)

    def _subscript(self, node: ast.Subscript) -> Value:
        base = self._value(node.value)
        if isinstance(base, ShapeOf):
            at = self._lose(node.slice) if isinstance(node.slice, ast.Slice) else self._value(node.slice)
            self._found.take(at)
            return Extent(base.name, at.value) if isinstance(at, Number) and at.value is not None else None
        axis: int | None = 0
        has_no_padding = isinstance(base, Held) and base.has_no_padding
        taken: list[Value] = []
        for item in node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]:
            if isinstance(item, ast.Constant) and item.value is None:
                taken.append(None)
                continue
            if isinstance(item, ast.Slice):
                ends = (end for end in (item.lower, item.upper, item.step) if end is not None)
                self._found.take(*map(self._value, ends))
                is_all = item.lower is None and item.upper is None and item.step is None
                value: Value = Number()
                taken.append(ALL if is_all else None)
            else:
                value = self._value(item)
                taken.append(value)
            self._found.index(value, base, axis, takes_negative=True)
            if isinstance(base, Held) and value == base.mask:
                has_no_padding = True
            is_one_axis = is_single_number(value) or isinstance(value, Within)
            axis = axis + 1 if is_one_axis and axis is not None else None  # a mask may take several axes
        if not isinstance(base, Held):
            if isinstance(base, Within):
                return replace(base, is_single=False)
            return base if isinstance(base, Joint) else None
        moved = base.move(ast.unparse(node.slice))
        return moved._replace(has_no_padding=has_no_padding, sizes=find_left(base, taken))

    def _call(self, node: ast.Call) -> Value:
        keywords = {one.arg: one.value for one in node.keywords if one.arg is not None}
        if len(keywords) < len(node.keywords) or any(isinstance(one, ast.Starred) for one in node.args):
            return self._lose(node)
        match node.func, node.args:
            case ast.Name(id="len"), [one]:
                value = self._value(one)
                return Extent(value.name, 0) if isinstance(value, Held) and value.is_whole else None
            case ast.Name(id="int"), [one]:
                value = self._value(one)
                if isinstance(value, Held):
                    return value.part()
                return value if is_single_number(value) or isinstance(value, Within | Joint) else Number()
            case ast.Name(id=name), args if name in self._functions and name not in self.names:
                return self._follow(self._functions[name], args, keywords)
            case ast.Attribute(value=owner, attr=name), args:
                root = ast.unparse(owner)
                is_function = root in MODULES and root.split(".")[0] not in self.names
                if not is_function:
                    return TorchCall(self._found, self._value, args, keywords).apply(name, self._value(owner))
                if not args:
                    return self._found.take(*map(self._value, keywords.values()))
                operation = TorchCall(self._found, self._value, args[1:], keywords)
                return operation.call(name, args[0])
            case ast.Name(), args:
                return self._found.take(*map(self._value, (*args, *keywords.values())))
            case _:
                return self._lose(node)

    def _follow(self, function: ast.FunctionDef, args: Sequence[ast.expr], keywords: Mapping[str, ast.expr]) -> Value:
        """Return what a function of the reference gives, if it is short to tell."""
        parameters, given = list_parameters(function), [self._value(one) for one in args]
        named = {name: self._value(value) for name, value in keywords.items()}
        has_more = function.args.vararg or function.args.kwarg or len(given) > len(parameters)
        if has_more or self._depth >= DEEPEST or not named.keys() <= set(parameters):
            return self._found.take(*given, *named.values())
        names = {**self._constants, **dict.fromkeys(parameters), **dict(zip(parameters, given, strict=False)), **named}
        reader = _Reader(self._found, self._functions, names, self._constants, self._depth + 1)
        reader.read(function.body)
        values = set(reader.returned)
        return values.pop() if len(values) == 1 else self._found.take(*values)
