"""How this command was typed, and the command that goes on where it stopped."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from flashinfer_bench.cli.shared_flags import PROGRAM


def resume_command(program: Sequence[str], argv: Sequence[str]) -> str:
    """Return the command that goes on where this one stopped."""
    return shlex.join([*program, *argv, *([] if "--resume" in argv else ["--resume"])])


def typed_program(script: str, interpreter: str, find: Callable[[str], str | None] = shutil.which) -> list[str]:
    """Return how this command was started: by its name, by its path, or as a module."""
    path = Path(script)
    if path.name == "__main__.py":
        return [interpreter, "-m", "flashinfer_bench"]
    return [PROGRAM] if path.name != PROGRAM or find(PROGRAM) == str(path.absolute()) else [script]
