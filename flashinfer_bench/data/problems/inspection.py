"""Runs the code of other engines' problems to find shapes, in a process of its own.

    request: {"module": the engine's inspection, "block": text of its block.py, "limit_s": seconds for one problem,
              "problems": [JSON value]}
    response: a list with {"refused": reason}, or the answer of `inspect_problem`, for each problem

A problem runs in a fork of the process, with fake tensors, which have shapes and no values. If that fails, the problem
runs with real tensors. A fork is no sandbox, so the user has to trust the problems.
"""

from __future__ import annotations

import json
import linecache
import multiprocessing
import resource
import sys
import types
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

MOST_BYTES: Final = 16 << 30
"""Memory that one problem may allocate."""
NUMBERS: Final[dict[type, str]] = {bool: "bool", int: "int64", float: "float64"}

Inspect = Callable[[str, Any], dict[str, Any]]


class Unsupported(Exception):
    """A problem that cannot be carried over, with the reason."""


def answer(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Inspect each problem in a fork of this process."""
    with FakeTensorMode():  # loads torch's modules once for all forks
        torch.zeros(1).sum()
    inspect = import_module(request["module"]).inspect_problem
    return [_inspect_apart(request["limit_s"], inspect, request["block"], problem) for problem in request["problems"]]


def _inspect_apart(limit_s: float, inspect: Inspect, block: str, problem: Any) -> dict[str, Any]:
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sending, inspect, block, problem))
    process.start()
    sending.close()
    found: dict[str, Any] = {"refused": f"its code takes longer than {limit_s:g} s"}
    try:
        if receiving.poll(limit_s):
            found = json.loads(receiving.recv_bytes())
    except EOFError:
        process.join()
        found = {"refused": f"its code ended the process with exit code {process.exitcode}"}
    process.kill()
    process.join()
    return found


def _send(sending: Connection, inspect: Inspect, block: str, problem: Any) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, most))
    found = {}
    for mode in (FakeTensorMode(allow_non_fake_inputs=True), nullcontext()):
        try:
            with mode, torch.no_grad():
                found = inspect(block, problem)
        except Exception as error:
            found = {"refused": str(error) if isinstance(error, Unsupported) else f"{type(error).__name__}: {error}"}
            if not isinstance(error, Unsupported):
                continue
        break
    sending.send_bytes(json.dumps(found).encode())


def execute(name: str, text: str) -> types.ModuleType:
    """Run a source as a new module, and return the module."""
    module = sys.modules[name] = types.ModuleType(name)
    linecache.cache[name] = (1, None, text.splitlines(keepends=True), name)  # compilers of Python read it
    exec(compile(text, name, "exec", dont_inherit=True), vars(module))
    return module


def describe(what: str, value: Any) -> tuple[list[int] | None, str]:
    """Return shape and dtype of a value. A number has no shape."""
    if isinstance(value, torch.Tensor):
        return [*value.shape], str(value.dtype).removeprefix("torch.")
    if type(value) not in NUMBERS:
        raise Unsupported(f"{what} is a {type(value).__name__}, not a tensor or a number")
    return None, NUMBERS[type(value)]
