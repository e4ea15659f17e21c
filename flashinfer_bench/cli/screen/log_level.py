"""`--log-level LEVEL`, a flag of every command: from which level on the package's log goes to stderr.

What a command shows, its progress and its problems, is no log. At DEBUG an error is told with its traceback, too.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from typing import Final

LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
USUAL: Final = "WARNING"
LOG_HELP: Final = f"log from this level on: {', '.join(LEVELS)}; DEBUG shows tracebacks, too (default: {USUAL})"
ROOT: Final = "flashinfer_bench"
"""The logger that all of the package's are below."""
HANDLER: Final = "flashinfer-bench command line"
"""The name of the handler that a command adds; a caller of `cli()` who has one of its own keeps it alone."""


def add_log_level(group: argparse._ActionsContainer, *spellings: str) -> None:
    """Add the flag, under further spellings, too."""
    group.add_argument("--log-level", *spellings, type=_level, default=USUAL, metavar="LEVEL", help=LOG_HELP)


def start_log(argv: Sequence[str]) -> None:
    """Send the package's log to stderr, from the level that the arguments name; what is wrong in them is told later."""
    probe = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    probe.add_argument("--log-level", "--log_level", default=USUAL, nargs="?")
    found = str(probe.parse_known_args(list(argv))[0].log_level).upper()
    logger = logging.getLogger(ROOT)
    logger.setLevel(found if found in LEVELS else USUAL)
    ours = next((handler for handler in logger.handlers if handler.name == HANDLER), None)
    if ours is not None:  # an earlier command of this process: stderr may be another one since
        logger.removeHandler(ours)
    if ours is not None or not logger.handlers:
        handler = logging.StreamHandler()
        handler.set_name(HANDLER)
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)


def _level(text: str) -> str:
    if text.upper() not in LEVELS:
        raise argparse.ArgumentTypeError(f"{text!r} is no level; known: {', '.join(LEVELS)}")
    return text.upper()
