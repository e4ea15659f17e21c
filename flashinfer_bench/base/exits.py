"""How a process ended, in words."""

from __future__ import annotations

import signal


def describe_exit(code: int | None) -> str:
    """Describe how a process ended.

    Args:
        code: the exit code. Negative: the number of the signal that ended the process. None: the end was not observed.
    """
    if code is None:
        return "ended (its exit code is not known)"
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"was killed by {name}"
