"""A comparison: a row for each workload, the geometric mean, a decision for each; as a table, JSON, Markdown, JUnit.

Pure values and text. Names that others wrote are escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from xml.etree import ElementTree

from flashinfer_bench.examine.compare.ratios import Ratio, join_ratios
from flashinfer_bench.report.comparable import Difference
from flashinfer_bench.report.decision import SAME, SLOWER, UNKNOWN
from flashinfer_bench.report.verdict import to_one_line

FORMAT_VERSION: Final = 1
"""Version of the JSON document. 1: the first."""
SUITE: Final = "flashinfer-bench compare"
OVERALL: Final = "over all"
MARKUP: Final = str.maketrans({"|": "\\|", "<": "&lt;", ">": "&gt;", "`": "\\`", "*": "\\*", "_": "\\_", "[": "\\["})
HEADINGS: Final = ("Workload", "A (ms)", "B (ms)", "Ratio", "B is")


@dataclass(frozen=True)
class Row:
    """One workload."""

    definition: str
    workload: str
    axes: Mapping[str, int] = field(default_factory=dict)
    label: str = ""
    """Which solutions, if a comparison has several pairs of them."""
    first_ms: float | None = None
    """Mean latency of A."""
    second_ms: float | None = None
    """Mean latency of B."""
    pairs_ms: tuple[tuple[float, float], ...] = ()
    """Latencies of A and B in each pair of blocks, in the order in which they were measured."""
    ratio: Ratio | None = None
    """B over A; None if there is nothing to compare."""
    problem: str = ""
    """Why there is nothing to compare."""
    is_unmeasured: bool = False
    """The budget was spent before there was a pair: nothing is wrong, and nothing is known yet."""

    @property
    def name(self) -> str:
        """Solutions, workload and axes."""
        axes = " ".join(f"{name}={size}" for name, size in self.axes.items())
        return ", ".join(filter(None, [self.label, self.workload, axes]))


def describe_difference(workload: str, difference: Difference) -> str:
    """Say why two times cannot be compared."""
    kind, first, second = difference
    return f"cannot be compared: {workload}: {kind}: A {first}, B {second}"


@dataclass(frozen=True)
class Comparison:
    """A and B on all workloads."""

    rows: tuple[Row, ...]
    threshold: float
    """The smallest difference of interest, as a share."""
    how: Literal["measured", "recorded"]
    hardware: str
    seconds: float = 0.0
    """Seconds that were measured, without the start."""

    @property
    def overall(self) -> Ratio | None:
        """The geometric mean over the workloads that could be compared."""
        ratios = [row.ratio for row in self.rows if row.ratio is not None]
        return join_ratios(ratios) if ratios else None

    @property
    def problems(self) -> list[Row]:
        """The workloads that could not be compared."""
        return [row for row in self.rows if row.ratio is None]

    @property
    def is_failed(self) -> bool:
        """Whether a workload could not be compared for another reason than the budget, or none was measured at all."""
        return any(not row.is_unmeasured for row in self.problems) or self.overall is None

    def slower_than(self, share: float) -> list[str]:
        """Return where B is slower by more than a share: uuids, and OVERALL."""
        named = [*((row.workload, row.ratio) for row in self.rows), (OVERALL, self.overall)]
        return [name for name, ratio in named if ratio is not None and ratio.decide(share) == SLOWER]

    def describe(self, ratio: Ratio) -> tuple[str, str]:
        """Return a ratio with its interval, "1.031 (1.024 to 1.038)", and what B is beside A, in words."""
        number = f"{ratio.ratio:.3f}"
        interval = ratio.interval
        if interval is not None:
            number += f" ({interval[0]:.3f} to {interval[1]:.3f})"
        decision = ratio.decide(self.threshold)
        more = self._pairs_needed(ratio)
        if decision == SAME:
            return number, f"same within {100 * self.threshold:.3g} %"
        return number, f"{decision} (needs about {more} more)" if more is not None else decision

    def document(self, sides: tuple[str, str], slower: Sequence[str]) -> dict[str, Any]:
        """Return the comparison as JSON-able values.

        Args:
            sides: the words that named A and B.
            slower: where the gate says that B is slower; empty if there is no gate, or nothing is.
        """
        overall = self.overall
        return {
            "format_version": FORMAT_VERSION,
            "a": sides[0],
            "b": sides[1],
            "how": self.how,
            "hardware": self.hardware,
            "threshold": self.threshold,
            "seconds": round(self.seconds, 3),
            "rows": [
                {
                    "definition": row.definition,
                    "workload": row.workload,
                    "axes": dict(row.axes),
                    "solutions": row.label or None,
                    "a_ms": row.first_ms,
                    "b_ms": row.second_ms,
                    "pairs_ms": list(map(list, row.pairs_ms)),
                    "decision": UNKNOWN if row.is_unmeasured else None,
                    **(self._ratio_document(row.ratio) if row.ratio is not None else {}),
                    "problem": row.problem or None,
                }
                for row in self.rows
            ],
            "overall": None if overall is None else self._ratio_document(overall),
            "slower_than_allowed": list(slower),
        }

    def _ratio_document(self, ratio: Ratio) -> dict[str, Any]:
        return {
            "ratio": ratio.ratio,
            "interval95": ratio.interval and list(ratio.interval),
            "pairs": ratio.pairs or None,
            "decision": ratio.decide(self.threshold),
            "pairs_needed": self._pairs_needed(ratio),
        }

    def _pairs_needed(self, ratio: Ratio) -> int | None:
        is_open = self.how == "measured" and ratio.decide(self.threshold) == UNKNOWN
        return ratio.pairs_needed(self.threshold) if is_open else None

    def markdown(self, sides: tuple[str, str], slower: Sequence[str]) -> str:
        """Return the comparison as Markdown."""
        table = [list(HEADINGS), ["---", "---:", "---:", "---:", "---"]]
        for row in self.rows:
            cells = ["", "", "", _escape(row.problem)]
            if row.ratio is not None:
                cells = [f"{row.first_ms:.4g}", f"{row.second_ms:.4g}", *self.describe(row.ratio)]
            table.append([_escape(row.name), *cells])
        if self.overall is not None and len(self.rows) > 1:
            table.append([f"**{cell}**" if cell else "" for cell in (OVERALL, "", "", *self.describe(self.overall))])
        a, b, hardware = map(_escape, (*sides, self.hardware))
        title = (
            f"**{b} beside {a}** ({self.how} on {hardware}; ratio: latency of B over that of A, with its 95 % interval)"
        )
        end = ["", f"Slower than allowed: {_escape(', '.join(slower))}."] if slower else []
        return "\n".join([title, "", *(f"| {' | '.join(cells)} |" for cells in table), *end, ""])

    def junit(self, slower: Sequence[str]) -> str:
        """Return the comparison as JUnit XML: a case for each workload, which fails if B is slower than allowed."""
        cases = list(self.rows)
        if self.overall is not None:
            cases.append(Row("", OVERALL, ratio=self.overall))
        suite = ElementTree.Element("testsuite", {"name": SUITE, "tests": str(len(cases))})
        counts = dict.fromkeys(("failure", "error", "skipped"), 0)
        for row in cases:
            name = f"{row.definition}: {row.name}".removeprefix(": ")
            case = ElementTree.SubElement(suite, "testcase", {"classname": SUITE, "name": to_one_line(name)})
            kind = "skipped" if row.is_unmeasured else "error"
            text = row.problem
            if row.ratio is not None:
                text = ": ".join(self.describe(row.ratio))
                ElementTree.SubElement(case, "system-out").text = text
                kind = "failure" if row.workload in slower else ""
                text = f"slower than allowed: {text}"
            if kind:
                counts[kind] += 1
                ElementTree.SubElement(case, kind, {"message": to_one_line(text)})
        plurals = {"failure": "failures", "error": "errors", "skipped": "skipped"}
        suite.attrib |= {plurals[kind]: str(count) for kind, count in counts.items()}
        suite.set("time", f"{self.seconds:.3f}")
        return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _escape(text: str) -> str:
    return to_one_line(text).translate(MARKUP)
