"""A comparison: a ratio for each workload, their geometric mean, and decisions; as JSON, Markdown, JUnit. Pure.

A block is one worker that times one side. A pair is a block of each side, one right after the other. The logarithm of
its ratio (B over A) counts as one value. Pairs are independent, because each block has its own worker. The interval of
the mean is Student's: mean ± t · s / √n (NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.5.2), turned back into a
ratio. For the mean over workloads, variances are added, and the degrees of freedom follow Welch (B. L. Welch, "The
generalization of Student's problem when several different population variances are involved", Biometrika 34, 1947).

A test that is repeated until an interval excludes 1 finds differences that do not exist. So a series is analysed at a
few fixed numbers of pairs only (`INTERIM_LEVELS`). Each interim analysis spends a part of the allowed error of 5 %
(K. K. G. Lan and D. L. DeMets, "Discrete sequential boundaries for clinical trials", Biometrika 70, 1983). The final
interval then holds the true ratio in about 95 % of series or more, by simulation (docs/compare.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import ceil, exp, log, sqrt
from statistics import fmean, variance
from typing import Any, Final, Literal
from xml.etree import ElementTree

import msgspec

from flashinfer_bench.base.markdown import escape_markdown, make_markdown_table
from flashinfer_bench.data.measurement import INDICATIVE, Measurement, ReportedTrace, join_standings
from flashinfer_bench.report.comparable import Difference
from flashinfer_bench.report.decision import SAME, SLOWER, UNKNOWN, Decision, decide
from flashinfer_bench.report.timing import Timing, count_timing, describe_flag
from flashinfer_bench.report.verdict import to_one_line
from flashinfer_bench.timing.statistics import student_quantile

FORMAT_VERSION: Final = 1
"""Version of the JSON document. 1: the first."""
SUITE: Final = "flashinfer-bench compare"
COUNTS: Final = {
    "tests": "testcase",
    "failures": "testcase/failure",
    "errors": "testcase/error",
    "skipped": "testcase/skipped",
}
"""Attribute of a JUnit XML suite → the elements that it counts."""
OVERALL: Final = "over all"
INTERIM_LEVELS: Final = {4: 0.984, 6: 0.990, 9: 0.992, 13: 0.993, 19: 0.994, 28: 0.994, 42: 0.994, 63: 0.994, 94: 0.994}
"""Number of pairs at an interim analysis → confidence level of its interval.

Each number is 1.5 times the number before. The first analysis has the narrowest interval, because on a GPU it
usually decides."""
MOST_PAIRS: Final = max(INTERIM_LEVELS)
LEAST_ERROR: Final = 1e-12
"""A smaller standard error counts as this value, because a division by 0 would fail."""
MANY: Final = 1e9
"""Degrees of freedom of an error that is exactly known."""
BUDGET_STEP_S: Final = 10
"""A proposed budget is a multiple of this many seconds."""
UNSTEADY: Final = frozenset({"noisy", "unconfirmed"})
"""On a CPU, the flags of a block that other programs disturbed."""
UNSTEADY_SHARE: Final = 0.25
"""A series is unsteady if a larger share of its blocks was disturbed. On an idle machine, a block or two may be
disturbed, too."""
LOADED: Final = "a quieter machine, since many times are noisy or unconfirmed"
LIMIT_TOO_SMALL: Final = f"a quieter machine or a larger --threshold, since {MOST_PAIRS} pairs, the limit, are too few"


@dataclass(frozen=True)
class Ratio:
    """The ratio of two latencies, B over A, as a logarithm with its uncertainty."""

    log_mean: float
    log_half: float | None
    """Half the width of the interval; None if it is unknown, as for one pair."""
    error: float = 0.0
    """Standard error of the logarithm."""
    freedom: float = MANY
    """Degrees of freedom of that error."""
    pairs: int = 0
    """Pairs of blocks; 0 for recorded traces."""
    is_steady: bool = True
    """False if other programs disturbed the blocks. More pairs then do not make the interval narrower."""

    @property
    def ratio(self) -> float:
        """B over A: 1.03 if B takes 3 % longer."""
        return exp(self.log_mean)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the ratio."""
        half = self.log_half
        return None if half is None else (exp(self.log_mean - half), exp(self.log_mean + half))

    def decide(self, threshold: float) -> Decision:
        """Return how B compares with A, by the rule of all reports."""
        return decide(self.log_mean, self.log_half, threshold)

    def pairs_needed(self, threshold: float) -> int | None:
        """Estimate how many more pairs are needed until an analysis decides. None if the ratio is decided or unsteady,
        or if the last analysis has too few pairs.

        The half width of the interval must become smaller than the distance from the ratio to a bound. The bound is the
        threshold if the ratio is within the threshold, else 1.
        """
        if not (self.pairs and self.is_steady) or self.decide(threshold) != UNKNOWN:
            return None
        if self.log_half is None:
            return self._pairs_until(min(INTERIM_LEVELS))
        edge = log(1 + threshold)
        offset = abs(self.log_mean)
        distance = edge - offset if offset <= edge else offset
        if distance <= 0 or self.error <= 0:
            return None
        quantile = student_quantile(INTERIM_LEVELS[MOST_PAIRS], max(self.freedom, 8.0))
        return self._pairs_until(ceil((quantile * self.error / distance) ** 2 * self.pairs))

    def _pairs_until(self, wanted: int) -> int | None:
        counts = (count for count in INTERIM_LEVELS if count > self.pairs and count >= wanted)
        return next((count - self.pairs for count in counts), None)


def level_at(pairs: int) -> float:
    """Return the confidence level of the first analysis with at least this many pairs.

    A recorded ratio has no pairs. Its interval has the level 95 %.
    """
    return (
        next((level for count, level in INTERIM_LEVELS.items() if pairs <= count), INTERIM_LEVELS[MOST_PAIRS])
        if pairs
        else 0.95
    )


def recorded_ratio(log_mean: float, log_half: float | None) -> Ratio:
    """Return a ratio whose 95 % interval is known."""
    return Ratio(log_mean, log_half, (log_half or 0.0) / student_quantile(0.95, MANY))


def ratio_of_pairs(logs: Sequence[float], level: float | None = None, *, is_steady: bool = True) -> Ratio:
    """Return the ratio of pairs of blocks.

    Load comes and goes, so disturbed pairs are not independent. So more pairs do not make their interval narrower.

    Args:
        logs: the logarithm of B over A of each pair; at least one.
        level: confidence level of the interval; None for the level of the analysis.
        is_steady: whether the pairs are independent.
    """
    count = len(logs)
    if count < 2:
        return Ratio(fmean(logs), None, pairs=count, is_steady=is_steady)
    error = sqrt(variance(logs) / (count if is_steady else 1))
    half = student_quantile(level or level_at(count), count - 1) * error
    return Ratio(fmean(logs), half, error, count - 1, count, is_steady)


def join_ratios(ratios: Sequence[Ratio]) -> Ratio:
    """Return the geometric mean of the ratios of several workloads, whose blocks are independent.

    Args:
        ratios: at least one. The ratio with the most pairs decides the confidence level.
    """
    if len(ratios) == 1:
        return ratios[0]
    mean = fmean(one.log_mean for one in ratios)
    pairs, is_steady = sum(one.pairs for one in ratios), all(one.is_steady for one in ratios)
    if any(one.log_half is None for one in ratios):
        return Ratio(mean, None, pairs=pairs, is_steady=is_steady)
    parts = [(max(one.error, LEAST_ERROR) / len(ratios)) ** 2 for one in ratios]
    total = sum(parts)
    freedom = total**2 / sum(part**2 / one.freedom for part, one in zip(parts, ratios, strict=True))
    half = student_quantile(level_at(max(one.pairs for one in ratios)), freedom) * sqrt(total)
    return Ratio(mean, half, sqrt(total), freedom, pairs, is_steady)


@dataclass(frozen=True)
class Row:
    """The result for one workload, or for all workloads together. Its fields are in the JSON document."""

    definition: str
    workload: str
    axes: Mapping[str, int] = field(default_factory=dict)
    solutions: str | None = None
    """The names of the solutions, if a comparison has several pairs of solutions."""
    a_ms: float | None = None
    """Mean latency of A."""
    b_ms: float | None = None
    """Mean latency of B."""
    pairs_ms: Sequence[tuple[float, float]] = ()
    """Latencies of A and B in each pair of blocks, in the order in which they were measured."""
    ratio: Ratio | None = None
    """B over A; None if the sides could not be compared."""
    problem: str | None = None
    """Why the sides could not be compared."""
    is_unmeasured: bool = False
    """Whether the budget was spent before the first pair was complete. This is not an error."""

    @property
    def name(self) -> str:
        """Solutions, workload and axes."""
        axes = " ".join(f"{name}={size}" for name, size in self.axes.items())
        return ", ".join(filter(None, [self.solutions, self.workload, axes]))


def describe_difference(workload: str, difference: Difference) -> str:
    """Say why two times cannot be compared."""
    kind, first, second = difference
    return f"cannot be compared: {workload}: {kind}: A {first}, B {second}"


def describe_times(*sides: Iterable[ReportedTrace]) -> tuple[str, dict[str, Timing]]:
    """Return `standing` and `timings` of a comparison. References are not compared, so their flags are left out."""
    own = [[msgspec.structs.replace(one, baseline=Measurement()) for one in side] for side in sides]
    standing = join_standings(one.measurement.standing for side in own for one in side)
    return standing, {name: count_timing(side) for name, side in zip("AB", own, strict=True)}


@dataclass(frozen=True)
class Comparison:
    """A and B on all workloads."""

    rows: Sequence[Row]
    threshold: float
    """The smallest difference of interest, as a share."""
    how: Literal["measured", "recorded"]
    hardware: str
    seconds: float = 0.0
    """Seconds of measuring, without the start."""
    standing: str = ""
    """The best standing that any time of A or B has."""
    timings: Mapping[str, Timing] = field(default_factory=dict)
    """How the times of A and of B were taken, and their flags."""

    @property
    def warnings(self) -> list[str]:
        """A line for each flag of the times of a side."""
        sides = self.timings.items()
        return [f"{side}: {describe_flag(flag, timing)}" for side, timing in sides for flag in timing.flags]

    @property
    def overall(self) -> Ratio | None:
        """The geometric mean over the workloads that could be compared."""
        ratios = [row.ratio for row in self.rows if row.ratio is not None]
        return join_ratios(ratios) if ratios else None

    @property
    def all_rows(self) -> list[Row]:
        """The rows, and a row for all workloads together if any could be compared."""
        overall = self.overall
        return [*self.rows, *([] if overall is None else [Row("", OVERALL, ratio=overall)])]

    @property
    def need(self) -> str:
        """Advice on how to decide the undecided workloads, such as "62 more pairs: --budget 180"; empty for recorded
        traces."""
        done = sum(len(row.pairs_ms) for row in self.rows)
        undecided = [row for row in self.rows if row.is_unmeasured or self._is_undecided(row)]
        if not done or not undecided:
            return ""
        more = 0
        for row in undecided:
            wanted = row.ratio.pairs_needed(self.threshold) if row.ratio is not None else min(INTERIM_LEVELS)
            if wanted is None:
                return LIMIT_TOO_SMALL if row.ratio is None or row.ratio.is_steady else LOADED
            more += wanted
        budget = ceil(self.seconds * (1 + more / done) / BUDGET_STEP_S) * BUDGET_STEP_S
        return f"{more} more pairs: --budget {budget}"

    def _is_undecided(self, row: Row) -> bool:
        return row.ratio is not None and row.ratio.decide(self.threshold) == UNKNOWN

    @property
    def is_failed(self) -> bool:
        """Whether no workload was compared, or a workload has a problem. A spent budget is no problem here."""
        return any(row.problem and not row.is_unmeasured for row in self.rows) or self.overall is None

    def slower_than(self, share: float) -> list[str]:
        """Return the workloads (uuids, or OVERALL) on which B is slower by more than a share."""
        return [row.workload for row in self.all_rows if row.ratio is not None and row.ratio.decide(share) == SLOWER]

    def describe(self, row: Row) -> tuple[str, str]:
        """Return a ratio with its interval, "1.031 (1.024 to 1.038)", and the decision in words."""
        if row.ratio is None:
            return "", UNKNOWN if row.is_unmeasured else "not compared"
        number = f"{row.ratio.ratio:.3f}"
        if row.ratio.interval is not None:
            number += " ({:.3f} to {:.3f})".format(*row.ratio.interval)
        decision = row.ratio.decide(self.threshold)
        if not row.ratio.is_steady:
            return number, f"{decision} (unsteady times)"
        more = row.ratio.pairs_needed(self.threshold) if row.workload != OVERALL else None
        if decision == SAME:
            return number, f"same within {100 * self.threshold:.3g} %"
        return number, f"{decision} ({more} more pairs)" if more is not None else decision

    def document(self, sides: tuple[str, str], slower: Sequence[str]) -> dict[str, Any]:
        """Return the comparison as JSON-able values.

        Args:
            sides: the arguments for A and B.
            slower: the workloads on which B is slower than allowed; empty if no limit was given.
        """
        head: dict[str, Any] = {
            "format_version": FORMAT_VERSION,
            "a": sides[0],
            "b": sides[1],
            "slower_than_allowed": list(slower),
        }
        rows = [
            {**vars(row), "decision": UNKNOWN if row.is_unmeasured else None, **self._ratio_document(row.ratio)}
            for row in self.rows
        ]
        if self.how == "measured":
            head["need"] = self.need
        timings = {side: asdict(timing) for side, timing in self.timings.items()}
        overall = self._ratio_document(self.overall) or None
        return {**head, **vars(self), "timings": timings, "rows": rows, "overall": overall}

    def _ratio_document(self, ratio: Ratio | None) -> dict[str, Any]:
        if ratio is None:
            return {}
        return {
            "ratio": ratio.ratio,
            "interval95": ratio.interval,
            "pairs": ratio.pairs or None,
            "steady": ratio.is_steady if ratio.pairs else None,
            "decision": ratio.decide(self.threshold),
            "pairs_needed": ratio.pairs_needed(self.threshold),
        }

    def markdown(self, sides: tuple[str, str], slower: Sequence[str]) -> str:
        """Return the comparison as Markdown."""
        a, b, hardware, *where = map(escape_markdown, (*sides, self.hardware, *slower))
        indicative = f"; {INDICATIVE}" if self.standing == INDICATIVE else ""
        rows = []
        for row in self.all_rows:
            times = ["" if time is None else f"{time:.4g}" for time in (row.a_ms, row.b_ms)]
            ratio, words = self.describe(row)
            rows.append([row.name, *times, ratio, row.problem or words])
        lines = [
            f"**{b} beside {a}** ({self.how} on {hardware}{indicative}; ratio: B over A, with its 95 % interval)",
            "",
            make_markdown_table(("Workload", "#A (ms)", "#B (ms)", "#Ratio", "B is"), rows),
            *(f"- times of {escape_markdown(line)}" for line in self.warnings),
            *(["", f"Slower than allowed: {', '.join(where)}."] if where else []),
        ]
        return "\n".join([*lines, ""])

    def junit(self, slower: Sequence[str]) -> str:
        """Return the comparison as JUnit XML. The test case of a workload fails if B is slower there than allowed."""
        suite = ElementTree.Element("testsuite", name=SUITE, time=f"{self.seconds:.3f}")
        for row in self.all_rows:
            name = f"{row.definition}: {row.name}".removeprefix(": ")
            case = ElementTree.SubElement(suite, "testcase", classname=SUITE, name=to_one_line(name))
            text = row.problem or ": ".join(self.describe(row))
            ElementTree.SubElement(case, "system-out").text = to_one_line(text)
            if row.problem:
                kind = "skipped" if row.is_unmeasured else "error"
                ElementTree.SubElement(case, kind, message=to_one_line(text))
            elif row.workload in slower:
                ElementTree.SubElement(case, "failure", message=f"slower than allowed: {text}")
        for kind, tag in COUNTS.items():
            suite.set(kind, str(len(suite.findall(tag))))
        return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
