"""Finds the valid values of an integer input, and how the reference uses them, by trial runs of the reference.

A run calls the reference on traced tensors (`stand_ins.py`), with the same value in all elements of one input. The
value is valid if all recorded indices lie inside their tensors, the run ends like the first run, and the constraints
hold. Bisection finds the range of valid values, and begins with the sizes of the indexed tensors. Python numbers that
come from an input are followed like tensors.

If the reference fails on traced tensors, or has too many operations, an input keeps the range that the rule
for its name gives. The range gets smaller if a run shows indices outside of a tensor.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from typing import Any, Final

import torch

from flashinfer_bench.bench.evaluators.inputs.constraints import asking_for, find_broken
from flashinfer_bench.bench.evaluators.inputs.stand_ins import DONE, STOPPED, Watch, run
from flashinfer_bench.bench.evaluators.reference import Reference
from flashinfer_bench.data import Definition

BEYOND: Final = 32
"""Values up to this multiple of the largest indexed size are tried."""
FEW: Final = 8
"""If fewer values than this are valid, a second search allows negative indices."""
WRAPPED: Final = 2
"""Values reach this multiple of a table's size if the reference wraps or clamps them itself."""
MOST_PADDINGS: Final = 4
"""Maximum number of negative numbers in the reference's source that are tried as padding."""
TESTS: Final = re.compile(r"[<>=!]=?\s*-?\d|\d\s*[<>=!]|\.[lgen][et]\(|ignore_index")
"""Matches source text that may test for padding."""


class IntegerProbe:
    """Trial runs of one definition's reference on the sizes of one workload.

    Args:
        definition: has the reference and the constraints.
        axes: the size of every axis.
        values: all inputs by name: numbers, tensors with values on the CPU, or tensors on "meta".
        device: the device that tensors report to the reference.

    Raises:
        DefinitionFault: the reference cannot be called.
    """

    def __init__(
        self, definition: Definition, axes: Mapping[str, int], values: Mapping[str, Any], device: torch.device
    ) -> None:
        self._reference = Reference.compile(definition)
        self._axes, self._values, self._device = axes, dict(values), device
        self._found: dict[str, tuple[range, int | None]] = {}
        self._runs: dict[tuple[Any, ...], Watch] = {}
        """Input and its values → the run with them. All other inputs of a run have the values that were known when it
        began."""
        for self._truth in (True, False):
            self._runs.clear()
            if self._run().end in (DONE, STOPPED):
                break

    def find(self, name: str, usual: int, info: torch.iinfo) -> tuple[range, int | None]:
        """Return the valid values of an input, and its negative padding value; None if it has no padding.

        Args:
            name: the input.
            usual: end of the range if the reference indexes nothing with the input.
            info: the numbers that its dtype holds.
        """
        if name not in self._found:
            usual = max(min(usual, info.max + 1), 1)
            result = self._search(name, usual, info.max, 0)
            if len(result) < FEW:
                more = self._search(name, usual, info.max, -info.max)
                result = more if len(more) > 2 * len(result) else result
            base = self._run()
            if base.end != DONE or name in base.did["lost"]:
                result = range(result.start, max(min(result.stop, usual), result.start + 1))
            self._values[name] = self._fill(name, result[-1], result[0])
            self._found[name] = result, self._find_padding(name, result, info.min)
        return self._found[name]

    def _search(self, name: str, usual: int, largest: int, least: int) -> range:
        """Return the range of valid values. Indices that count from the end are valid down to `least`."""

        def is_valid(value: int) -> bool:
            return self._fits(self._run(name, value, value), least) and self._holds(name, value, value)

        widest = max((seen.size for seen in self._run(name, 1, 1).seen), default=0)
        most = min(max(usual, widest * BEYOND + 1), largest)
        first = next((one for one in (0, *(1 << bit for bit in range(most.bit_length()))) if is_valid(one)), None)
        if first is None:
            return range(1)
        start = bisect_left(range(first), True, first // 2 + 1, key=is_valid) if first else 0
        known, low, step = self._run(name, first, first).seen, first, 1
        while low < most and is_valid(min(low + step, most)):
            low, step = min(low + step, most), 2 * step  # small steps come before values that overflow an integer
        if low < most:
            beyond = range(low + 1, min(low + step, most))
            return range(start, low + 1 + bisect_left(beyond, True, key=lambda value: not is_valid(value)))
        moved = [seen.size for seen in self._run(name, low, low).seen if seen not in known]
        return range(start, max(min(WRAPPED * min(moved, default=0), low + 1), usual, start + 1))

    def _find_padding(self, name: str, valid: range, least: int) -> int | None:
        """Return the negative number that the reference tests for and accepts; None if there is none."""
        source = self._reference.definition.reference
        if valid.start or TESTS.search(source) is None:
            return None
        usual = self._run(name, valid[-1], valid[-1])
        numbers = [one for one in dict.fromkeys([-1, *map(int, re.findall(r"-[1-9]\d*", source))]) if one >= least]
        for number in numbers[:MOST_PADDINGS]:
            padded = self._run(name, None, number)
            is_tested = (name, number) in padded.tests
            is_other = [seen.operation for seen in usual.seen] != [seen.operation for seen in padded.seen]
            least = -1 if is_tested and number == -1 else 0  # the reference may index with -1 and mask the result later
            if (is_tested or is_other) and self._fits(padded, least) and self._holds(name, None, number):
                return number
        return None

    def is_opened(self, name: str, *, is_masked: bool) -> bool:
        """Return whether the reference unpacks the bits of an input, so that any bits are valid.

        Args:
            name: the input.
            is_masked: whether the reference must both shift and mask. If not, a shift, a mask, a division or a view in
                another dtype is enough.
        """
        did = self._run().did
        uses = [name in did[use] for use in ("shift", "mask", "divide")]
        is_used = all(uses[:2]) if is_masked else any(uses)
        return is_used and name not in did["choose"] and self._run().end in (DONE, STOPPED)

    def _fits(self, run: Watch, least: int) -> bool:
        """Return whether a run ended like the first run, and its new indices are valid."""
        base = self._run()
        return run.end in (base.end, STOPPED) and all(one in base.seen or one.lies_within(least) for one in run.seen)

    def _holds(self, name: str, value: int | None, other: int) -> bool:
        """Return whether the constraints on an input's values hold. Equations are skipped, because they are not
        bounds."""
        texts = [one for one in asking_for(self._reference.definition.constraints, name) if not re.search("[=!]=", one)]
        return not texts or not find_broken(texts, {**self._axes, name: self._fill(name, value, other).long()})[0]

    def _fill(self, name: str, value: int | None, other: int) -> torch.Tensor:
        """Return a copy of an input. Every second element, from the first, is `other`. The elements between are
        `value`, or unchanged if `value` is None."""
        filled: torch.Tensor = self._values[name].clone()
        if value is not None:
            filled.fill_(value)
        filled.view(-1)[::2] = other
        return filled

    def _run(self, *filled: Any) -> Watch:
        """Run the reference. The arguments of `_fill`, if given, replace the values of one input."""
        if filled not in self._runs:
            self._runs[filled] = watch = Watch(self._device, truth=self._truth)
            run(self._reference, {**self._values, **({filled[0]: self._fill(*filled)} if filled else {})}, watch)
        return self._runs[filled]
