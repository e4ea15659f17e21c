"""Asks a process of its own which evaluator judges which definition: the host imports neither torch nor plug-ins.

So a plug-in that cannot be used is found before anything runs. The process is `lookup_main.py`:

    stdin   {"plug_ins": [PlugIn], "definitions": [Definition]}
    stdout  {"choices": {definition: EvaluatorChoice}}  or  {"refused": reason}
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, Final

from flashinfer_bench.bench.evaluators.plug_ins import EvaluatorChoice, PlugIn
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.runner.environments import session_environment
from flashinfer_bench.data import Definition
from flashinfer_bench.errors import ConfigError

LOOKUP_LIMIT_S: Final = 180.0
"""Seconds that importing the plug-ins and choosing may take; then the run is refused."""
STDERR_TAIL: Final = 2000
"""Show this many characters from the end of what the process printed."""
NO_DEVICE: Final = Device(kind="cpu", index=0, name="", uuid="")
CHILD: Final = "flashinfer_bench.bench.runner.lookup_main"


def look_up_evaluators(
    definitions: Iterable[Definition], plug_ins: Sequence[PlugIn], *, limit_s: float = LOOKUP_LIMIT_S
) -> dict[str, EvaluatorChoice]:
    """Return which evaluator judges each definition, by the definition's name.

    Raises:
        ConfigError: a plug-in cannot be imported, offers no evaluator, or fails on a definition.
    """
    question = {
        "plug_ins": [asdict(plug_in) for plug_in in plug_ins],
        "definitions": [definition.model_dump(mode="json") for definition in definitions],
    }
    names = ", ".join(plug_in.reference for plug_in in plug_ins) or "none"
    try:
        child = subprocess.run(
            [sys.executable, "-m", CHILD],
            input=json.dumps(question),
            capture_output=True,
            text=True,
            env=session_environment(os.environ, NO_DEVICE, interpret_triton=True),
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"importing the evaluators ({names}) takes more than {limit_s:g} s") from None
    answer = _read_answer(child.stdout)
    if "choices" not in answer:
        ended = f"the process that imports the evaluators ({names}) ended with exit code {child.returncode}"
        raise ConfigError(answer.get("refused") or f"{ended}; it said last:\n{child.stderr[-STDERR_TAIL:].strip()}")
    return {name: EvaluatorChoice(**choice) for name, choice in answer["choices"].items()}


def _read_answer(text: str) -> dict[str, Any]:
    try:
        answer = json.loads(text)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
