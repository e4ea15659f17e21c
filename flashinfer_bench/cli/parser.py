"""The argument parser of all commands, the kinds of values, and the flags that several commands share.

The parser raises UsageError for a wrong argument. The message is one line with the nearest known word. A command
declares its own flags, usually by `add_flags`. `settings.py` makes flags from the fields of the configuration.
`entry.py` lists the commands.
"""

from __future__ import annotations

import argparse
import difflib
import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from flashinfer_bench.cli.output import LEVELS, USUAL_LEVEL, write_out
from flashinfer_bench.errors import UsageError

PROGRAM: Final = "flashinfer-bench"
EXIT_CODES: Final = "Exit codes: 0 all well, 1 something failed, 2 usage error."
SET_HELP: Final = "a trace set's folder; may be repeated (default: $FIB_DATASET_PATH)"
LOCAL_HELP: Final = SET_HELP.replace(";", ", also without the flag before all flags;")
SOURCE_FLAGS: Final = {
    "--entry NAME": "its entry function, or FILE::FUNCTION (default: run, else the function with the file's name)",
    "--language L": "its language (default: found by its ending and imports)",
}
QUIET_FLAG: Final = {"--quiet": "print only errors and the result, no progress"}
GITHUB_FLAG: Final = {"--github": "also write annotations and the step summary of GitHub Actions"}
THRESHOLD_HELP: Final = "the smallest difference of interest: 2%% or 0.02 (default: 2%%)"
NAMED: Final = {
    "definitions": "only these definitions",
    "op_types": "only these op types",
    "solutions": "only these solutions",
    "authors": "only solutions of these authors",
    "workloads": "only these workloads: uuids, unique beginnings of uuids, or sizes (batch_size=7)",
    "devices": "only these devices: 0, cuda:1, a GPU's uuid, or cpu",
}
"""Flags that take names, such as `--definitions`. Each flag also works without its `s`."""
LOCATIONS: Final = {
    "definitions": "definitions/**/*.json",
    "op_types": "definitions/*",
    "solutions": "solutions/**/*.json",
    "authors": "solutions/*",
    "workloads": "workloads/**/*.jsonl",
}
"""Kind of names → pattern of paths in a set. A path ends with a name of the kind. Workloads are an exception: uuids are
inside the files."""
MOST_SHARE: Final = 10.0
"""Largest share that a flag accepts: 1000 %."""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises UsageError with one line instead of printing the usage."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=34),
            allow_abbrev=False,
            **kwargs,
        )
        self._commands: argparse._SubParsersAction[Parser] | None = None

    def describe(
        self,
        description: str,
        *,
        usage: str | None = None,
        example: str = "",
        execute: Callable[[argparse.Namespace], int] | None = None,
    ) -> None:
        """Set the help texts, and the function of the command."""
        self.description, self.usage = description, usage
        self.set_defaults(parser=self)
        self.epilog = f"example:\n  {PROGRAM} {example}" if example else None
        if execute is not None:
            self.set_defaults(execute=execute)
            add_log_level(self)

    def add_command(self, word: str, text: str, *, add_help: bool = True, **described: Any) -> Parser:
        """Add a sub-command by its word and its line in the list of commands. `described` has the arguments for
        `describe`."""
        if self._commands is None:
            self._commands = self.add_subparsers(metavar="COMMAND", parser_class=Parser, title="commands")
        added = self._commands.add_parser(word, help=text, add_help=add_help)
        if described:
            added.describe(**described)
        return added

    def children(self) -> dict[str, Parser]:
        """Return the sub-commands by name."""
        return {} if self._commands is None else dict(self._commands.choices)

    def flags(self) -> list[str]:
        """List the long flags of this parser."""
        return [flag for flag in self._option_string_actions if flag.startswith("--")]

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage and exiting."""
        raise UsageError(f"{message.removeprefix('argument ')}; see {self.prog} --help")

    def print_help(self, file: Any = None) -> None:  # noqa: ARG002 - the signature of argparse
        """Print the help. A reader that closes the pipe causes no error."""
        write_out(self.format_help())

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise an error that names the nearest known command."""
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            what = " ".join([*self.prog.split()[1:], "command"])
            known = f"known: {', '.join(action.choices)}"
            raise UsageError(f"unknown {what} {value}; {_hint(value, action.choices, known)}")
        super()._check_value(action, value)


class NameList(argparse.Action):
    """Collects one or more names, separated by spaces or commas. A file's name may have commas. The flag may be
    repeated."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        """Add the names to the earlier names."""
        split = ([value] if os.path.exists(value) else value.split(",") for value in values)  # noqa: PTH110 - any text
        names = [name.strip() for part in split for name in part if name.strip()]
        if not names and (values or self.nargs != "*"):
            parser.error(f"{option_string}: expected at least one name")
        setattr(namespace, self.dest, [*(getattr(namespace, self.dest, None) or ()), *names])


def whole_number(text: str) -> int:
    """Parse the value of an integer flag."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"needs a whole number, not {text!r}") from None


def number(text: str) -> float:
    """Parse the value of a number flag. The number must be finite. A whole number becomes an int."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"needs a number, not {text!r}") from None
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"needs a finite number, not {text!r}")
    return int(value) if value.is_integer() else value


def share(text: str) -> float:
    """Parse a share: "2%" or "0.02". A number of 1 or more needs the sign %, because the user may mean a percentage."""
    value = number(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not 0 < value <= MOST_SHARE or (value >= 1 and not text.endswith("%")):
        raise argparse.ArgumentTypeError(f"needs a share such as 2% or 0.02, not {text!r}")
    return value


KINDS: Final[Mapping[str, Callable[[str], Any]]] = {"N": whole_number, "F": number, "X": share}
"""Placeholder of a value → the function that parses the value."""


def add_flags(parser: argparse._ActionsContainer, flags: Mapping[str, str], **defaults: Any) -> None:
    """Add flags and arguments, given as syntax → help.

    `--output DIR` and `-o --output FILE` take a text, `--quick` is a switch, `FILE` is an argument. The placeholder of
    a value decides its kind: N a whole number, F a number, X a share, `a|b` a choice, `NAME...` one or more names.

    Args:
        parser: the parser, or one of its groups.
        flags: syntax of a flag → help.
        defaults: field of the parsed arguments → value if the flag is missing.
    """
    for written, text in flags.items():
        words = written.split()
        spelt = [word for word in words if word.startswith("-")]
        value = words[-1] if len(words) > len(spelt) else ""
        more: dict[str, Any] = {"metavar": value}
        if not spelt:
            spelt = [value.lower()]
        elif not value:
            more = {"action": "store_true"}
        elif value in KINDS:
            more["type"] = KINDS[value]
        elif value.endswith("..."):
            more = {"nargs": "+", "action": NameList, "metavar": value.removesuffix("...")}
        elif "|" in value:
            more = {"choices": value.split("|")}
        action = parser.add_argument(*spelt, help=text, **more)
        action.default = defaults.pop(action.dest, action.default)
    parser.set_defaults(**defaults)


def add_log_level(parser: argparse._ActionsContainer, *spellings: str) -> None:
    """Add the flag for the log's level. `spellings` are additional names of the flag."""

    text = f"log from this level on: {', '.join(LEVELS)}; DEBUG shows tracebacks, too (default: {USUAL_LEVEL})"
    parser.add_argument(
        "--log-level", *spellings, type=str.upper, choices=LEVELS, default=USUAL_LEVEL, metavar="LEVEL", help=text
    )


def add_local(parser: Parser, text: str = LOCAL_HELP, flags: Sequence[str] = ("--local",)) -> None:
    """Add the flag that names the folders of trace sets. Users can also give the folders as arguments, without the
    flag."""
    parser.add_argument(*flags, action="append", metavar="PATH", help=text)
    parser.set_defaults(takes_sets=True)


def add_format(parser: argparse._ActionsContainer, *others: str) -> None:
    """Add the flag that chooses between a table, JSON and other formats."""
    words = "|".join(("table", "json", *others))
    add_flags(parser, {f"--format {words}": "format of stdout (default: %(default)s)"}, format="table")
    text = "the same as --format json"
    parser.add_argument(
        "--json", action="store_const", const="json", dest="format", default=argparse.SUPPRESS, help=text
    )


def add_table(parser: argparse._ActionsContainer) -> None:
    """Add the flags for the format, order, rows and columns of a table."""
    add_format(parser)
    flags = {
        "--sort COLUMN": "sort by a column: the shortest time, the largest number or the first name leads",
        "--top N": "only the first N rows, each with its ties",
        "--columns COLUMN...": "only these columns, in this order; JSON has all",
    }
    add_flags(parser, flags)


def add_sandbox(parser: argparse._ActionsContainer, *, default: str) -> None:
    """Add the flag of the sandbox's level."""
    text = "sandbox of solutions: strict (required), auto (best available) or off (default: auto)"
    add_flags(parser, {"--sandbox strict|auto|off": text}, sandbox=default)


def add_names(parser: argparse._ActionsContainer, flag: str, text: str = "", **more: Any) -> None:
    """Add a flag that takes names. Without the flag, the parsed arguments have no names."""
    kind = flag[2:].replace("-", "_")
    flags = [flag, flag.removesuffix("s")] if kind in NAMED else [flag]
    free = [one for one in flags if one not in parser._option_string_actions]
    given = {"nargs": "+", "metavar": "NAME", "default": (), "help": text or NAMED[kind], **more}
    complete_with(kind, parser.add_argument(*free, action=NameList, **given))


def complete_with(kind: str, action: argparse.Action) -> None:
    """Make shells complete an argument with the names of a kind."""
    action.completer = lambda **_: sorted(complete_names(kind))  # type: ignore[attr-defined]


def add_filters(parser: argparse._ActionsContainer, *others: str) -> None:
    """Add the flags that choose definitions and solutions by name, and the flags `others` of `NAMED`."""
    for kind in ("definitions", "op-types", "solutions", "authors", *others):
        add_names(parser, f"--{kind}")


def complete_names(kind: str) -> Iterator[str]:
    """Yield the names of a kind in the sets of a shell's line, for completion. Files are read only for uuids."""
    words = [*os.environ.get("COMP_LINE", "").split(), os.environ.get("FIB_DATASET_PATH", "")]
    for root in (Path(word).expanduser() for word in words if word and kind in LOCATIONS):
        for path in root.glob(LOCATIONS[kind]):
            if kind == "workloads":
                yield from re.findall(r'"uuid": *"([^"]+)"', path.read_text("utf-8", "replace"))
            else:
                yield path.name.removesuffix(".json")


def describe_unknown_arguments(rest: Sequence[str], parser: Parser) -> list[str]:
    """Return a line for each unknown flag. If all flags are known, return a line for the first unexpected argument."""
    see, known = f"see {parser.prog} --help", parser.flags()
    flags = [argument.split("=", 1)[0] for argument in rest if argument.startswith("-")]
    lines = [f"unknown flag {flag}; {_hint('--' + flag.lstrip('-'), known, see, 0.7)}" for flag in flags]
    return lines or [f"unexpected argument {rest[0]}; {see}"]


def typed_program() -> list[str]:
    """Return the words that started this program: its name, its path, or an interpreter with a script or module."""
    script = Path(sys.argv[0])
    if script.name == PROGRAM:
        return [PROGRAM if shutil.which(PROGRAM) == str(script.absolute()) else sys.argv[0]]
    return sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1]


def _hint(word: str, known: Iterable[str], otherwise: str, cutoff: float = 0.6) -> str:
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f"did you mean {near[0]}?" if near else otherwise
