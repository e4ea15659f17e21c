"""A comparison as JSON, Markdown and JUnit XML. Pure: text in, text out; names that others wrote are escaped."""

from __future__ import annotations

from typing import Any, Final
from xml.etree import ElementTree

from flashinfer_bench.examine.compare.comparison import ComparedSides, Row
from flashinfer_bench.examine.compare.ratios import Ratio, pairs_still_needed
from flashinfer_bench.report.decision import SAME, UNKNOWN
from flashinfer_bench.report.verdict import to_one_line

FORMAT_VERSION: Final = 1
"""Version of the JSON document. 1: the first."""
SUITE: Final = "flashinfer-bench compare"
MARKUP: Final = str.maketrans({"|": "\\|", "<": "&lt;", ">": "&gt;", "`": "\\`", "*": "\\*", "_": "\\_", "[": "\\["})


def compare_document(comparison: ComparedSides, sides: tuple[str, str], slower: list[str]) -> dict[str, Any]:
    """Return the comparison as JSON-able values.

    Args:
        comparison: what was found.
        sides: the words that named A and B.
        slower: where the gate says that B is slower; empty where there is no gate, or nothing is.
    """
    overall = comparison.overall
    return {
        "format_version": FORMAT_VERSION,
        "a": sides[0],
        "b": sides[1],
        "how": comparison.how,
        "hardware": comparison.hardware,
        "threshold": comparison.threshold,
        "seconds": round(comparison.seconds, 3),
        "rows": [_row_document(row, comparison) for row in comparison.rows],
        "overall": None if overall is None else _ratio_document(overall, comparison),
        "slower_than_allowed": slower,
    }


def describe_decision(ratio: Ratio, comparison: ComparedSides) -> str:
    """Say what B is beside A, in words that name the threshold, or about how many more pairs are needed."""
    decision = comparison.decide(ratio)
    if decision == SAME:
        return f"same within {100 * comparison.threshold:.3g} %"
    if decision != UNKNOWN:
        return decision
    more = pairs_still_needed(ratio, comparison.threshold) if comparison.how == "measured" else None
    return f"{UNKNOWN} (needs about {more} more)" if more is not None else UNKNOWN


def describe_interval(ratio: Ratio) -> str:
    """Return the ratio with its interval: "1.031 (1.024 to 1.038)"."""
    interval = ratio.interval
    return f"{ratio.ratio:.3f}" + ("" if interval is None else f" ({interval[0]:.3f} to {interval[1]:.3f})")


def render_markdown(comparison: ComparedSides, sides: tuple[str, str], slower: list[str]) -> str:
    """Return the comparison as Markdown."""
    lines = [
        f"**{_escape(sides[1])} beside {_escape(sides[0])}** ({comparison.how} on {_escape(comparison.hardware)}; "
        "ratio: latency of B over that of A, with its 95 % interval)",
        "",
        "| Workload | A (ms) | B (ms) | Ratio | B is |",
        "|---|---:|---:|---:|---|",
    ]
    for row in comparison.rows:
        name = _escape(_name(row))
        if row.ratio is None:
            lines.append(f"| {name} | | | | {_escape(row.problem)} |")
            continue
        times = f"{row.first_ms:.4g} | {row.second_ms:.4g}"
        lines.append(
            f"| {name} | {times} | {describe_interval(row.ratio)} | {describe_decision(row.ratio, comparison)} |"
        )
    overall = comparison.overall
    if overall is not None and len(comparison.rows) > 1:
        decision = f"**{describe_decision(overall, comparison)}**"
        lines.append(f"| **over all** | | | **{describe_interval(overall)}** | {decision} |")
    lines += ["", f"Slower than allowed: {_escape(', '.join(slower))}."] if slower else []
    return "\n".join(lines) + "\n"


def render_junit(comparison: ComparedSides, slower: list[str]) -> str:
    """Return the comparison as JUnit XML: a case for each workload, which fails where B is slower than allowed."""
    cases = [
        (f"{row.definition}: {_name(row)}", row.ratio, row.problem, row.is_unmeasured, row.workload in slower)
        for row in comparison.rows
    ]
    overall = comparison.overall
    if overall is not None:
        cases.append(("over all", overall, "", False, "over all" in slower))
    numbers = {
        "tests": len(cases),
        "failures": sum(is_slower for *_, is_slower in cases),
        "errors": sum(not row.is_unmeasured for row in comparison.problems),
        "skipped": sum(row.is_unmeasured for row in comparison.problems),
    }
    counts = {name: str(number) for name, number in numbers.items()}
    suite = ElementTree.Element("testsuite", {"name": SUITE, **counts, "time": f"{comparison.seconds:.3f}"})
    for name, ratio, problem, is_unmeasured, is_slower in cases:
        case = ElementTree.SubElement(suite, "testcase", {"classname": SUITE, "name": _plain(name)})
        if ratio is None:
            ElementTree.SubElement(case, "skipped" if is_unmeasured else "error", {"message": _plain(problem)})
            continue
        told = f"{describe_interval(ratio)}: {describe_decision(ratio, comparison)}"
        if is_slower:
            ElementTree.SubElement(case, "failure", {"message": f"slower than allowed: {told}"})
        ElementTree.SubElement(case, "system-out").text = told
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _row_document(row: Row, comparison: ComparedSides) -> dict[str, Any]:
    return {
        "definition": row.definition,
        "workload": row.workload,
        "axes": dict(row.axes),
        "solutions": row.label or None,
        "a_ms": row.first_ms,
        "b_ms": row.second_ms,
        "pairs_ms": [list(pair) for pair in row.pairs_ms],
        **(_ratio_document(row.ratio, comparison) if row.ratio is not None else {"decision": _undecided(row)}),
        "problem": row.problem or None,
    }


def _undecided(row: Row) -> str | None:
    return UNKNOWN if row.is_unmeasured else None


def _ratio_document(ratio: Ratio, comparison: ComparedSides) -> dict[str, Any]:
    interval = ratio.interval
    decision = comparison.decide(ratio)
    needed = pairs_still_needed(ratio, comparison.threshold)
    return {
        "ratio": ratio.ratio,
        "interval95": None if interval is None else list(interval),
        "pairs": ratio.pairs or None,
        "decision": decision,
        "pairs_needed": needed if decision == UNKNOWN and comparison.how == "measured" else None,
    }


def _name(row: Row) -> str:
    axes = " ".join(f"{name}={size}" for name, size in row.axes.items())
    return ", ".join(filter(None, [row.label, row.workload, axes]))


def _plain(text: str) -> str:
    """Return text that XML can hold."""
    return to_one_line(text)


def _escape(text: str) -> str:
    return to_one_line(text).translate(MARKUP)
