"""What is wrong with a file of a trace set: found while loading, gathered, shown all at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from flashinfer_bench.base.printable import to_printable

Severity = Literal["error", "warning"]
"""error: something was left out of the set. warning: it was kept, and somebody should look at it."""

LONGEST_REASON: Final = 2000
"""A reason is shown up to this many characters: names in files may have millions."""


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
    is_about_place: bool = False
    """Whether it is about where a file lies, not what it holds."""
    missing_definition: str | None = None
    """A definition that the set lacks. Another set that has it settles the issue. "" means any definition."""

    def __str__(self) -> str:
        file = to_printable(str(self.file))
        place = f"{file}:{self.line}" if self.line is not None else file
        field = f" {self.field}:" if self.field else ""
        reason = self.reason.replace("\n", " ")
        reason = reason if len(reason) <= LONGEST_REASON else f"{reason[:LONGEST_REASON]} …"
        return f"{self.severity}: {place}:{field} {reason}"
