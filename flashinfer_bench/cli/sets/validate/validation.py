"""What `validate` found, as one value: it is shown as text, written as JSON, and read again by `validate-render`."""

from __future__ import annotations

import codecs
import os
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.data import LoadIssue
from flashinfer_bench.data.store.json_text import MOST_JSON_BYTES
from flashinfer_bench.errors import Misuse

Check = Literal["layout", "definition", "workload", "solution", "trace", "baseline", "benchmark"]
"""A kind of check. The last two judge solutions, the others read files."""
FORMAT_VERSION: Final = 1
PASSED: Final = "PASSED"
NO_VERDICT: Final = "NO VERDICT"
"""In place of a status: the job ended with a fault."""

_STRICT: Final = ConfigDict(frozen=True, extra="forbid")


class CheckedIssue(BaseModel):
    """An issue, with the check that found it."""

    model_config = _STRICT

    check: Check
    severity: Literal["error", "warning"]
    file: str
    line: int | None = None
    field: str | None = None
    reason: str

    @classmethod
    def of(cls, check: Check, issue: LoadIssue) -> CheckedIssue:
        """Add a check to an issue."""
        place = {"file": to_text(issue.file), "line": issue.line, "field": issue.field}
        return cls(check=check, severity=issue.severity, reason=issue.reason, **place)

    def to_issue(self) -> LoadIssue:
        """Return it without the check."""
        return LoadIssue(self.severity, Path(self.file), self.line, self.field, self.reason)


class TriedJob(BaseModel):
    """What became of a job of `baseline` or `benchmark`."""

    model_config = _STRICT

    check: Check
    definition: str
    solution: str
    workload: str
    """Its uuid."""
    status: str
    """A status, or NO_VERDICT."""
    seconds: Annotated[float, Field(ge=0)]
    """Wall time of the job; 0 where it has no verdict."""


def to_text(path: Path) -> str:
    """Return a path as JSON can hold it: bytes that are no UTF-8 are replaced."""
    return os.fsencode(path).decode("utf-8", "replace")


class Coverage(BaseModel):
    """What a set lacks, by name; nothing of it is wrong."""

    model_config = _STRICT

    baseline_author: str
    """Whose solutions are baselines."""
    without_workloads: list[str]
    """Definitions that nothing is judged on."""
    without_baseline: list[str]
    """Definitions for which the author of baselines has no solution."""
    not_passed: dict[str, list[str]]
    """Definition to the uuids of workloads that no solution passed."""


class Validation(BaseModel):
    """All that was found in a set."""

    model_config = _STRICT

    version: Literal[1] = FORMAT_VERSION
    roots: list[str]
    checks: list[Check]
    """Those that were made."""
    definitions: int
    solutions: int
    workloads: int
    traces: int
    issues: list[CheckedIssue]
    jobs: list[TriedJob] = Field(default_factory=list)
    coverage: Coverage

    @property
    def errors(self) -> int:
        """How many issues are errors."""
        return sum(issue.severity == "error" for issue in self.issues)


def read_validation(path: Path) -> Validation:
    """Read a report of `validate`.

    Raises:
        Misuse: the file cannot be read, or is no such report.
    """
    try:
        return Validation.model_validate_json(read_whole(path, MOST_JSON_BYTES).removeprefix(codecs.BOM_UTF8))
    except OSError as error:
        raise Misuse(f"{path}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise Misuse(f"{path}: no report of `validate`: {f'{place}: ' if place else ''}{first['msg']}") from error
