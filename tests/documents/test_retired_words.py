"""Retired words do not come back: metaphors in code and pages, second meanings in names, sentences that read twice."""

import ast
import io
import re
import tokenize

import pytest

from tests.kit.documents import CHECKOUT, PAGES

PAGES_OF_WORDS = [*PAGES, CHECKOUT / "CONTRIBUTING.md", CHECKOUT / "CHANGELOG.md"]
CODE = {
    path for path in (CHECKOUT / "flashinfer_bench").rglob("*.py") if "code" not in path.parts
}  # of routines: texts
PATHS = sorted({*CODE, *PAGES_OF_WORDS} - {CHECKOUT / "docs/migration.md", CHECKOUT / "docs/results.md"})
METAPHORS = "anteroom bell desk farm glance misuse nudge parcel portion readout shelf station twin walls workshop"
"""Words of no name, comment, docstring, message or page; docs/migration.md says what replaced those users knew."""
MEANINGS = "blank hello look place told verb"
"""Words of no name: each was used with a second meaning."""
ALLOWED = r"^walls$|look_up|lookup|in_place|IN_PLACE"
"""Values of traces, and terms of the field."""
SENTENCES = {
    "who without a noun": r"(?:^|[.;:(] )[Ww]ho(?:ever)? |\b(?:of|by|for|from|to|and|with|as|than) who(?:ever)?\b",
    "no number": r"\b(?:so many|so much)\b",
    "an actor": r"\b(?:he|his|him)\b",
}


def find_retired(text, words):
    """Return the retired words and patterns in a text."""
    text = re.sub(ALLOWED, "", text)
    found = [word for word in words.split() if re.search(rf"(?<![a-z]){word}s?(?![a-z])", text, re.IGNORECASE)]
    return found + [name for name, pattern in SENTENCES.items() if " " in text and re.search(pattern, text)]


def read_texts(path):
    """Yield the line, the text and the retired words of each name, comment and string of a module, or of a page."""
    source = path.read_text()
    if path.suffix != ".py":
        yield from ((at, line, METAPHORS) for at, line in enumerate(source.splitlines(), 1))
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, " ".join(node.value.split()), METAPHORS
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string, METAPHORS
        elif token.type == tokenize.NAME:
            yield token.start[0], re.sub(r"(?<=[a-z])(?=[A-Z])", "_", token.string), f"{METAPHORS} {MEANINGS}"


@pytest.mark.parametrize("path", PATHS, ids=lambda path: str(path.relative_to(CHECKOUT)))
def test_no_retired_word_is_left(path):
    assert [(at, found) for at, text, words in read_texts(path) for found in find_retired(text, words)] == []
