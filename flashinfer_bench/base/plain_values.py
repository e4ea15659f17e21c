"""Converts single numbers of numpy and torch to Python's own types."""

from __future__ import annotations

from typing import Any


def to_number(value: Any) -> Any:
    """Return a single number of numpy or torch as Python's own type; any other value unchanged."""
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value
