"""One way to turn a plain value into a digest: sha256 over canonical JSON. Order counts in lists, not in dicts."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def digest_of(value: Any) -> str:
    """Give the sha256 of a JSON-able value, in hexadecimal."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
