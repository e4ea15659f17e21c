"""Text of files, and their names, on a terminal."""

from __future__ import annotations


def to_printable(text: str) -> str:
    """Show control characters as escapes, so that text of a file cannot steer a terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
