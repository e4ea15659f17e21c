"""Sources as coloured pieces: [kind, text] pairs, which the page writes as text. No markup is made of a source."""

from __future__ import annotations

from itertools import groupby
from typing import Final

from pygments.lexer import Lexer
from pygments.lexers import CppLexer, CudaLexer, PythonLexer
from pygments.token import STANDARD_TYPES, _TokenType

from flashinfer_bench.report.pages.texts import Shown, block_of

MOST_COLOURED: Final = 40_000
"""A longer source has no colours: lexers are slow on strange texts."""
KINDS: Final = {"nf": "f", "fm": "f", "nc": "f", "nd": "d", "nb": "b", "bp": "b", "ow": "k"}
"""Short names of tokens and their kinds; comments, keywords, strings and numbers have their first letter."""
LEXERS: Final[dict[str, type[Lexer]]] = {
    "py": PythonLexer,
    **dict.fromkeys(("cu", "cuh"), CudaLexer),
    **dict.fromkeys(("cpp", "cc", "h", "hpp"), CppLexer),
}


def colour(path: str, source: str) -> list[list[str]]:
    """Return the pieces of a source; together they are its text as `block_of` shows it."""
    text, lexer = block_of(source), LEXERS.get(path.rpartition(".")[2].lower())
    if lexer is None or len(text) > MOST_COLOURED:
        return [["", text]]
    tokens = lexer(stripnl=False, ensurenl=False).get_tokens(text)
    pieces = groupby(((_kind(token), part) for token, part in tokens), lambda item: item[0])
    return [[kind, Shown("".join(part for _, part in items))] for kind, items in pieces]


def _kind(token: _TokenType) -> str:
    name = STANDARD_TYPES.get(token, "")
    return KINDS.get(name) or (name[:1] if name[:1] in ("c", "k", "s", "m") else "")
