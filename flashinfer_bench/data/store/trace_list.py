"""The list of a set's traces: it keeps lines, and gives traces."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import Any, SupportsIndex, TypeVar, cast, overload

from flashinfer_bench.data.store.trace_lines import AnyTrace, to_trace
from flashinfer_bench.data.trace import Trace

Item = TypeVar("Item")


class TraceList(list[Trace]):
    """A list of traces. One that was read from a line is made anew each time that it is taken out.

    So a program that looks at every trace of a big set does not hold them all, unless it keeps them.
    """

    @classmethod
    def of(cls, kept: list[AnyTrace]) -> TraceList:
        """Make the list of what is kept of traces."""
        return cls(cast("list[Trace]", kept))

    def as_kept(self) -> Iterator[AnyTrace]:
        """Give what is kept of each trace."""
        return cast("Iterator[AnyTrace]", super().__iter__())

    def append(self, trace: AnyTrace) -> None:
        """Add a trace at the end."""
        super().append(cast("Trace", trace))

    def extend(self, traces: Iterable[Trace]) -> None:
        """Add traces at the end; those of another such list stay lines."""
        super().extend(cast("Iterator[Trace]", iter(kept_of(traces))))

    def copy(self) -> TraceList:
        """Return another list of these traces."""
        return self[:]

    def pop(self, index: SupportsIndex = -1) -> Trace:
        """Take a trace out."""
        return to_trace(super().pop(index))

    def sort(self, **how: Any) -> None:
        """Sort; all lines become traces."""
        self[:] = sorted(self, **how)

    def index(self, trace: Trace, *span: SupportsIndex) -> int:
        """Return the place of a trace."""
        return list(self).index(trace, *span)

    def count(self, trace: Trace) -> int:
        """Count the traces that are equal to one."""
        return sum(trace == item for item in self)

    def remove(self, trace: Trace) -> None:
        """Take out the first trace that is equal to one."""
        del self[self.index(trace)]

    def __iter__(self) -> Iterator[Trace]:
        return map(to_trace, self.as_kept())

    def __reversed__(self) -> Iterator[Trace]:
        return map(to_trace, super().__reversed__())

    @overload
    def __getitem__(self, index: SupportsIndex) -> Trace: ...
    @overload
    def __getitem__(self, index: slice) -> TraceList: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Trace | TraceList:
        if not isinstance(index, slice):
            return to_trace(super().__getitem__(index))
        part = TraceList()
        list.extend(part, super().__getitem__(index))
        return part

    def __contains__(self, trace: object) -> bool:
        return any(trace == item for item in self)

    def __eq__(self, other: object) -> bool:
        is_alike = isinstance(other, list) and len(self) == len(other)
        return is_alike and all(map(operator.eq, self, cast("list[Any]", other)))

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # as of any list

    @overload
    def __add__(self, other: list[Trace]) -> list[Trace]: ...
    @overload
    def __add__(self, other: list[Item]) -> list[Trace | Item]: ...
    def __add__(self, other: list[Any]) -> list[Any]:
        return [*self, *other]

    def __radd__(self, other: list[Item]) -> list[Trace | Item]:
        return [*other, *self]

    def __mul__(self, times: SupportsIndex) -> list[Trace]:
        return list(self) * times

    __rmul__ = __mul__

    def __repr__(self) -> str:
        return repr(list(self))

    def __reduce__(self) -> tuple[type, tuple[list[Trace]]]:
        return list, (list(self),)


def kept_of(traces: Iterable[Trace]) -> Iterable[AnyTrace]:
    """Give what is kept of traces, for a reader that needs no more than lines have."""
    return traces.as_kept() if isinstance(traces, TraceList) else traces
