"""The exit codes of commands; a refused one's are those of `errors`."""

from typing import Final

RAN: Final = 0
FAILED: Final = 1
INTERRUPTED: Final = 130
"""What shells say of a process that Ctrl-C ended: 128 + SIGINT."""
