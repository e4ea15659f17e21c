"""The process behind `lookup.py`: it imports the evaluators, tells which one takes which definition, and ends.

The process that sessions are forked from forks it, too (`launcher.py`). What a plug-in prints while it is imported
goes into a file.
"""

from __future__ import annotations

import socket
from dataclasses import asdict
from typing import Any

from flashinfer_bench.bench.evaluators.plug_ins import PlugIn
from flashinfer_bench.bench.evaluators.registry import choose_evaluator, list_known_parameters, register
from flashinfer_bench.data import Definition
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.worker.wire import FrameReader, send_frame

QUESTION_BYTES = 1 << 30


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Answer one question; `lookup.py` describes both."""
    try:
        register(PlugIn(**plug_in) for plug_in in question["plug_ins"])
    except ConfigError as error:
        return {"refused": str(error)}
    choices, failed = {}, {}
    for told in question["definitions"]:
        definition = Definition.model_validate(told)
        try:
            choices[definition.name] = asdict(choose_evaluator(definition))
        except ConfigError as error:
            failed[definition.name] = str(error)
    known = list_known_parameters()
    return {
        "choices": choices,
        "failed": failed,
        "known": {"keys": sorted(known.keys), "are_all": known.are_all},
    }


def serve_host(fd: int) -> None:
    """Answer the host at the other end of a socket."""
    with socket.socket(fileno=fd) as host:
        send_frame(host, answer(FrameReader(host, max_bytes=QUESTION_BYTES, takes_fds=False).read()))
