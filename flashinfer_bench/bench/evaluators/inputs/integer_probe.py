"""Find by trial runs of the reference which values an integer input may have, and what the reference does with them.

A run is made on stand-ins (`stand_ins.py`). Two runs, each with one value all over an input, say how the indices that
are reported move with it, and so for which values they are valid; a run at each end of this range confirms it. Python
numbers that come from an input are followed in this way as well as tensors.

If the reference fails on stand-ins, or takes too many operations, an input keeps the range that its name gives it,
unless a run shows indices outside of a tensor.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Final

import torch

from flashinfer_bench.bench.evaluators.inputs.stand_ins import DONE, STOPPED, Seen, Watch, run
from flashinfer_bench.bench.evaluators.reference import Reference
from flashinfer_bench.data import Definition

BEYOND: Final = 2
"""Multiple of the largest indexed size that is outside of each table."""
FEW: Final = 8
"""If fewer values are valid, negative indices count as valid, too."""
WRAPPED: Final = 2
"""Multiple of a table's size that values reach if the reference wraps or clamps them itself."""
MOST_PADDINGS: Final = 4
"""Negative numbers of the reference's text that are tried as padding."""
TESTS: Final = re.compile(r"[<>=!]=?\s*-?\d|\d\s*[<>=!]|\.[lgen][et]\(|ignore_index")
"""What a reference has that tells padding from other values."""
WRAPPING: Final = frozenset({"index", "select"})
"""Operations that may meet a -1 where the reference masks what they give."""


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
        self._truth = True
        self.ranges: dict[str, range] = {}
        self.paddings: dict[str, int | None] = {}
        self._runs: dict[tuple[str, int], Watch] = {}
        """Input and its value → the run with that, given the ranges of other inputs that are known so far."""
        self._base = self._run()
        if self._base.end not in (DONE, STOPPED):
            self._truth = False
            self._runs.clear()
            self._base = self._run()

    def find_range(self, name: str, usual: int, largest: int) -> range:
        """Return the values that an input may have.

        Args:
            name: the input.
            usual: the range's end if the reference indexes nothing by it.
            largest: the largest number that its dtype holds.
        """
        found = self._find_valid(name, usual, largest, takes_negative=False)
        if len(found) < FEW:
            more = self._find_valid(name, usual, largest, takes_negative=True)
            found = more if len(more) > 2 * len(found) else found
        if self._base.end != DONE or name in self._base.did["lost"]:
            found = range(found.start, max(min(found.stop, usual), found.start + 1))
        self._values[name] = self._fill(name, found[-1], found[0])
        self.ranges[name] = found
        return found

    def find_padding(self, name: str, least: float) -> int | None:
        """Return the negative number that the reference tells from an input's values, and bears; None if there is none.

        Args:
            name: the input, whose range is known.
            least: no smaller number may be among its values.
        """
        if TESTS.search(self._reference.definition.reference) is None:
            return None
        usual = self._run(name, self.ranges[name][-1])
        wrapped = Counter(seen.operation for seen in usual.seen if seen.low < 0)
        numbers = dict.fromkeys([-1, *map(int, re.findall(r"-[1-9]\d*", self._reference.definition.reference))])
        for number in [one for one in numbers if one >= least][:MOST_PADDINGS]:
            padded = self._run(name, self._fill(name, None, number))
            is_tested = (name, number) in padded.tests
            operations = [[seen.operation for seen in one.seen] for one in (usual, padded)]
            bad = Counter(seen.operation for seen in padded.seen if seen.low < 0) - wrapped
            may_wrap = is_tested and number == -1 and bad.keys() <= WRAPPING
            if (is_tested or operations[0] != operations[1]) and (not bad or may_wrap) and self._fits(padded, number):
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

    def _find_valid(self, name: str, usual: int, largest: int, *, takes_negative: bool) -> range:
        """Return values that runs confirm; `takes_negative` if indices may be counted from the end."""

        def is_valid(value: int) -> bool:
            return self._fits(self._run(name, value), -largest if takes_negative else 0)

        found = self._find_ends(name, largest, is_valid, takes_negative=takes_negative) or range(usual)
        if found.stop < usual and is_valid(usual - 1):
            found = range(found.start, usual)
        while len(found) > 1 and not is_valid(found[-1]):
            found = range(found.start, found.start + len(found) // 2)
        return range(found.stop) if found.start and is_valid(0) else found

    def _find_ends(
        self, name: str, largest: int, is_valid: Callable[[int], bool], *, takes_negative: bool
    ) -> range | None:
        """Return the valid values as far as indices move in step with the input; None if none do."""
        one = self._run(name, 1)
        found = _solve(_match(one, self._run(name, 2)), 1, largest, takes_negative=takes_negative)
        if found and not (is_valid(found[-1]) and is_valid(min(found.stop, largest))):
            return found
        # Of a division more is seen from afar, and of a remainder that it is one.
        far = min(BEYOND * max((seen.size for seen in one.seen), default=0), largest)
        moved = _match(one, self._run(name, far))
        while far > FEW and moved is None:
            far //= 4
            moved = _match(one, self._run(name, far))
        half = _match(one, self._run(name, far // 2)) or []
        steady = [row for row in moved or () if any(_is_halfway(row, other) for other in half)]
        if not steady:
            return range(min(WRAPPED * min(first.size for first, _ in moved), far)) if moved else found
        rough = _solve(steady, far - 1, largest, takes_negative=takes_negative)
        if rough is None:
            return found
        last = rough[-1]
        exact = _solve(_match(one, self._run(name, last)), last - 1, largest, takes_negative=takes_negative)
        return exact if exact and is_valid(exact[-1]) else rough

    def _fits(self, run: Watch, least: int) -> bool:
        """Tell whether a run had valid indices, but for those of the first run, and ended as that did."""
        known = set(self._base.seen)
        return run.end in (self._base.end, STOPPED) and all(
            seen in known or seen.lies_within(least) for seen in run.seen
        )

    def _fill(self, name: str, value: int | None, other: int) -> torch.Tensor:
        """Return an input of one value, or of its values so far, with every second element another one."""
        filled: torch.Tensor = self._values[name].clone()
        if value is not None:
            filled.fill_(value)
        filled.view(-1)[::2] = other
        return filled

    def _run(self, name: str = "", value: int | torch.Tensor = 0) -> Watch:
        """Run the reference with another value of an input: one number all over, or a tensor."""
        if isinstance(value, int) and (name, value) in self._runs:
            return self._runs[name, value]
        watch, values = Watch(self._device, truth=self._truth), self._values
        if name:
            given = value if isinstance(value, torch.Tensor) else torch.full_like(self._values[name], value)
            values = {**values, name: given}
        run(self._reference, values, watch)
        if isinstance(value, int):
            self._runs[name, value] = watch
        return watch


Row = tuple[Seen, Seen]


def _match(one: Watch, other: Watch) -> list[Row] | None:
    """Return the indices that differ between two runs, in pairs; None if the runs indexed by other operations."""
    if [seen.operation for seen in one.seen] != [seen.operation for seen in other.seen]:
        return None
    rows = list(zip(one.seen, other.seen, strict=True))
    return [(a, b) for a, b in rows if a != b and not a.is_empty and not b.is_empty]


def _is_halfway(row: Row, other: Row) -> bool:
    """Tell whether indices of a third run lie in the middle of those of two runs."""
    middle, way = row[0].high + row[1].high, abs(row[1].high - row[0].high)
    return row[0] is other[0] and way > 4 and abs(2 * other[1].high - middle) <= 2


def _solve(rows: list[Row] | None, step: int, largest: int, *, takes_negative: bool) -> range | None:
    """Return the values with valid indices, given the indices for 1 and for `step` more; None if there are none."""
    low, top = 0, largest
    for first, last in rows or ():
        floor = -first.size if takes_negative and first.wraps else 0
        for begin, end in ((first.low, last.low), (first.high, last.high)):
            slope = Fraction(end - begin, step)
            if slope > 0:
                low = max(low, math.ceil(1 + (floor - begin) / slope))
                top = min(top, math.ceil(1 + (first.size - begin) / slope) - 1)
            elif slope < 0:
                low = max(low, math.floor(1 + (first.size - begin) / slope) + 1)
                top = min(top, math.floor(1 + (floor - begin) / slope))
    return range(low, top + 1) if rows and low <= top else None
