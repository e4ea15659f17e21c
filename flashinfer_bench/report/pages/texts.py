"""Texts of authors as a page may have them: cut, without characters that steer; and the scripts that hold them."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from typing import Any, Final

import msgspec

from flashinfer_bench.report.verdict import REASON_LIMIT, to_one_line

MOST_TEXT: Final = 64_000
"""A description, log or source shows this many characters; the trace set has the rest."""
ID_DIGITS: Final = 16
"""A page's identity has this many hexadecimal digits."""


def id_of(*names: str) -> str:
    """Return what stands for names in file names and links: digits of a digest, so no name leads out of the folder."""
    text = json.dumps(names)  # escapes what UTF-8 does not have
    return hashlib.sha256(text.encode()).hexdigest()[:ID_DIGITS]


def line_of(text: object) -> str:
    """Return a name or a reason as one line."""
    told = str(text)
    return _line_of(told) if len(told) <= REASON_LIMIT else to_one_line(told)


@lru_cache(1 << 14)
def _line_of(text: str) -> str:
    """Remember short ones: verdicts repeat names, devices and versions."""
    return to_one_line(text)


def block_of(text: str | None) -> str:
    """Return a text of several lines: cut with a note, and steering characters as escapes."""
    if not text:
        return ""
    shown = text[:MOST_TEXT]
    lines = shown if shown.isprintable() else "".join(map(_shown, shown))
    cut = len(text) - len(shown)
    return f"{lines}\n… cut: {cut:,} more characters" if cut else lines


def to_script(key: str, data: Any) -> str:
    """Return a script that holds data under a key: ASCII alone, and nothing in it can end a script or a string."""
    text = msgspec.json.encode(data).decode()
    literal = (
        json.dumps(text, ensure_ascii=True).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    )
    return f"fibReport.keep({json.dumps(key)}, {literal});\n"


def _shown(character: str) -> str:
    if character.isprintable() or character in "\n\t":
        return character
    return "\n" if character == "\r" else character.encode("unicode_escape").decode("ascii")
