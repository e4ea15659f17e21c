"""Output for GitHub Actions (`--github`): annotations, and the summary and outputs of a step.

A line `::error file=F,line=N,title=T::TEXT` in a step's log is an annotation. `%` and line ends are escaped as `%` and
two hexadecimal digits. In F and T, `:` and `,` are escaped, too. GitHub reads commands in each line of a log. The
output of our command has texts of authors. So this output is between `::stop-commands::TOKEN` and `::TOKEN::`, where
the token is random.

GitHub keeps the first ten annotations of each level in a step. So the worst annotations come first. The last line is a
notice with the overall result. The summary is appended to the file in `GITHUB_STEP_SUMMARY`. The step's output is
appended to the file in `GITHUB_OUTPUT`.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from argparse import Namespace
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from flashinfer_bench.base.markdown import make_markdown_table
from flashinfer_bench.base.printable import to_printable
from flashinfer_bench.cli.output import write_err, write_problems
from flashinfer_bench.errors import FlashInferBenchError

if TYPE_CHECKING:
    from flashinfer_bench.data import Solution

Level = Literal["error", "warning"]
MOST_ANNOTATIONS: Final = 10
"""Maximum annotations per level that GitHub keeps for a step."""
LONGEST_TITLE: Final = 255
"""Maximum characters of a title on GitHub."""
LONGEST_TEXT: Final = 4000
"""Maximum characters of an annotation's text. The log has the whole text."""
MOST_BYTES: Final = (1 << 20) - 1
"""Maximum bytes of a step's summary. GitHub drops a summary above this limit completely."""
CUT: Final = b"\n\nThe summary is cut here, at GitHub's limit; the log has the rest.\n"
IN_TEXTS: Final = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
IN_PROPERTIES: Final = {**IN_TEXTS, ord(":"): "%3A", ord(","): "%2C"}


class Annotation(NamedTuple):
    """A text at a file and a line."""

    level: Level
    text: str
    title: str = ""
    file: Path | None = None
    line: int | None = None
    weight: float = 1.0
    """Annotations of a level are written in the order of their weights, the largest first."""


@dataclass
class GitHubReport:
    """The parts of a command's result that GitHub shows."""

    annotations: list[Annotation] = field(default_factory=list)
    count: str = "no result"
    """The last annotation."""
    summary: str = ""
    """Markdown, without the annotations."""
    output: str = ""
    """The output of the step, NAME=VALUE."""

    def render(self, title: str, root: Path) -> tuple[list[str], str]:
        """Return the annotations as lines, and the summary.

        Args:
            title: the title of the count and of the summary.
            root: the repository's root, to which GitHub's paths are relative.
        """
        lines, rows, counts = [], [], Counter[str]()
        for level, text, of, path, line, _ in sorted(self.annotations, key=lambda one: (one.level, -one.weight)):
            file, at = "" if path is None else os.path.relpath(path.resolve(), root), str(line or "")
            rows.append((level, f"{file}:{at}".rstrip(":"), of, text))
            counts[level] += 1
            if counts[level] <= MOST_ANNOTATIONS:
                lines.append(_make_command(level, text, file=file, line=at, title=of[:LONGEST_TITLE]))
        more = f"; {len(rows) - len(lines)} more in the step summary" if len(rows) > len(lines) else ""
        lines.append(_make_command("notice", self.count + more, title=title))
        table = make_markdown_table(("Level", "At", "Of", "Text"), rows) if rows else ""
        return lines, f"### {title}\n\n{self.summary}\n\n{table}\n"


def run_on_github(args: Namespace) -> int:
    """Run a command, write the result for GitHub, too, and return the exit code.

    Annotations go to stdout with a table, and to stderr if stdout gets a document.
    """
    report, token = GitHubReport(), os.urandom(16).hex()
    args.github, code = report, 1
    # A single stream keeps the order of texts and tokens. GitHub may mix up the order of two streams.
    with contextlib.redirect_stderr(sys.stdout if args.format == "table" else sys.stderr):
        write_err(f"::stop-commands::{token}")
        try:
            code = args.execute(args)
        except FlashInferBenchError as error:
            write_problems(str(error))
            report.annotations.append(Annotation("error", str(error)))
            code = error.exit_code
        finally:
            write_err(f"::{token}::")
        lines, summary = report.render(args.parser.prog, Path(os.environ.get("GITHUB_WORKSPACE", ".")).resolve())
        write_err(*lines)
        for variable, text in (("GITHUB_STEP_SUMMARY", summary), ("GITHUB_OUTPUT", report.output)):
            try:
                _append(os.environ.get(variable, os.devnull), text.encode("utf-8", "replace"))
            except OSError as error:
                write_err(f"{variable}: {error}")
    return code


def find_source(solution: Solution | None, path: Path | None, reason: str) -> tuple[Path | None, int | None]:
    """Return the source file and the line that a reason names. A reason without a source of the user gives the file of
    the solution, without a line.

    Args:
        solution: the solution; None for an unknown solution.
        path: the solution's source file, folder of sources, or JSON file. The lines of a JSON file are not the lines of
            the sources.
        reason: a text whose last location, such as "main.py:3", counts.
    """
    if solution is None or path is None or path.suffix == ".json":
        return path, None
    names = [one.path for one in solution.sources]
    files = {name: path / name for name in names if (path / name).is_file()} if path.is_dir() else {path.name: path}
    named = re.match(rf"(?:.*[^\w./\\-])?({'|'.join(map(re.escape, files))}):(\d+)", reason) if files else None
    first = next(iter(files.values()), path)
    return (files[named[1]], int(named[2])) if named else (files.get(str(solution.get_entry_path()), first), None)


def _make_command(level: str, text: str, **properties: str) -> str:
    given = ",".join(f"{key}={_escape(value, IN_PROPERTIES)}" for key, value in properties.items() if value)
    return f"::{f'{level} {given}'.strip()}::{_escape(text)}"


def _escape(text: str, signs: dict[int, str] = IN_TEXTS) -> str:
    """Cut and escape a text. Control characters except line ends are shown as escapes."""
    return "\n".join(map(to_printable, text[:LONGEST_TEXT].split("\n"))).translate(signs)


def _append(path: str, text: bytes) -> None:
    """Append text to a file. Cut the text at a line if the file would become too large."""
    with Path(path).open("ab") as file:
        room = max(MOST_BYTES - file.tell(), 0)
        cut = text[: max(room - len(CUT), 0)].rpartition(b"\n")[0] + CUT
        file.write(text if len(text) <= room else cut[:room])
