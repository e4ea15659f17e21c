"""The references of the site: Markdown that is made of the program when the site is built, and lies in no checkout.

All commands with their flags, made of the parsers of the command line; the public Python names, whose docstrings
mkdocstrings reads; and the rules of random inputs. `site_hooks.py` gives them to mkdocs; this module needs nothing of
it. One table lies in the checkout: `python -m scripts.references` writes the support matrix into docs/routines.md.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from flashinfer_bench.cli.entry import COMMANDS, PERF, make_parser
from flashinfer_bench.cli.main import cli
from flashinfer_bench.cli.parser import Parser
from flashinfer_bench.routines.case.spec import CAPABILITIES
from flashinfer_bench.routines.table import ROUTINES

HELP_COLUMNS: Final = "100"
"""Width in characters of the help of `perf` on its page: what a column of the site shows without scrolling."""
PACKAGES: Final = {
    "flashinfer_bench": "The names that most programs need.",
    "flashinfer_bench.data": "What things are, and the files of a set. Importing it imports no torch.",
    "flashinfer_bench.bench": "Runs and their configuration.",
    "flashinfer_bench.testing": "Times one call, without a trace set.",
    "flashinfer_bench.bench.evaluators.evaluator": "What an evaluator is ([evaluators](../evaluators.md)).",
    "flashinfer_bench.client": "Speaks with a server ([the server](../serve.md)).",
    "flashinfer_bench.agents": "Functions for a model that writes kernels ([inspect](../inspect.md#for-agents)).",
    "flashinfer_bench.errors": "What the package raises.",
}
"""Package or module → what its section of the Python reference begins with. A name stands in the first that has it."""


def render_commands() -> str:
    """Return the page of all commands."""
    parts = [
        "# Commands\n\nMade of the parsers of the command line; `flashinfer-bench COMMAND --help` says the same.\n\n"
        "Trace sets may stand without `--local`. Flags that take names are also taken without their `s`. Names are\n"
        "separated by spaces or commas. Exit codes: 0 ran, 1 the run failed, 2 misuse, 130 interrupted.\n"
    ]
    for word in COMMANDS:
        if word == PERF:
            parts.append(_render_perf())
            continue
        parser = make_parser([word]).children()[word]
        parsers = list(parser.children().values()) or [parser]
        parts += [_render_command(one) for one in parsers]
    return "\n".join(parts)


def render_python() -> str:
    """Return the page of the public names. mkdocstrings puts their docstrings there."""
    parts = [
        "---\nsearch:\n  boost: 0.5\n---\n# Python\n\nMade of the docstrings of the public names. Names are\n"
        "imported when they are first asked for, so importing the package is cheap.\n"
    ]
    shown: set[int | str] = set()
    for module, text in PACKAGES.items():
        parts.append(f"## {module}\n\n{text}\n")
        for name, value in _list_names(module):
            same = id(value) if callable(value) else f"{module}.{name}"
            if same not in shown:
                shown.add(same)
                parts.append(f"::: {module}.{name}\n")
    return "\n".join(parts)


def render_values() -> str:
    """Return the page of the rules that say which random values an input gets."""
    from flashinfer_bench.bench.evaluators.inputs.rules import ANY, NUMBER_RULES, TENSOR_RULES  # they import torch

    parts = [
        "# Random values\n\nMade of the rules that draw random inputs. [Random inputs](../trace-set.md#random-inputs)\n"
        "says how integers get a meaning. The first line that fits decides. Op type, kind of dtype and the whole\n"
        "name, in lower case, have to match; op type and name are regular expressions.\n"
    ]
    titles = ("Tensors", TENSOR_RULES), ("Single numbers", NUMBER_RULES)
    for title, rules in titles:
        parts.append(f"## {title}\n\n| op type | kind of dtype | name | values |\n|---|---|---|---|")
        for rule in rules:
            said = ["any" if one == ANY else f"`{one}`".replace("|", "\\|") for one in (rule.op_type, rule.name)]
            parts.append(f"| {said[0]} | {rule.kinds.replace(' ', ', ')} | {said[1]} | {rule.what} |")
        parts.append("")
    return "\n".join(parts)


def render_support() -> str:
    """Return the table of routines and the backends that each compute capability has. torch is left out."""
    groups: dict[Any, list[str]] = {}
    for name, one in ROUTINES.items():
        cells = tuple(", ".join(b for b, has in one.support.items() if at in has) for at in CAPABILITIES)
        groups.setdefault((one.family, cells), []).append(name)
    sizes = {family: sum(one.family == family for one in ROUTINES.values()) for family, _ in groups}
    rows = [
        (f"all {len(names)} of {family}" if len(names) == sizes[family] > 1 else ", ".join(names), *cells)
        for (family, cells), names in groups.items()
    ]
    columns = [list(column) for column in zip(("routine", *CAPABILITIES), *rows, strict=True)]
    merged = [
        [", ".join(column[0] for column in same), *content]
        for content, found in groupby(columns, key=lambda column: column[1:])
        if (same := list(found))
    ]
    head, *body = [f"| {' | '.join(cells)} |" for cells in zip(*merged, strict=True)]
    return "\n".join([head, "|---" * len(merged) + "|", *body])


def replace_support(page: str) -> str:
    """Return docs/routines.md with the present support matrix."""
    return SUPPORT.sub(lambda found: f"{found[1]}\n\n{render_support()}\n\n{found[2]}", page)


def render_llms(nav: list[dict[str, Any]], description: str) -> str:
    """Return llms.txt: the pages of the site for a model, as links to their Markdown."""
    sections: dict[str, list[dict[str, str]]] = {"Start": [one for one in nav if {str} == set(map(type, one.values()))]}
    sections |= {title: pages for one in nav for title, pages in one.items() if not isinstance(pages, str)}
    parts = [f"# flashinfer-bench\n\n> {description}\n"]
    for title, pages in sections.items():
        links = [f"- [{name}]({path})" for one in pages for name, path in one.items()]
        parts.append("\n".join([f"## {title}", "", *links, ""]))
    return "\n".join(parts)


def _list_names(module: str) -> Iterator[tuple[str, Any]]:
    """Yield the public names of a module: those of its `__all__`, or all that it defines."""
    imported = importlib.import_module(module)
    own = [name for name, value in vars(imported).items() if getattr(value, "__module__", None) == module]
    for name in getattr(imported, "__all__", own):
        if not name.startswith("_"):
            yield name, getattr(imported, name)


def _render_command(parser: Parser) -> str:
    formatter = parser._get_formatter()
    formatter.add_usage(parser.usage, parser._actions, [], prefix="")
    usage = formatter.format_help().strip()
    lines = [f"## {parser.prog.partition(' ')[2]}", "", _escape(parser.description or ""), "", f"```text\n{usage}\n```"]
    for group in parser._action_groups:
        rows = [_row(action) for action in group._group_actions if action.help != argparse.SUPPRESS]
        rows = [row for row in rows if row and not row.startswith("| `-h`")]
        if rows:
            title = group.title or ""
            title += f" ({group.description})" if group.description else ""
            lines += ["", f"**{_escape(title)}**", "", "| argument | |", "|---|---|", *rows]
    example = (parser.epilog or "").partition("example:")[2].strip()
    lines += ["", f"```sh\n{example}\n```", ""] if example else [""]
    return "\n".join(lines)


def _row(action: argparse.Action) -> str:
    spelt = ", ".join(f"`{flag}`" for flag in action.option_strings) or f"`{action.metavar or action.dest}`"
    if action.option_strings and action.nargs != 0:
        choices = ",".join(str(choice) for choice in action.choices or ())
        metavar = action.metavar or (f"{{{choices}}}" if choices else action.dest.upper())
        many = " ..." if action.nargs in ("+", "*") else ""
        spelt += f" `{metavar}{many}`"
    text = (action.help or "") % {**vars(action), "prog": "flashinfer-bench"}
    return f"| {spelt.replace('|', chr(92) + '|')} | {_escape(text)} |"


def _render_perf() -> str:
    printed = io.StringIO()
    with patch.dict(os.environ, COLUMNS=HELP_COLUMNS), contextlib.redirect_stdout(printed):
        cli([PERF, "--help"])
    general = printed.getvalue().partition("\nroutines (")[0].rstrip()
    lines = ["## perf", "", "[Routines](../routines.md) says what each flag does.", "", f"```text\n{general}\n```"]
    for family in dict.fromkeys(routine.family for routine in ROUTINES.values()):
        lines += ["", f"**{_escape(family)}**", "", "| routine | | flags of its own |", "|---|---|---|"]
        for routine in (one for one in ROUTINES.values() if one.family == family):
            flags = " ".join(f"`--{flag.name}`" for flag in routine.flags)
            lines.append(f"| `{routine.name}` | {_escape(routine.summary)} | {flags} |")
    return "\n".join([*lines, ""])


def _escape(text: str) -> str:
    """Return text of a help as Markdown that shows it as it is."""
    escaped = re.sub(r"([\\`*_<>|{}\[\]])", r"\\\1", text)
    return re.sub(r"\s*\n\s*", " ", escaped).strip()


SUPPORT: Final = re.compile(r"(<!-- support matrix.*?-->)\n.*\n(<!-- end -->)", re.DOTALL)
PAGES: Final = {
    "reference/commands.md": render_commands,
    "reference/python.md": render_python,
    "reference/values.md": render_values,
}
"""Path of a page in the site → what makes it."""

if __name__ == "__main__":
    ROUTINES_PAGE = Path(__file__).parents[1] / "docs" / "routines.md"
    ROUTINES_PAGE.write_text(replace_support(ROUTINES_PAGE.read_text("utf-8")), "utf-8")
