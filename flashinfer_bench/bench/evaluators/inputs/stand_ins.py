"""Runs a definition's reference on traced tensors (stand-ins, `Traced`), and records its operations on integers.

Tensors of integers have values, on the CPU. Tensors of floats have only shapes, on the "meta" device. So an operation
takes some microseconds at any size. If an operation indexes or slices by integers, the indices are recorded with their
exclusive bound. The run continues with valid indices. Values that depend on floats are unknown. If Python reads an
unknown float, it gets 1. An unknown mask selects all elements.

A run changes no input, and executes no code of a solution. The run ends early if the reference requests a tensor's
address, changes a shape in place, has too many operations, or cannot be followed for another reason.
"""

from __future__ import annotations

import contextlib
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flashinfer_bench.bench.evaluators.reference import Reference

MOST_OPERATIONS: Final = 300
"""Maximum operations of torch in one run."""
MOST_ELEMENTS: Final = 1 << 20
"""Maximum elements of a tensor of integers that has values. A larger tensor has only a shape."""
MOST_FLOATS: Final = 1 << 12
"""Like MOST_ELEMENTS, for a tensor of floats that is computed from integers."""
BY_DIMENSION: Final = re.compile(
    r"(select|embedding|index_(select|add|copy|fill|reduce)|gather|scatter(_add|_reduce)?)_?"
)
"""Operations with indices along one dimension."""
DID: Final = {
    **dict.fromkeys(("rshift", "bitwise_right_shift"), "shift"),
    **dict.fromkeys(("and", "bitwise_and"), "mask"),
    **dict.fromkeys(("floor_divide", "remainder", "fmod"), "divide"),
    **dict.fromkeys(("pow", "ldexp", "exp", "exp2", "expm1", "cosh", "sinh", "bitwise_left_shift", "lshift"), "choose"),
    **dict.fromkeys(("nonzero", "bincount", "unique2", "repeat_interleave"), "choose"),
}
"""Operation → its use of an integer's bits. The operations' names lack the underscores around them.

"choose": the integer selects elements, a size or an exponent, so only some integers are valid."""
TESTS: Final = frozenset({("lt", 0), ("ge", 0), ("gt", -1), ("le", -1)})
"""Comparisons that separate -1 from all larger numbers."""
SMALL_SIZES: Final = (19, 31, 43, 59, 71, 83)
"""Sizes that stand for larger sizes, to find the shape of a result. They lie apart, so that padding or cutting one of
them by some elements does not make another."""
MOST_RESULTS: Final = 1 << 12
_results: dict[tuple[Any, str], list[tuple[Sequence[int], torch.dtype]] | None] = {}
"""Operation and its arguments → shapes and dtypes of its results; None if they are unknown."""
DONE: Final = "done"
STOPPED: Final = "stopped"


class UsedIndices(NamedTuple):
    """The lowest and the highest index of one operation; `low` is above `high` if there are no indices."""

    operation: str
    size: int
    low: int
    high: int
    wraps: bool
    """Whether negative indices count from the end."""

    def lies_within(self, least: int) -> bool:
        """Return whether all indices are inside the tensor, and negative indices are at least `least`."""
        return self.low > self.high or (
            self.low >= (max(least, -self.size) if self.wraps else 0) and self.high < self.size
        )


class _Stop(BaseException):
    """Ends a run that is too long, or that cannot be followed."""


class Traced(torch.Tensor):
    """A stand-in for a tensor on the reference's device."""

    content: torch.Tensor
    """The values, on the CPU; on "meta" if none are known."""
    sources: set[str]
    """Inputs on which the values depend; a view shares the set with its base."""
    watch: Watch
    note: Any = None
    """The result of `Watch.conclude` for this tensor."""
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment] # as torch has it

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise NotImplementedError(f"{func} of a stand-in after its run")

    @staticmethod
    def make(inner: torch.Tensor, sources: set[str], watch: Watch) -> Traced:
        """Return a stand-in; asking for its address raises an error."""
        made: Traced = torch.Tensor._make_wrapper_subclass(
            Traced, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=watch.device
        )
        torch._C._set_throw_on_mutable_data_ptr(made)
        made.content, made.sources, made.watch = inner, sources, watch
        return made

    def read(self) -> torch.Tensor:
        """Return the values for Python. Unknown values are all replaced by the same number."""
        self.watch.did["choose"] |= self.sources
        self.watch.is_open = False
        if not self.content.is_meta:
            return self.content
        value = self.watch.truth if self.dtype == torch.bool else float(self.is_floating_point())
        return torch.full(self.content.shape, value, dtype=self.dtype)

    def tolist(self) -> Any:
        """Return the values as Python numbers."""
        return self.read().tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"tensor({list(self.shape)}, dtype={self.dtype})"


def name_of(func: Any) -> str:
    """Return the name of an operation of torch."""
    name: str = func._schema.name
    return name.removeprefix("aten::")


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch has no types for it
    """Executes operations on stand-ins, and records how they use integers.

    Args:
        device: device that the reference's tensors report.
        truth: the value of bools that depend on floats.
    """

    def __init__(self, device: torch.device, *, truth: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device, self.truth = device, truth
        self.seen: list[UsedIndices] = []
        self.tests: set[tuple[str, int]] = set()
        """Pairs: an input, and a negative number that the reference compared with the input's values."""
        self.did: dict[str, set[str]] = {what: set() for what in ("shift", "mask", "divide", "choose", "lost")}
        """Kind of use → the inputs on which the used values depend. "lost" means indices whose values are unknown."""
        self.count = 0
        self.is_open = True
        """Whether Python read no values, and no operation wrote in place."""
        self.end = DONE
        """How the run ended: DONE, STOPPED or an error's type."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, which takes two seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        name, arguments = name_of(func), func._schema.arguments
        if self.count > MOST_OPERATIONS or torch.Tag.inplace_view in func.tags:
            raise _Stop
        tensors: list[Traced] = []

        def enter(value: torch.Tensor) -> Traced:
            tensors.append(value if isinstance(value, Traced) else Traced.make(take_values(value), set(), self))
            return tensors[-1]

        named = {**dict(zip([one.name for one in arguments], args, strict=False)), **(kwargs or {})}
        given = {key: _map(enter, value) for key, value in named.items()}
        if name == "_local_scalar_dense":
            return tensors[0].read().item()
        sources = set[str]().union(*[tensor.sources for tensor in tensors])
        if sources:
            self._note(name, given, sources)
        self._check_indices(name, given, tensors)
        is_known = not any(tensor.content.is_meta for tensor in tensors)
        written: list[Traced] = [given[one.name] for one in arguments if one.alias_info and one.alias_info.is_write]
        if written:
            written[0].sources |= sources
            self.is_open = False
            if is_known:  # else the tensor keeps its old values
                _execute(func, given)
            return written[0]
        results = None if func.is_view else _find_shapes(func, given, tensors)
        is_fixed = is_known and torch.Tag.nondeterministic_seeded not in func.tags
        if results is None or (is_fixed and all(map(_is_small, results))):
            made = _execute(func, given)
        else:
            made = [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in results]
            made = made[0] if len(made) == 1 else made
        shared = tensors[0].sources if func.is_view and tensors else sources
        made = _map(lambda one: Traced.make(one, shared, self), made)
        self.conclude(func, given, made)
        return made

    def conclude(self, func: Any, given: Mapping[str, Any], result: Any) -> None:
        """Do nothing; a subclass can record facts about an operation that writes nothing in place."""

    def _note(self, name: str, given: Mapping[str, Any], sources: set[str]) -> None:
        """Record an operation's use of the bits of integers, and its tests for padding."""
        what, other = DID.get(name.strip("_")), given.get("other")
        if name == "view" and "dtype" in given:
            what = "choose" if given["dtype"].is_floating_point else "divide"
        if what is not None:
            self.did[what] |= sources
        if isinstance(other, int) and isinstance(given["self"], Traced) and not given["self"].content.is_meta:
            number = -1 if (name, other) in TESTS else other if name in ("eq", "ne") else 0
            if number < 0 and given["self"].numel() and given["self"].content.min() == number:
                self.tests |= {(one, number) for one in sources}

    def _check_indices(self, name: str, given: dict[str, Any], tensors: list[Traced]) -> None:
        """Record the indices among the arguments, and replace invalid indices by valid indices."""
        shape: Sequence[int] = tensors[0].shape if tensors else ()
        dim, key = given.get("dim", 0), "indices" if "indices" in given else "index"
        if name.strip("_") in ("index", "index_put", "unsafe_index"):
            parts = [part for one in given[key] for part in self._to_integers(one)]
            given[key] = [self._check("index", one, size, wraps=True) for one, size in zip(parts, shape, strict=False)]
        elif name == "slice":
            for end in (given.get("start"), given.get("end")):
                if end is not None and abs(end) < 1 << 62:
                    self._check(name, end, shape[dim] + 1, wraps=True)
        elif name in ("nll_loss_forward", "nll_loss2d_forward"):
            self._check(name, given["target"], shape[min(len(shape) - 1, 1)], ignored=given["ignore_index"])
        elif name == "eq" and isinstance(given["other"], Traced) and shape[-1:] == (1,) and _counts(given["other"]):
            self._check("one_hot", given["self"], len(given["other"]))
        elif BY_DIMENSION.fullmatch(name) and key in given:
            given[key] = self._check(name, given[key], shape[dim] if shape else 1, wraps=name == "select")

    def _to_integers(self, index: Traced | None) -> list[Traced | None]:
        """Return the indices that a mask selects; a mask without known values selects all elements."""
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            return [index]
        inner, unknown = index.content, torch.empty(index.ndim, index.numel(), dtype=torch.long, device="meta")
        self.did["choose"] |= index.sources
        return [
            Traced.make(part, set(index.sources), self) for part in (unknown if inner.is_meta else inner.nonzero().T)
        ]

    def _check(self, operation: str, index: Any, size: int, *, wraps: bool = False, ignored: Any = None) -> Any:
        """Record indices along one axis, and return valid indices."""
        if index is None:
            return None
        low = high = index
        if isinstance(index, Traced):
            self.did["choose"] |= index.sources
            if index.content.is_meta:
                self.did["lost"] |= index.sources
                return index
            values = index.content if ignored is None else index.content[index.content != ignored]
            if values.numel() < index.numel():
                self.tests |= {(name, ignored) for name in index.sources}
            low, high = map(int, values.aminmax()) if values.numel() else (0, -1)
        self.seen.append(UsedIndices(operation, size, low, high, wraps))
        if self.seen[-1].lies_within(-size):
            return index
        if size < 1:
            raise _Stop
        bounds = -size if wraps else 0, size - 1
        if not isinstance(index, Traced):
            return min(max(index, bounds[0]), bounds[1])
        return Traced.make(index.content.clamp(*bounds), index.sources, self)


def _map(change: Callable[[Any], Any], value: Any) -> Any:
    """Apply `change` to a tensor, or to each tensor in a list."""
    if isinstance(value, (list, tuple)):
        return [_map(change, one) for one in value]
    return change(value) if isinstance(value, torch.Tensor) else value


def _execute(func: Any, given: Mapping[str, Any], take: Callable[[Any], torch.Tensor] = attrgetter("content")) -> Any:
    """Execute an operation on the contents of stand-ins, or on other tensors in their place."""
    own = {key: value for key, value in given.items() if key not in ("device", "pin_memory")}
    return func(**{key: _map(take, value) for key, value in own.items()})


def _is_small(result: tuple[Sequence[int], torch.dtype]) -> bool:
    return math.prod(result[0]) <= (MOST_FLOATS if result[1].is_floating_point else MOST_ELEMENTS)


def _find_shapes(func: Any, given: Mapping[str, Any], tensors: list[Traced]) -> list[tuple[Sequence[int], torch.dtype]]:
    """Return shapes and dtypes of an operation's results. Results of an unknown operation get the shape and dtype of
    its first tensor. torch's own way to find shapes would import its compiler, which takes seconds.
    """
    name, dim, size = name_of(func), given.get("dim", -1), given.get("size", [])
    if not tensors:
        if name == "arange":
            size = [max(0, math.ceil((given["end"] - given.get("start", 0)) / given.get("step", 1)))]
        return [(size if isinstance(size, list) else [size], given.get("dtype") or torch.get_default_dtype())]
    first = tensors[0]
    shape, dtype = list(first.shape), given.get("dtype") or first.dtype
    if "size" in given:
        shape = size
    elif name == "cat":
        dim = given.get("dim", 0)
        shape[dim] = sum(tensor.shape[dim] for tensor in tensors)
    elif name == "stack":
        shape.insert(given.get("dim", 0) % (len(shape) + 1), len(tensors))
    elif name == "topk":
        shape[dim] = given["k"]
    elif name == "nonzero":
        shape, dtype = [first.numel(), first.ndim], torch.long
    elif name == "masked_select":
        shape = [first.numel()]
    elif name == "repeat":
        times = given["repeats"]
        shape = [size * many for size, many in zip([1] * (len(times) - len(shape)) + shape, times, strict=True)]
    elif func.namespace == "aten" and torch.Tag.nondeterministic_seeded not in func.tags:
        key = func, repr(given)
        if key not in _results:
            if len(_results) >= MOST_RESULTS:
                _results.clear()
            _results[key] = _execute_small(func, given, tensors)
        if (known := _results[key]) is not None:
            return known
    return [(shape, dtype), *[(shape, torch.long)] * (len(func._schema.returns) - 1)]


def _execute_small(
    func: Any, given: Mapping[str, Any], tensors: list[Traced]
) -> list[tuple[Sequence[int], torch.dtype]] | None:
    """Return shapes and dtypes of an operation's results, as small tensors in the place of its tensors show. Each large
    size has a small size of its own. None if the operation fails on small tensors."""
    sizes = sorted({size for tensor in tensors for size in tensor.shape})
    small = {size: size for size in sizes if size < SMALL_SIZES[0]}
    small |= zip(sizes[len(small) :], SMALL_SIZES, strict=False)
    large = {to: size for size, to in small.items()}

    def take(fill: Callable[..., torch.Tensor], one: torch.Tensor) -> torch.Tensor:
        return fill([small[size] for size in one.shape], dtype=one.dtype)

    for fill in (torch.ones, torch.zeros):
        with contextlib.suppress(Exception):
            made = _execute(func, given, partial(take, fill))
            results = [made] if isinstance(made, torch.Tensor) else made
            return [([large.get(size, size) for size in one.shape], one.dtype) for one in results]
    return None


def take_values(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor on the CPU. A tensor of more than MOST_ELEMENTS elements has only its shape, on
    "meta"."""
    return tensor.to("meta") if tensor.numel() > MOST_ELEMENTS else tensor.detach().cpu().clone()


def _counts(values: Traced) -> bool:
    """Return whether a tensor is 0, 1, 2 and so on. Comparing values with such a tensor makes a one-hot encoding."""
    inner = values.content
    return inner.ndim == 1 and not inner.is_meta and torch.equal(inner, torch.arange(len(inner)))


def run(reference: Reference, values: Mapping[str, Any], watch: Watch) -> Any:
    """Call a reference on stand-ins and return its result; `watch.end` is how it ended.

    Args:
        reference: the reference.
        values: the reference's inputs by name. Tensors are on the CPU or on "meta", or are stand-ins already.
        watch: records the reference's operations.
    """
    given = [
        Traced.make(one.clone(), {name}, watch) if type(one) is torch.Tensor else one for name, one in values.items()
    ]
    is_compiled = "torch.compile" in reference.definition.reference
    eager = torch.compiler.set_stance("force_eager") if is_compiled else contextlib.nullcontext()
    try:
        with eager, contextlib.redirect_stdout(io.StringIO()), watch:
            return reference.launch(given)
    except _Stop:
        watch.end = STOPPED
    except Exception as error:
        watch.end = type(error.__cause__ or error).__name__
    return None
