"""The process that `lookup.py` starts: it imports the evaluators, tells which one takes which definition, and ends.

What a plug-in prints while it is imported goes to stderr; stdout carries the answer alone.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Any

from flashinfer_bench.bench.evaluators.plug_ins import PlugIn
from flashinfer_bench.bench.evaluators.registry import choose_evaluator, register
from flashinfer_bench.data import Definition
from flashinfer_bench.errors import ConfigError


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Answer one question; `lookup.py` describes both."""
    try:
        register(PlugIn(**plug_in) for plug_in in question["plug_ins"])
        definitions = [Definition.model_validate(definition) for definition in question["definitions"]]
        return {"choices": {definition.name: asdict(choose_evaluator(definition)) for definition in definitions}}
    except ConfigError as error:
        return {"refused": str(error)}


def main() -> None:
    """Read the question from stdin and write the answer to what was stdout."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        json.dump(answer(json.load(sys.stdin)), out)


if __name__ == "__main__":
    main()
