"""Reads an exported folder by FlashInfer's own reader, in a process of its own. No solution is run.

    request: the folder
    response: {"flashinfer": version, "problems": [lines], "files": number}

The process imports FlashInfer as a served model does: with FLASHINFER_TRACE_APPLY and FLASHINFER_TRACE_APPLY_PATH. Then
the process enables each file alone, and asks whether Trace Apply replaces an API by the file's solution.
"""

from __future__ import annotations

import json
import os
import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.base.isolated import IsolatedFailure, run_isolated
from flashinfer_bench.errors import ConfigError, Fault

LIBRARY: Final = "flashinfer"
SWITCH: Final = "FLASHINFER_TRACE_APPLY"
FOLDER: Final = "FLASHINFER_TRACE_APPLY_PATH"
LIMIT_S: Final = 300.0
"""Seconds for the process. The import of FlashInfer may compile."""


def find_reader() -> None:
    """Raise ConfigError if FlashInfer is not installed."""
    if find_spec(LIBRARY) is None:
        raise ConfigError("--check needs FlashInfer: pip install flashinfer-python")


def check_folder(folder: Path) -> dict[str, Any]:
    """Return the response of FlashInfer's reader to an exported folder.

    Raises:
        Fault: the reader's process ended without a response.
    """
    environment = {**os.environ, SWITCH: "1", FOLDER: str(folder.absolute())}
    try:
        response: dict[str, Any] = run_isolated(__name__, str(folder), limit_s=LIMIT_S, environment=environment)
    except IsolatedFailure as error:
        raise Fault(f"FlashInfer's reader ended with exit code {error.code}:\n{error.log}") from error
    return response


def answer(folder: str) -> dict[str, Any]:
    """Read the folder in this process."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        library = import_module(LIBRARY)
    apply = import_module(f"{LIBRARY}.trace_apply")
    reader = import_module(f"{LIBRARY}.trace").Solution
    problems = [str(one.message) for one in caught if "trace apply" in str(one.message).lower()]
    if not apply.is_enabled():
        problems.append("FlashInfer did not enable Trace Apply")
    files = sorted(Path(folder).rglob("solutions/**/*.json"))
    for file in files:
        try:
            solution = reader.from_dict(json.loads(file.read_text(encoding="utf-8")))
            if not apply.enable_apply({solution.definition: solution}):
                problems.append(f"{file.name}: no API of FlashInfer makes the name {solution.definition}")
        except Exception as error:
            problems.append(f"{file.name}: {type(error).__name__}: {error}")
    return {"flashinfer": library.__version__, "problems": problems, "files": len(files)}
