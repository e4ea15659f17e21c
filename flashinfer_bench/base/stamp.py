"""The form of a time in traces and files."""

from __future__ import annotations

import time


def utc_now() -> str:
    """Return the time as ISO 8601 in UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
