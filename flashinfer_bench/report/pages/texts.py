"""Texts of authors as a page may have them: cut, without characters that steer; and the scripts that hold them."""

from __future__ import annotations

import hashlib
import json
import math
from functools import lru_cache
from typing import Any, Final

import msgspec

from flashinfer_bench.report.verdict import to_one_line

MOST_TEXT: Final = 64_000
"""A description, log or source shows this many characters; the trace set has the rest."""
ID_DIGITS: Final = 16
"""A page's identity has this many hexadecimal digits."""
DIGITS: Final = 6
"""Numbers in data have this many significant digits."""
line_of = lru_cache(1 << 14)(to_one_line)
"""Returns a name or a reason as one line; verdicts repeat names, devices and versions."""


class Shown(str):
    """A text of several lines that is fit to be shown as it is."""


def id_of(*names: str) -> str:
    """Return what stands for names in file names and links: digits of a digest, so no name leads out of the folder."""
    text = json.dumps(names)  # escapes what UTF-8 does not have
    return hashlib.sha256(text.encode()).hexdigest()[:ID_DIGITS]


def block_of(text: str | None) -> Shown:
    """Return a text of several lines: cut with a note, and steering characters as escapes."""
    shown = (text or "")[:MOST_TEXT]
    lines = shown if shown.isprintable() else "".join(map(_shown, shown))
    cut = len(text or "") - len(shown)
    return Shown(f"{lines}\n… cut: {cut:,} more characters" if cut else lines)


def clean(value: Any) -> Any:
    """Return data as pages have it: each text in one line unless it is `Shown`, and numbers with few digits."""
    kind = type(value)
    if kind is str:
        return line_of(value)
    if kind is float:
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if kind is list or kind is tuple:
        return [clean(item) for item in value]
    if kind is dict:
        return {key: clean(item) for key, item in value.items()}
    return str(value) if kind is Shown else value


def to_script(key: str, data: Any) -> str:
    """Return a script that holds data under a key: ASCII alone, and nothing in it can end a script or a string."""
    literal = json.dumps(msgspec.json.encode(data).decode(), ensure_ascii=True)
    for sign in "<>&":
        literal = literal.replace(sign, f"\\u{ord(sign):04x}")
    return f"fibReport.keep({json.dumps(key)}, {literal});\n"


def _shown(character: str) -> str:
    if character.isprintable() or character in "\n\t":
        return character
    return "\n" if character == "\r" else character.encode("unicode_escape").decode("ascii")
