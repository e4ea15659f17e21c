"""Tells how this program was started, and which command continues a run that stopped."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from flashinfer_bench.cli.parser import PROGRAM


def resume_command(program: Sequence[str], argv: Sequence[str]) -> str:
    """Return the command that continues the run: the same one with --resume, and without --quick.

    No quick look is resumed from: what is worth going on with gets its whole verdict.
    """
    kept = [word for word in argv if word != "--quick"]
    return shlex.join([*program, *kept, *([] if "--resume" in kept else ["--resume"])])


def typed_program(script: str, interpreter: str, find: Callable[[str], str | None] = shutil.which) -> list[str]:
    """Return how this program was started: by its name, by its path, or as a module."""
    path = Path(script)
    if path.name == "__main__.py":
        return [interpreter, "-m", "flashinfer_bench"]
    return [PROGRAM] if path.name != PROGRAM or find(PROGRAM) == str(path.absolute()) else [script]
