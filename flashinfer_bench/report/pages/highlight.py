"""Sources as coloured pieces: [kind, text] pairs, which the page writes as text. No markup is made of a source."""

from __future__ import annotations

from typing import Final

from pygments.lexer import Lexer
from pygments.lexers import CppLexer, CudaLexer, PythonLexer, TextLexer
from pygments.token import Comment, Keyword, Name, Number, Operator, String, _TokenType

from flashinfer_bench.report.pages.texts import block_of

MOST_COLOURED: Final = 40_000
"""A longer source has no colours: lexers are slow on strange texts."""
KINDS: Final = (
    (Comment, "c"),
    (Keyword, "k"),
    (String, "s"),
    (Number, "m"),
    (Name.Function, "f"),
    (Name.Class, "f"),
    (Name.Decorator, "d"),
    (Name.Builtin, "b"),
    (Operator.Word, "k"),
)
"""Token and its kind; the first that holds the token counts."""
LEXERS: Final[dict[str, type[Lexer]]] = {
    "py": PythonLexer,
    "cu": CudaLexer,
    "cuh": CudaLexer,
    "cpp": CppLexer,
    "cc": CppLexer,
    "h": CppLexer,
    "hpp": CppLexer,
}
Piece = list[str]


def colour(path: str, source: str) -> list[Piece]:
    """Return the pieces of a source; together they are its text as `block_of` shows it."""
    text = block_of(source)
    lexer = LEXERS.get(path.rpartition(".")[2].lower(), TextLexer)
    if lexer is TextLexer or len(text) > MOST_COLOURED:
        return [["", text]]
    pieces: list[Piece] = []
    for token, part in lexer(stripnl=False, ensurenl=False).get_tokens(text):
        kind = _kind(token)
        if pieces and pieces[-1][0] == kind:
            pieces[-1][1] += part
        else:
            pieces.append([kind, part])
    return pieces


def _kind(token: _TokenType) -> str:
    return next((kind for parent, kind in KINDS if token in parent), "")
