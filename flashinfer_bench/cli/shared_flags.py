"""Flags that several commands share, and how a command's parser is made."""

from __future__ import annotations

import argparse
from typing import Any, Final

from flashinfer_bench.cli.parser import NameList, Parser

PROGRAM: Final = "flashinfer-bench"
COMMAND_FLAG: Final = "command_module"
LOCAL_HELP: Final = "a trace set's folder; may be repeated (default: $FIB_DATASET_PATH)"


def subcommands(parser: argparse.ArgumentParser) -> Any:
    """Let a parser have commands."""
    return parser.add_subparsers(metavar="COMMAND", parser_class=Parser, title="commands")


def command_group(commands: Any, name: str, **texts: Any) -> Any:
    """Add a command that has commands of its own, and return what these are added to."""
    return subcommands(commands.add_parser(name, **texts))


def command(commands: Any, name: str, module: str, **texts: Any) -> Parser:
    """Add a command, and name its module in what it parses."""
    parser = commands.add_parser(name, **texts)
    assert isinstance(parser, Parser)  # what add_subparsers(parser_class=Parser) makes
    parser.set_defaults(**{COMMAND_FLAG: module})
    return parser


def add_local(parser: Parser, text: str = LOCAL_HELP) -> None:
    """Add the flag that names trace sets."""
    parser.add_argument("--local", action="append", metavar="PATH", help=text)


def add_format(parser: argparse._ActionsContainer) -> None:
    """Add the flag that chooses between a table and JSON."""
    parser.add_argument(
        "--format", choices=("table", "json"), default="table", help="what goes to stdout (default: %(default)s)"
    )


def add_sandbox(parser: argparse._ActionsContainer, *, default: str) -> None:
    """Add the flag that says how far solutions are confined."""
    text = "how far solutions are confined: all of it or no run, what this machine gives, not (default: auto)"
    parser.add_argument("--sandbox", choices=("strict", "auto", "off"), default=default, help=text)


def add_names(parser: argparse._ActionsContainer, flag: str, text: str) -> None:
    """Add a flag that takes names; it is absent from what is parsed where it was not given."""
    parser.add_argument(flag, nargs="+", action=NameList, metavar="NAME", default=argparse.SUPPRESS, help=text)
