"""A copy of the package that a test may change, and programs that import it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import flashinfer_bench
from tests.conftest import CHECKOUT


def copy_package(folder: Path) -> Path:
    """Copy the package into a folder, with what Python has compiled of it; return the copy."""
    source, copy = Path(flashinfer_bench.__file__).parent, folder / "flashinfer_bench"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("*.pyc.*"))  # another process may be writing these
    return copy


def run_with(copy: Path, program: str) -> Any:
    """Run a program that imports the copy; return the JSON that it prints."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(copy.parent), str(CHECKOUT)])}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=copy.parent, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)
