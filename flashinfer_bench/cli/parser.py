"""An argument parser whose errors are one clear line each, with the nearest known word.

`entry` lists the commands. A command's own file declares its flags.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn

from flashinfer_bench.cli.screen.log_level import add_log_level
from flashinfer_bench.cli.screen.output import write_out
from flashinfer_bench.errors import Misuse

SHARE: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(%?)", re.ASCII)
MOST_SHARE: Final = 10.0
"""A share of a flag is at most 1000 %."""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises Misuse with one line instead of printing the usage."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(formatter_class=_wide_help, allow_abbrev=False, **kwargs)

    def describe(
        self,
        description: str,
        *,
        usage: str | None = None,
        example: str = "",
        execute: str | None = None,
    ) -> None:
        """Set what the help tells, and the function that the command calls: `module:function` below `cli`."""
        self.description = description
        self.usage = usage
        self.epilog = f"example:\n  {example}" if example else None
        if execute is not None:
            self.set_defaults(execute=CommandFunction(execute), parser=self)
            add_log_level(self)

    def add_commands(self) -> argparse._SubParsersAction[Parser]:
        """Give the parser sub-commands, and return the object to add them to."""
        return self.add_subparsers(metavar="COMMAND", parser_class=Parser, title="commands")

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage and exiting."""
        text = message.removeprefix("argument ")
        raise Misuse(f"{text}; see {self.prog} --help")

    def print_help(self, file: Any = None) -> None:
        """Print the help. A reader that goes away is no error."""
        if file is None:
            write_out(self.format_help())
        else:
            super().print_help(file)

    def flags(self) -> list[str]:
        """List the long flags of this parser."""
        return [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]


class CommandFunction:
    """The function of a command. Its module, which imports what the command needs, is imported by the call."""

    def __init__(self, place: str) -> None:
        self.place = place

    def __call__(self, args: argparse.Namespace) -> int:
        """Import the module, and call its function."""
        module, _, name = self.place.partition(":")
        code: int = getattr(importlib.import_module(f"{__package__}.{module}"), name)(args)
        return code


class NameList(argparse.Action):
    """Collects one or more names, separated by spaces or commas. The flag may be repeated."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Add the names to those given before."""
        given = [values] if isinstance(values, str) else list(values or ())
        names = [name.strip() for value in given for name in value.split(",") if name.strip()]
        if not names and (given or self.nargs != "*"):
            parser.error(f"{option_string}: expected at least one name")
        setattr(namespace, self.dest, [*(getattr(namespace, self.dest, None) or ()), *names])


def whole_number(text: str) -> int:
    """Parse the value of a flag that counts: a whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"needs a whole number, not {text!r}") from None


def iterations(text: str) -> int | str:
    """Parse the value of `--iterations`: a whole number, or "auto"."""
    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"needs a whole number or 'auto', not {text!r}") from None


def number(text: str) -> float:
    """Parse the value of a flag that measures, a finite number. A whole number becomes an int."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"needs a number, not {text!r}") from None
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"needs a finite number, not {text!r}")
    return int(value) if value.is_integer() else value


def share(text: str) -> float:
    """Parse a share: "2%" or "0.02". A bare number from 1 on is refused: it may be meant in percent."""
    found = SHARE.fullmatch(text.strip())
    value = float(found[1]) / (100 if found[2] else 1) if found is not None else 0.0
    if found is None or not 0 < value <= MOST_SHARE or (not found[2] and value >= 1):
        raise argparse.ArgumentTypeError(f"needs a share such as 2% or 0.02, not {text!r}")
    return value


def _wide_help(prog: str) -> argparse.HelpFormatter:
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=34)


def check_command(argv: Sequence[str], commands: Mapping[str, Sequence[str]]) -> None:
    """Raise Misuse for an unknown or incomplete command, before its flags are parsed.

    Args:
        argv: what was typed.
        commands: each command with its sub-commands.
    """
    words = _leading_words(argv)
    if not words:
        return
    _check_word(words[0], commands, "command")
    children = commands[words[0]]
    if children and len(words) > 1:
        _check_word(words[1], children, f"{words[0]} command")
    elif children and not {"-h", "--help"} & set(argv):
        raise Misuse(f"{words[0]} needs a command: {' or '.join(children)}")


def _leading_words(argv: Sequence[str]) -> list[str]:
    words: list[str] = []
    for argument in argv:
        if argument.startswith("-"):
            break
        words.append(argument)
    return words


def _check_word(word: str, known: Iterable[str], what: str) -> None:
    names = list(known)
    if word not in names:
        near = _nearest(word, names, cutoff=0.6)
        hint = f"did you mean {near}?" if near else f"known: {', '.join(names)}"
        raise Misuse(f"unknown {what} {word}; {hint}")


def describe_unknown_arguments(rest: Sequence[str], parser: Parser) -> list[str]:
    """Return a line for each unknown flag. Where there is none, return a line for the first unexpected argument."""
    flags = [argument.split("=", 1)[0] for argument in rest if argument.startswith("-")]
    if not flags:
        return [f"unexpected argument {rest[0]}; see {parser.prog} --help"]
    return [_describe_unknown_flag(flag, parser) for flag in flags]


def _describe_unknown_flag(flag: str, parser: Parser) -> str:
    wanted = "--" + flag.lstrip("-").replace("_", "-").lower()
    # The flags of `perf` have underscores, those of other commands have dashes.
    spellings = {f"--{known[2:].replace('_', '-')}": known for known in parser.flags()}
    near = _nearest(wanted, list(spellings), cutoff=0.7)
    hint = f"did you mean {spellings[near]}?" if near else f"see {parser.prog} --help"
    return f"unknown flag {flag}; {hint}"


def _nearest(word: str, known: Sequence[str], *, cutoff: float) -> str | None:
    begun = [name for name in known if name.startswith(word)]
    near = difflib.get_close_matches(word, known, n=1, cutoff=cutoff)
    return next(iter(near or begun), None)
