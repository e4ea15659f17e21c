"""Markdown of untrusted texts, for comments on pull requests and for step summaries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from flashinfer_bench.base.printable import to_printable

MARKUP: Final = {"|": "\\|", "<": "&lt;", ">": "&gt;"} | {sign: f"\\{sign}" for sign in "\\`*_["}
TRANSLATED: Final = str.maketrans(MARKUP)


def escape_markdown(text: str) -> str:
    """Return text in one line that Markdown shows as it is."""
    return to_printable(" ".join(text.split())).translate(TRANSLATED)


def make_markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table. A column whose heading begins with `#` is right-aligned."""
    rule = ("---:" if heading.startswith("#") else "---" for heading in headings)
    lines = [[heading.removeprefix("#") for heading in headings], rule, *(map(escape_markdown, row) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
