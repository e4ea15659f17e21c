"""Words and defaults of the engine that the help tells. Their own modules take long to import.

`tests/cli/test_command_flags.py` holds each against the engine's.
"""

from __future__ import annotations

from typing import Final

DEFAULT_URL: Final = "http://127.0.0.1:8000"
"""Where a server on this machine listens."""
