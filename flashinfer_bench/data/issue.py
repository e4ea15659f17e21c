"""Problems of the files of a trace set. Loading gathers them and shows all of them at once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple

from flashinfer_bench.base.printable import to_printable

Severity = Literal["error", "warning"]
"""error: a part was omitted from the set. warning: the part was kept, but needs attention."""

LONGEST_REASON: Final = 2000
"""Maximum characters of a reason in a message. Names in files may have millions of characters."""
MOST_SEARCHED: Final = 1 << 18
"""Longest text, in characters, that is searched for the line of a field. Each issue starts a new search."""
USUAL_OP_TYPE: Final = "custom"
"""The op type of a definition without an op type and without an op-type folder."""


@dataclass(frozen=True)
class LoadIssue:
    """One problem of a set."""

    severity: Severity
    """Whether a part was omitted."""
    file: Path
    """The file, or the folder if the issue is about the set as a whole."""
    line: int | None
    """Line of the file, from 1; None if the issue is about the whole file."""
    field: str | None
    """Dotted path of the field; None if the issue is about the whole object."""
    reason: str
    """The problem, and the remedy if one is known."""
    is_about_location: bool = False
    """Whether the issue is about the path of a file, not its content."""
    missing_definition: str | None = None
    """A definition that the set lacks. The issue is resolved if a merged set has the definition. "" means any
    definition."""

    @property
    def text(self) -> str:
        """The field and the reason, in one line."""
        reason = self.reason.replace("\n", " ")
        reason = reason if len(reason) <= LONGEST_REASON else f"{reason[:LONGEST_REASON]} …"
        return f"{self.field}: {reason}" if self.field else reason

    def __str__(self) -> str:
        file = to_printable(str(self.file))
        location = f"{file}:{self.line}" if self.line is not None else file
        return f"{self.severity}: {location}: {self.text}"


class Location(NamedTuple):
    """The location of an object, and defaults for its missing fields from the path of its file."""

    file: Path
    line: int | None = None
    """The object's first line, from 1."""
    prefix: tuple[str, ...] = ()
    """The path to the object inside the file."""
    text: str = ""
    """The text of a JSON file, which is searched for the lines of fields; empty for other files."""
    op_type: str = USUAL_OP_TYPE
    """The op type for a definition that gives no op type."""
    definition: str | None = None
    """The definition for a solution or workload that names no definition. None: the name of the workloads file."""
    root: Path | None = None
    """The root, for a file whose blob paths may be relative to the file's folder; else None."""
    folder: Path | None = None
    """The folder of the standard layout that has the file, such as `definitions`; None in a foreign layout."""

    def issue(self, severity: Severity, reason: str, steps: Sequence[str] = ()) -> LoadIssue:
        """Make an issue about a field of the object, or about the whole object."""
        steps = (*self.prefix, *steps)
        line = find_line(self.text, steps) if self.text else self.line
        return LoadIssue(severity, self.file, line, ".".join(steps) or None, reason)


def find_line(text: str, location: Sequence[str]) -> int:
    """Return the line (from 1) of the deepest key of `location` in JSON text. The search ends at a list."""
    position = 0
    for step in location if len(text) <= MOST_SEARCHED else ():
        found = re.compile(rf'(?<!\\)"{re.escape(step)}"\s*:').search(text, position)
        if found is None:
            break
        position = found.start()
    return text.count("\n", 0, position) + 1
