"""Markdown of untrusted texts, for comments on pull requests and for step summaries."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from flashinfer_bench.base.printable import to_printable

ENTITIES: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "$": "&#36;"}
TRANSLATED: Final = str.maketrans({sign: f"\\{sign}" for sign in "\\`*_[~|"} | ENTITIES)
LINKED: Final = re.compile(r"@(?=\w)|#(?=\d)|gh-(?=\d)|:(?=//)|www(?=\.)", re.IGNORECASE)
"""Beginnings of mentions, mail addresses, issues and URLs. GitHub links them, also when they are escaped."""
BREAK: Final = "\u200b"
"""A character without width. After it, GitHub sees no link."""


def escape_markdown(text: str) -> str:
    """Return text in one line that Markdown shows as it is."""
    return LINKED.sub(rf"\g<0>{BREAK}", to_printable(" ".join(text.split()))).translate(TRANSLATED)


def make_markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table. A column whose heading begins with `#` is right-aligned."""
    rule = ("---:" if heading.startswith("#") else "---" for heading in headings)
    lines = [[heading.removeprefix("#") for heading in headings], rule, *(map(escape_markdown, row) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
