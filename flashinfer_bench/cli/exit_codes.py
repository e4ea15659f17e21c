"""The exit codes of commands. The classes in `errors` have the codes for misuse and faults."""

from typing import Final

RAN: Final = 0
FAILED: Final = 1
INTERRUPTED: Final = 130
"""The code that shells give a process that Ctrl-C ended: 128 + SIGINT."""
