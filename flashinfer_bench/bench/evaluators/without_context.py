"""Evaluators whose methods have no parameter `context`, as the public package documents them, are called without it.

The device session calls every evaluator with `context`, so `registry` wraps these evaluators.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

from flashinfer_bench.bench.evaluators.evaluator import Evaluator, JudgeContext

METHODS: Final = ("build_baseline", "check_correctness", "eval_performance")
"""The methods that the device session calls with `context`."""


def accept_context(evaluator: type[Evaluator]) -> type[Evaluator]:
    """Return an evaluator whose methods can be called with `context`: the same one where they take it already."""
    lacking = [name for name in METHODS if not _takes_context(getattr(evaluator, name))]
    if not lacking:
        return evaluator
    names = {name: getattr(evaluator, name) for name in ("__module__", "__qualname__", "__doc__")}
    methods = {name: classmethod(_without_context(getattr(evaluator, name))) for name in lacking}
    return type(evaluator.__name__, (evaluator,), {**names, **methods})


def _takes_context(method: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(method).parameters
    except (TypeError, ValueError):
        return True
    return "context" in parameters or any(item.kind is item.VAR_KEYWORD for item in parameters.values())


def _without_context(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(cls: type[Evaluator], *arguments: Any, context: JudgeContext) -> Any:
        del cls, context
        return method(*arguments)

    return call
