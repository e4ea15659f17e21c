"""What `validate` found, as lines for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from flashinfer_bench.base.printable import to_printable
from flashinfer_bench.cli.args import describe_issues
from flashinfer_bench.cli.render import count
from flashinfer_bench.cli.sets.validate.validation import Validation

SHOWN_NAMES: Final = 3


def render_validation(validation: Validation) -> str:
    """Lay a report out: errors, warnings, what was judged, what the set lacks, and the counts in the last line."""
    issues = [issue.to_issue() for issue in validation.issues]
    lines = [
        *describe_issues(issues, shown_warnings=len(issues)),
        *_describe_jobs(validation),
        *_describe_coverage(validation),
        _describe_counts(validation),
    ]
    return "".join(f"{to_printable(line)}\n" for line in lines)


def _describe_jobs(validation: Validation) -> Iterator[str]:
    for check in dict.fromkeys(job.check for job in validation.jobs):
        jobs = [job for job in validation.jobs if job.check == check]
        statuses = ", ".join(f"{number} {status}" for status, number in Counter(job.status for job in jobs).items())
        yield f"{check}: {count(len(jobs), 'job')}: {statuses}"


def _describe_coverage(validation: Validation) -> Iterator[str]:
    coverage, total = validation.coverage, count(validation.definitions, "definition")
    if coverage.without_workloads:
        yield f"coverage: {len(coverage.without_workloads)} of {total} without workloads: " + _some(
            coverage.without_workloads
        )
    if 0 < len(coverage.without_baseline) < validation.definitions:  # where no definition has one, the set wants none
        whose = f"without a solution of the baseline author {coverage.baseline_author!r}"
        yield f"coverage: {len(coverage.without_baseline)} of {total} {whose}: {_some(coverage.without_baseline)}"
    uuids = sum(map(len, coverage.not_passed.values()))
    if uuids:
        of = [f"{name} ({len(listed)})" for name, listed in coverage.not_passed.items()]
        yield f"coverage: {uuids} of {count(validation.workloads, 'workload')} that no solution passed: {_some(of)}"


def _describe_counts(validation: Validation) -> str:
    nouns = ("definition", "solution", "workload", "trace")
    there = ", ".join(count(getattr(validation, f"{noun}s"), noun) for noun in nouns)
    errors = validation.errors
    return f"{there}: {count(errors, 'error')}, {count(len(validation.issues) - errors, 'warning')}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return f"{', '.join(names[:SHOWN_NAMES])}{more}"
