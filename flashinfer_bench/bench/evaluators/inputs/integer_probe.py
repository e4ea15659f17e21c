"""Find by trial runs of the reference which values an integer input may have, and what the reference does with them.

A run executes the reference on stand-ins: integers have values, on the CPU; floats have shapes alone. So an operation
costs some microseconds, whatever the sizes are. Each operation that indexes or slices by integers reports them, with
the size that they have to stay below, and goes on with valid ones. Two runs, each with one value all over an input, say
how its indices move with it, and so for which values they are valid; a run at each end of this range confirms it.
Python numbers that come from an input are followed as well as tensors.

If the reference fails on stand-ins, or takes too many operations, an input keeps the range that its name gives it,
unless a run shows indices outside of a tensor. No run changes an input, and none executes code of a solution.
"""

from __future__ import annotations

import contextlib
import io
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flashinfer_bench.bench.evaluators.reference import Reference
from flashinfer_bench.data import Definition

MOST_OPERATIONS: Final = 2_000
"""Operations of torch in one run."""
MOST_SECONDS: Final = 0.25
"""Seconds that all runs of a probe may take."""
MOST_ELEMENTS: Final = 1 << 20
"""Elements of a tensor with values; a larger one has a shape alone."""
BEYOND: Final = 16
"""Multiple of the largest indexed size that is outside of each table."""
FEW: Final = 8
"""If fewer values are valid, negative indices count as valid, too."""
WRAPPED: Final = 2
"""Multiple of a table's size that values reach if the reference wraps or clamps them itself."""
MOST_PADDINGS: Final = 4
"""Negative numbers of the reference's text that are tried as padding."""
WRAPPING: Final = frozenset({"index", "select"})
"""Operations that may meet a -1 where the reference masks what they give."""
BY_DIMENSION: Final = re.compile(r"(index_(select|add|copy|fill|reduce)|gather|scatter(_add|_reduce)?)_?")
DID: Final = {
    **dict.fromkeys(("rshift", "bitwise_right_shift"), "shift"),
    **dict.fromkeys(("and", "bitwise_and"), "mask"),
    **dict.fromkeys(("floor_divide", "remainder", "fmod"), "divide"),
    **dict.fromkeys(("pow", "ldexp", "exp", "exp2", "expm1", "cosh", "sinh", "bitwise_left_shift", "lshift"), "choose"),
    **dict.fromkeys(("nonzero", "bincount", "unique2", "repeat_interleave"), "choose"),
}
"""Operation, without underscores around it → what it does with the bits of a word.

Words of any bits must not "choose" elements or sizes, nor be exponents."""
TESTS: Final = frozenset({("lt", 0), ("ge", 0), ("gt", -1), ("le", -1)})
"""Comparisons that tell -1 from all numbers above it."""
DONE: Final = "done"
STOPPED: Final = "stopped"


class Seen(NamedTuple):
    """The indices of one operation; `low` is above `high` if there are none."""

    operation: str
    size: int
    low: int
    high: int
    wraps: bool
    """Whether negative indices count from the end."""

    @property
    def is_empty(self) -> bool:
        """Whether there are none."""
        return self.low > self.high

    @property
    def is_valid(self) -> bool:
        """Whether all indices are inside of the tensor."""
        return self.is_empty or (self.low >= (-self.size if self.wraps else 0) and self.high < self.size)


class _Stop(BaseException):
    """Ends a run that is too long, or that stand-ins cannot follow."""


class Traced(torch.Tensor):
    """Stands for a tensor on the reference's device."""

    inner: torch.Tensor
    """The values, on the CPU; on "meta" if none are known."""
    names: set[str]
    """Integer inputs on which the values depend; a view shares the set with its base."""
    watch: Watch
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any) -> Any:
        raise NotImplementedError(f"{func} of a stand-in after its run")

    @staticmethod
    def make(inner: torch.Tensor, names: set[str], watch: Watch) -> Traced:
        """Return a stand-in; whoever asks for its address gets an error."""
        made: Traced = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            Traced, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=watch.device
        )
        torch._C._set_throw_on_mutable_data_ptr(made)
        made.inner, made.names, made.watch = inner, names, watch
        return made

    def read(self) -> torch.Tensor:
        """Return values for Python: those that depend on floats are all the same."""
        self.watch.did["choose"] |= self.names
        if not self.inner.is_meta:
            return self.inner
        value = self.watch.truth if self.dtype == torch.bool else float(self.is_floating_point())
        return torch.full(self.inner.shape, value, dtype=self.dtype)

    def tolist(self) -> Any:
        """Return the values as Python numbers."""
        return self.read().tolist()

    def numpy(self, **_: Any) -> Any:
        """Return the values as an array."""
        return self.read().numpy()

    __array__ = numpy

    def __repr__(self, **_: Any) -> str:
        return f"tensor({list(self.shape)})"


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch has no types for it
    """Executes operations on stand-ins, and notes what they do with integers.

    Args:
        device: where the reference's tensors are.
        truth: the value of bools that depend on floats.
        seconds: how long the run may take.
    """

    def __init__(self, device: torch.device, *, truth: bool, seconds: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device, self.truth, self._until = device, truth, time.monotonic() + seconds
        self.seen: list[Seen] = []
        self.tests: set[tuple[str, int]] = set()
        """Inputs that were compared with a negative number that was their least value."""
        self.did: dict[str, set[str]] = {what: set() for what in ("shift", "mask", "divide", "choose", "lost")}
        """What was done with values → the inputs on which they depend; "lost" are indices without known values."""
        self.count = 0
        self.end = DONE
        """How the run ended: DONE, STOPPED or an error's type."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        if self.count > MOST_OPERATIONS or time.monotonic() > self._until:
            raise _Stop
        name, tensors = func._schema.name.removeprefix("aten::"), list[Traced]()
        args, kwargs = _map(lambda one: self._enter(one, tensors), [args, kwargs or {}])
        if name == "_local_scalar_dense":
            return tensors[0].read().item()
        names = set[str]().union(*(tensor.names for tensor in tensors))
        if names:
            self._note(name.strip("_"), func._overloadname, args, names)
        self._check_indices(name, args)
        is_known = not any(tensor.inner.is_meta for tensor in tensors)
        written = _describe(func).find_written(args, kwargs)
        if written is not None:
            written.names |= names
            if is_known or written.inner.is_meta:  # else its old values stand for the new ones
                result = _execute(func, args, kwargs, "cpu" if is_known else "meta")
                if isinstance(result, torch.Tensor) and result.shape != written.shape:
                    raise _Stop
            return written
        if name in ("nonzero", "masked_select") and not is_known:
            count = tensors[0].numel()
            result = torch.empty(
                (count, tensors[0].ndim) if name == "nonzero" else count, dtype=torch.long, device="meta"
            )
        else:
            is_known = is_known and not _describe(func).is_random and self._is_small(func, args, kwargs, tensors)
            result = _execute(func, args, kwargs, "cpu" if is_known else "meta")
        shared = tensors[0].names if func.is_view and tensors else names
        return _map(lambda one: Traced.make(one, shared, self) if isinstance(one, torch.Tensor) else one, result)

    def _enter(self, value: Any, tensors: list[Traced]) -> Any:
        """Return an argument; a stand-in for a tensor of the reference's own."""
        if isinstance(value, torch.Tensor):
            if not isinstance(value, Traced):
                value = Traced.make(take_values(value), set(), self)
            tensors.append(value)
        return value

    def _is_small(self, func: Any, args: Any, kwargs: Any, tensors: list[Traced]) -> bool:
        """Tell whether an operation gives few elements; its shapes are computed only if it may give many."""
        sizes = sorted(tensor.inner.numel() for tensor in tensors)[-2:]
        if sizes and math.prod(sizes) <= MOST_ELEMENTS:
            return True
        counts = [0]
        _map(lambda one: counts.append(getattr(one, "numel", int)()), _execute(func, args, kwargs, "meta"))
        return sum(counts) <= MOST_ELEMENTS

    def _note(self, name: str, overload: str, args: Any, names: set[str]) -> None:
        """Note what an operation does with the bits of words, and tests for padding."""
        what = DID.get(name)
        if name == "view" and overload == "dtype":
            what = "choose" if args[1].is_floating_point else "divide"
        if what is not None and (name, overload) != ("pow", "Tensor_Scalar"):
            self.did[what] |= names
        if overload == "Scalar" and len(args) > 1 and isinstance(args[0], Traced) and not args[0].inner.is_meta:
            number = -1 if (name, args[1]) in TESTS else args[1] if name in ("eq", "ne") else 0
            if number < 0 and args[0].numel() and args[0].inner.min() == number:
                self.tests |= {(one, int(number)) for one in names}

    def _check_indices(self, name: str, args: Any) -> None:
        """Note the indices among arguments, and put valid ones in their places."""
        shape = args[0].shape if args and isinstance(args[0], Traced) else ()
        if name.strip("_") in ("index", "index_put", "unsafe_index"):
            given = [part for one in args[1] for part in self._to_integers(one)]
            args[1] = [self._check("index", one, size, wraps=True) for one, size in zip(given, shape, strict=False)]
        elif name == "select":
            args[2] = self._check(name, args[2], shape[args[1]], wraps=True)
        elif name == "slice":
            for end in args[2:4]:
                if end is not None and abs(end) < 1 << 62:
                    self._check(name, end, shape[args[1]] + 1, wraps=True)
        elif name == "embedding":
            args[1] = self._check(name, args[1], shape[0])
        elif name == "take":
            args[1] = self._check(name, args[1], args[0].numel(), wraps=True)
        elif name in ("nll_loss_forward", "nll_loss2d_forward"):
            self._check(name, args[1], shape[1 if len(shape) > 1 else 0], ignored=args[4])
        elif BY_DIMENSION.fullmatch(name) and len(args) > 2:
            args[2] = self._check(name, args[2], shape[args[1]] if shape else 1)

    def _to_integers(self, index: Traced | None) -> list[Traced | None]:
        """Return the indices of what a mask chooses; of one without known values, of all elements."""
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            return [index]
        inner = index.inner
        chosen = (
            torch.empty(inner.ndim, inner.numel(), dtype=torch.long, device="meta")
            if inner.is_meta
            else inner.nonzero().T
        )
        self.did["choose"] |= index.names
        return [Traced.make(part, set(index.names), self) for part in chosen]

    def _check(self, operation: str, index: Any, size: int, *, wraps: bool = False, ignored: int | None = None) -> Any:
        """Note indices along one axis, and return valid ones."""
        if index is None:
            return None
        low = high = index
        if isinstance(index, Traced):
            self.did["choose"] |= index.names
            if index.inner.is_meta:
                self.did["lost"] |= index.names
                return index
            values = index.inner[index.inner != ignored] if ignored is not None else index.inner
            low, high = map(int, values.aminmax()) if values.numel() else (0, -1)
        self.seen.append(Seen(operation, size, low, high, wraps))
        if self.seen[-1].is_valid:
            return index
        if size < 1:
            raise _Stop
        least = -size if wraps else 0
        if not isinstance(index, Traced):
            return min(max(index, least), size - 1)
        return Traced.make(index.inner.clamp(least, size - 1), index.names, self)


class _Facts(NamedTuple):
    """What an operation's schema says."""

    is_random: bool
    takes_device: bool
    written: int | str | None
    """The position or the name of the argument that it writes to."""

    def find_written(self, args: Any, kwargs: Any) -> Traced | None:
        """Return the stand-in that is written to."""
        if self.written is None:
            return None
        found: Traced = kwargs[self.written] if isinstance(self.written, str) else args[self.written]
        return found


@lru_cache(maxsize=1024)
def _describe(func: Any) -> _Facts:
    arguments = func._schema.arguments
    at = next((at for at, one in enumerate(arguments) if one.alias_info and one.alias_info.is_write), None)
    return _Facts(
        is_random=torch.Tag.nondeterministic_seeded in func.tags,
        takes_device=any(one.name == "device" for one in arguments),
        written=at if at is None or not arguments[at].kwarg_only else arguments[at].name,
    )


def _map(change: Callable[[Any], Any], value: Any) -> Any:
    """Return a value with each part of its lists, tuples and dicts changed."""
    if isinstance(value, (list, tuple)):
        return [_map(change, one) for one in value]
    return {key: _map(change, one) for key, one in value.items()} if isinstance(value, dict) else change(value)


def _execute(func: Any, args: Any, kwargs: Any, device: str) -> Any:
    """Execute an operation on the values of stand-ins, or on their shapes alone if the device is "meta"."""

    def enter(value: Any) -> Any:
        if not isinstance(value, Traced) or value.inner.device.type == device:
            return value.inner if isinstance(value, Traced) else value
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")

    given = {key: value for key, value in kwargs.items() if key not in ("device", "pin_memory")}
    if _describe(func).takes_device:
        given["device"] = torch.device(device)
    return func(*_map(enter, args), **_map(enter, given))


def take_values(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's values on the CPU, in memory of their own, or its shape if they are too many."""
    return tensor.to("meta") if tensor.numel() > MOST_ELEMENTS else tensor.detach().cpu().clone()


class IntegerProbe:
    """Runs of one definition's reference on the sizes of one workload.

    Args:
        definition: has the reference.
        values: all inputs by name: numbers, tensors with values on the CPU, or tensors on "meta".
        device: where the reference takes its tensors to be.

    Raises:
        DefinitionFault: the reference cannot be called.
    """

    def __init__(self, definition: Definition, values: Mapping[str, Any], device: torch.device) -> None:
        self._reference = Reference.compile(definition)
        self._values = dict(values)
        self._device = device
        self._seconds = MOST_SECONDS
        self._truth = True
        self.ranges: dict[tuple[str, int], range] = {}
        """Input and the usual end of its range → the range."""
        self._base = self._run()
        if self._base.end not in (DONE, STOPPED):
            self._truth = False
            self._base = self._run()

    def find_range(self, name: str, usual: int, largest: int) -> range:
        """Return the values that an input may have.

        Args:
            name: the input.
            usual: the range's end if the reference indexes nothing by it.
            largest: the largest number that its dtype holds.
        """
        found = self._find_ends(name, largest)
        if found is None or not all(self._is_valid(name, end) for end in (found[0], found[-1])):
            found = range(usual)
            while len(found) > 1 and not self._is_valid(name, found[-1]):
                found = range(len(found) // 2)
        if self._base.end != DONE or name in self._base.did["lost"]:
            found = range(found.start, max(min(found.stop, usual), found.start + 1))
        self._values[name] = self._fill(name, found[-1], found[0])
        return found

    def find_padding(self, name: str, least: float) -> int | None:
        """Return the negative number that the reference tells from an input's values, and bears; None if there is none.

        Args:
            name: the input, whose range is known.
            least: no smaller number may be among its values.
        """
        usual = self._run()
        wrapped = Counter(seen.operation for seen in usual.seen if seen.low < 0)
        numbers = dict.fromkeys([-1, *map(int, re.findall(r"-[1-9]\d*", self._reference.definition.reference))])
        for number in [one for one in numbers if one >= least][:MOST_PADDINGS]:
            run = self._run(**{name: self._fill(name, None, number)})
            is_tested = (name, number) in run.tests
            operations = [[seen.operation for seen in one.seen] for one in (usual, run)]
            bad = Counter(seen.operation for seen in run.seen if seen.low < 0) - wrapped
            may_wrap = is_tested and number == -1 and bad.keys() <= WRAPPING
            if (is_tested or operations[0] != operations[1]) and (not bad or may_wrap) and self._fits(run):
                return number
        return None

    def is_opened(self, name: str, *, is_masked: bool) -> bool:
        """Tell whether the reference takes the bits of an input apart, and any bits may stand in it.

        Args:
            name: the input.
            is_masked: it has to shift and to mask them; else one of these, a division or another dtype does as well.
        """
        did = self._base.did
        ways = [name in did[way] for way in ("shift", "mask", "divide")]
        is_used = all(ways[:2]) if is_masked else any(ways)
        return is_used and name not in did["choose"] and self._base.end in (DONE, STOPPED)

    def _find_ends(self, name: str, largest: int) -> range | None:
        """Return the valid values as two runs tell them; None if no index moves with the input, or not in step."""
        one = self._run(**{name: 1})
        far = min(BEYOND * max((seen.size for seen in one.seen), default=0), largest)
        runs = [one, *(self._run(**{name: value}) for value in (far, far // 2) if far > 3)]
        if len(runs) < 3 or any(
            [seen.operation for seen in run.seen] != [seen.operation for seen in one.seen] for run in runs
        ):
            return None
        moved = [
            row
            for row in zip(*(run.seen for run in runs), strict=True)
            if row[0] != row[1] and not any(seen.is_empty for seen in row)
        ]
        if not moved:
            return None
        is_linear = all(abs(2 * (half.high - first.high) - last.high + first.high) <= 2 for first, last, half in moved)
        if self._fits(runs[1]) and not is_linear:
            return range(min(WRAPPED * min(row[0].size for row in moved), far))
        for takes_negative in (False, True):
            low, top = 0, largest
            for first, last, _ in moved:
                floor = -first.size if takes_negative and first.wraps else 0
                for begin, end in ((first.low, last.low), (first.high, last.high)):
                    if begin != end:
                        slope = Fraction(end - begin, far - 1)
                        ends = sorted(1 + (limit - begin) / slope for limit in (floor, first.size - 1))
                        low, top = max(low, math.ceil(ends[0])), min(top, math.floor(ends[1]))
            if top - low + 1 >= min(FEW, *(row[0].size for row in moved)):
                break
        return range(low, top + 1) if low <= top else None

    def _is_valid(self, name: str, value: int) -> bool:
        return self._fits(self._run(**{name: value}))

    def _fits(self, run: Watch) -> bool:
        """Tell whether a run had valid indices, but for those of the first run, and ended as that did."""
        known = set(self._base.seen)
        return run.end in (self._base.end, STOPPED) and all(seen.is_valid or seen in known for seen in run.seen)

    def _fill(self, name: str, value: int | None, other: int) -> torch.Tensor:
        """Return an input of one value, or of its values so far, with every second element another one."""
        filled: torch.Tensor = self._values[name].clone()
        if value is not None:
            filled.fill_(value)
        filled.view(-1)[::2] = other
        return filled

    def _run(self, **changes: Any) -> Watch:
        watch = Watch(self._device, truth=self._truth, seconds=self._seconds)
        given = []
        for name, value in {**self._values, **changes}.items():
            if isinstance(value, int) and name in changes:
                value = torch.full_like(self._values[name], value)
            is_tensor = isinstance(value, torch.Tensor)
            given.append(Traced.make(value.clone(), {name}, watch) if is_tensor else value)
        start = time.monotonic()
        eager = torch.compiler.set_stance("force_eager") if "compile" in self._reference.definition.reference else None
        try:
            with eager or contextlib.nullcontext(), contextlib.redirect_stdout(io.StringIO()), watch:
                self._reference.launch(given)
        except _Stop:
            watch.end = STOPPED
        except Exception as error:
            watch.end = type(error.__cause__ or error).__name__
        self._seconds -= time.monotonic() - start
        return watch
