"""The goals, and the page of figures (`docs/results.md`) that is made from `benchmarks/results/*.jsonl`.

python -m benchmarks.results              writes the page
python -m benchmarks.results --check      exits with 1 if the page is not up to date
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

RESULTS: Final = Path(__file__).with_name("results")
PAGE: Final = Path(__file__).parents[1] / "docs" / "results.md"
HEAD: Final = """\
# Figures

Made by `python -m benchmarks.results` from `benchmarks/results/*.jsonl`. Each script of `benchmarks/` appends a line
there for each figure. A line without versions was taken over from an earlier page of figures. If that page named
several hosts, the line has the worst. I is the time of `import torch` on the machine. The latest figure of each goal
counts; **bold** ones miss it. If a script was removed since, its command runs at the commit of the figure.

## Goals

| claim | goal | latest figure | machine | commit | command |
|---|---|---|---|---|---|
"""
OVER_COMMITS: Final = """
## Over commits

From the oldest to the latest. Machines of one kind differ, so neighbours may be of different machines.

| figure | commits and values |
|---|---|
"""


@dataclass(frozen=True)
class Goal:
    """A claim with its limit."""

    claim: str
    bound: float
    unit: str = ""
    at_least: bool = False

    @property
    def limit(self) -> str:
        """The limit in words."""
        return f"{'at least' if self.at_least else 'at most'} {tell(self.bound, self.unit)}"

    def is_held(self, value: float | None) -> bool:
        """Say whether a figure meets the goal; a missing one does not."""
        return value is not None and (value >= self.bound if self.at_least else value <= self.bound)


NONE_REJECTED: Final = "verdicts on right solutions that reject"
GOALS: Final[dict[str, Goal]] = {
    "help": Goal("`run --help`", 0.4, "s"),
    "verdicts": Goal("4 norms x 5 workloads, half of them wrong: beyond I", 3, "s"),
    "gemm": Goal("2 products x 4 workloads: beyond I", 2, "s"),
    "sampler": Goal("one sampler: beyond I", 1, "s"),
    "runners": Goal("8 Triton solutions x 8 workloads: beyond I", 6, "s"),
    "isolated-ratio": Goal("a worker for each job, beside one for each solution", 1.5, "x"),
    "many": Goal("16 Triton solutions x 32 workloads: beyond I", 30, "s"),
    "slow-reference-first": Goal("a reference of 24 ms on 47 workloads: first verdict beyond I", 3, "s"),
    "slow-reference": Goal("the same: end beyond I", 20, "s"),
    "bundled": Goal("the bundled set, builds cached", 40, "s"),
    "scaling-2": Goal("two GPUs beside one", 1.8, "x", at_least=True),
    "scaling-4": Goal("four GPUs beside one", 3.6, "x", at_least=True),
    "edit-loop": Goal("from a save to the first verdict, on a CPU (median)", 0.5, "s"),
    "resident-median-cpu": Goal("resident engine, from submit to verdict, on a CPU (median)", 0.25, "s"),
    "resident-median-cuda": Goal("the same on a GPU, beside Triton's compilation", 0.5, "s"),
    "resident-rate-cuda": Goal("the same, many at once", 4, "/s", at_least=True),
    "load": Goal("100,000 traces: load", 3, "s"),
    "load-memory": Goal("the same: peak of memory", 0.5, "GB"),
    "summary": Goal("the same: `report summary`", 5, "s"),
    "resume-plan": Goal("the same: plan of `run --resume`", 5, "s"),
    "build-ratio": Goal("builds: last one done, beside the sum of compile times / cores", 1.5, "x"),
    "measurement-cost": Goal("3 trials of a 2 us kernel", 80, "ms"),
    "measurement-busy": Goal("the same: share in which the GPU works", 0.6, at_least=True),
    "compare-1gb": Goal("comparing 1 GB of outputs on a GPU, beyond reading them twice", 50, "ms"),
    "server-wait-growth": Goal("a client that floods the server: growth of others' median wait", 0.5),
    "identical-within": Goal("pairs of identical kernels within 1.5 %", 0.95, at_least=True),
    "identical-worst": Goal("the same: worst pair off", 0.04),
    "intervals-apart": Goal("pairs of identical solutions whose intervals do not meet", 0.05),
    "reference-off-cpu": Goal("a reference as its own solution, on a CPU: worst median speed-up off 1", 0.05),
    "reference-off-cuda": Goal("the same on a GPU", 0.015),
    "baseline-off": Goal("reference times of later runs: worst median off those that are kept", 0.02),
    "compare-same": Goal("`compare` with a copy: decided as same", 0.92, at_least=True),
    "compare-slower": Goal("`compare` with a slower solution: decided as slower", 0.9, at_least=True),
    "compare-wrong": Goal("the same: wrong decisions", 0.05),
    "ncu-off": Goal("busy time beside ncu's duration: worst kernel off", 0.05),
    "right-rejected": Goal(f"{NONE_REJECTED}, judged in one process", 0),
    "mutants-accepted": Goal("verdicts on mutants that accept", 0),
    "jobs-rejected": Goal("honest jobs through the whole engine that are rejected", 0),
    "repro-wrong": Goal("scripts of `repro` that do not show the failure of a mutant", 0),
    "cluster-wrong": Goal("verdicts lost, repeated or changed when a node of a cluster is killed", 0),
    "attacks-cpu": Goal("attacks that are credited on a CPU", 0),
    "attacks-cuda": Goal("attacks that are credited on a GPU", 0),
    "published-failed": Goal("published references as solutions with another verdict than they deserve", 0),
}
"""Figure → its goal, in the order of the page."""


def tell(value: float, unit: str) -> str:
    """Return a value with its unit."""
    return f"{value:.4g} {unit}".rstrip()


def read_lines() -> list[dict[str, Any]]:
    """Read all figures, the oldest first."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(RESULTS.glob("*.jsonl"))]
    return sorted((json.loads(line) for text in texts for line in text.splitlines()), key=lambda one: one["time"])


def render(lines: list[dict[str, Any]]) -> str:
    """Return the page."""
    taken: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        taken.setdefault(line["figure"], []).append(line)
    text = HEAD
    for name, goal in GOALS.items():
        if name not in taken:
            text += f"| {goal.claim} | {goal.limit} | not measured | | | |\n"
            continue
        last = taken[name][-1]
        value = tell(last["value"], last["unit"])
        shown = value if goal.is_held(last["value"]) else f"**{value}**"
        shown += f" ({last['note']})" if last.get("note") else ""
        text += (
            f"| {goal.claim} | {goal.limit} | {shown} | {last['machine']} | {last['commit']} | `{last['command']}` |\n"
        )
    text += OVER_COMMITS
    for name, found in taken.items():
        if len(found) > 1:
            points = [f"{one['commit']}: {tell(one['value'], one['unit'])}" for one in found]
            text += f"| {name} | {'; '.join(points)} |\n"
    return text


def main() -> int:
    """Write the page, or say whether it is up to date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page is not up to date")
    asked = parser.parse_args()
    page = render(read_lines())
    if asked.check:
        return int(PAGE.read_text(encoding="utf-8") != page)
    PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
