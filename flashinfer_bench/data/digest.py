"""One way to turn a plain value into a digest: sha256 over canonical JSON. Order counts in lists, not in dicts.

And one way to turn a text into a seed.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any


def digest_of(value: Any) -> str:
    """Give the sha256 of a JSON-able value, in hexadecimal."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def seed_of(text: str) -> int:
    """Give the seed that belongs to a text: the first 63 bits of its sha256."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
