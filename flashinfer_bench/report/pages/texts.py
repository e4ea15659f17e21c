"""Converts authors' texts for a page: truncates them, and escapes control characters. Makes the scripts with the
data."""

from __future__ import annotations

import hashlib
import json
import math
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import msgspec
from pygments.lexers import CudaLexer, PythonLexer
from pygments.token import STANDARD_TYPES

MOST_TEXT: Final = 64_000
"""Largest number of characters of a text on a page. The trace set has the whole text."""
MOST_COLOURED: Final = 40_000
"""Longest highlighted source, in characters. Lexers are slow on unusual texts."""
LARGEST_INTEGER: Final = 2**53 - 1
"""Largest integer that JavaScript never rounds (`Number.MAX_SAFE_INTEGER`)."""
KINDS: Final = {"nf": "f", "fm": "f", "nc": "f", "nd": "d", "nb": "b", "bp": "b", "ow": "k"}
"""Pygments' short token name → kind. The kind of comments, keywords, strings and numbers is the first letter of the
name."""
LEXERS: Final = {"py": PythonLexer, **dict.fromkeys(("cu", "cuh", "cpp", "cc", "h", "hpp"), CudaLexer)}


def id_of(*names: str) -> str:
    """Return a 16-digit id of names, for file names and links. An id cannot lead out of the folder."""
    text = json.dumps(names)  # escapes characters that UTF-8 cannot encode
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def clean(value: Any) -> Any:
    """Return data for a page, with truncated texts, escaped control characters, and numbers of six digits. Integers
    that JavaScript would round become texts."""
    if isinstance(value, str):
        shown = value[:MOST_TEXT]
        cut = f"\n… cut: {len(value) - MOST_TEXT:,} more characters" if len(value) > MOST_TEXT else ""
        return (shown if shown.isprintable() else "".join(map(_show, shown))) + cut
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
        return str(value)
    if isinstance(value, list | tuple):
        return list(map(clean, value))
    return {clean(key): clean(item) for key, item in value.items()} if isinstance(value, dict) else value


def colour(path: str, source: str) -> list[list[str]]:
    """Return the pieces of a source as [kind, text]. The page shows the pieces as text, never as markup."""
    lexer = LEXERS.get(path.rpartition(".")[2].lower())
    if lexer is None or len(source) > MOST_COLOURED:
        return [["", source]]
    tokens = lexer(stripnl=False, ensurenl=False).get_tokens(source)
    named = ((STANDARD_TYPES.get(token, ""), text) for token, text in tokens)
    kinds = ((KINDS.get(name) or (name[:1] if name[:1] in "cksm" else ""), text) for name, text in named)
    return [[kind, "".join(text for _, text in pieces)] for kind, pieces in groupby(kinds, itemgetter(0))]


def to_script(key: str, data: Any) -> str:
    """Return a script with data under a key. The script is pure ASCII, and the data cannot end a script or a string."""
    literal = json.dumps(msgspec.json.encode(clean(data)).decode())
    for sign in "<>&":
        literal = literal.replace(sign, f"\\u{ord(sign):04x}")
    return f"fibReport.keep({json.dumps(key)}, {literal});\n"


def _show(character: str) -> str:
    if character.isprintable() or character in "\n\t":
        return character
    return "\n" if character == "\r" else character.encode("unicode_escape").decode("ascii")
