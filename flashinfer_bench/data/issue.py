"""What is wrong with a file of a trace set: found while loading, gathered, shown all at once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple

from flashinfer_bench.base.printable import to_printable

Severity = Literal["error", "warning"]
"""error: something was left out of the set. warning: it was kept, and somebody should look at it."""

LONGEST_REASON: Final = 2000
"""A reason is shown up to this many characters: names in files may have millions."""
MOST_SEARCHED: Final = 1 << 18
"""Longest text in which the line of a field is looked up, in characters: each issue searches it again."""
USUAL_OP_TYPE: Final = "custom"
"""The op type of a definition that names none, and lies in no folder of one."""


@dataclass(frozen=True)
class LoadIssue:
    """One thing that is wrong in a set."""

    severity: Severity
    """Whether something was left out."""
    file: Path
    """The file, or the folder when it is about the set as a whole."""
    line: int | None
    """Line of the file, from 1; None when it is about the whole file."""
    field: str | None
    """Dotted path of the field; None when it is about the whole object."""
    reason: str
    """What is wrong, and what to do where that is known."""
    is_about_location: bool = False
    """Whether it is about where a file lies, not what it holds."""
    missing_definition: str | None = None
    """A definition that the set lacks. Another set that has it settles the issue. "" means any definition."""

    def __str__(self) -> str:
        file = to_printable(str(self.file))
        location = f"{file}:{self.line}" if self.line is not None else file
        field = f" {self.field}:" if self.field else ""
        reason = self.reason.replace("\n", " ")
        reason = reason if len(reason) <= LONGEST_REASON else f"{reason[:LONGEST_REASON]} …"
        return f"{self.severity}: {location}:{field} {reason}"


class Location(NamedTuple):
    """Where an object stands, and what its file's place says of what the object leaves out."""

    file: Path
    line: int | None = None
    """Its first line, from 1."""
    prefix: tuple[str, ...] = ()
    """The path to it inside the file."""
    text: str = ""
    """The file, if lines of fields are to be looked up in it."""
    op_type: str = USUAL_OP_TYPE
    """The op type of a definition that names none."""
    definition: str | None = None
    """The definition of a solution or workload that names none; None: a workload's is the name of its file."""
    root: Path | None = None
    """The root of blob paths, if the file may give them relative to its own folder."""

    def issue(self, severity: Severity, reason: str, steps: Sequence[str] = ()) -> LoadIssue:
        """Make an issue about a field of the object, or about all of it."""
        steps = (*self.prefix, *steps)
        line = find_line(self.text, steps) if self.text else self.line
        return LoadIssue(severity, self.file, line, ".".join(steps) or None, reason)


def find_line(text: str, location: Sequence[str]) -> int:
    """Return the line (from 1) of the deepest key of `location` in JSON text. A step into a list ends the search."""
    position = 0
    for step in location if len(text) <= MOST_SEARCHED else ():
        found = re.compile(rf'(?<!\\)"{re.escape(step)}"\s*:').search(text, position)
        if found is None:
            break
        position = found.start()
    return text.count("\n", 0, position) + 1
