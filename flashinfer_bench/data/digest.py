"""Digests of plain values: sha256 over canonical JSON. The order of a dict's keys changes no digest."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def digest_of(value: Any) -> str:
    """Return the sha256 of a JSON-able value, in hexadecimal."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def seed_of(text: str) -> int:
    """Return the seed of a text: the first 63 bits of its sha256."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
