"""Evaluators from outside, as the public package documents them, are made to fit what the device session calls.

Their methods may have no parameter `context`, or take `device`, `log_path` and `trace_set_root` beside what the session
gives. They may return a `Correctness`, or a pair of it and an `Evaluation`, which is None where the solution is right.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any, Final

import torch

from flashinfer_bench.bench.evaluators.evaluator import Accepted, Evaluator, JudgeContext, Rejected
from flashinfer_bench.bench.evaluators.plug_ins import OWN_PACKAGE
from flashinfer_bench.data import Correctness, Evaluation, EvaluationStatus, Performance
from flashinfer_bench.errors import WorkloadFault

METHODS: Final = ("build_baseline", "check_correctness", "eval_performance")
"""The methods that the device session calls with `context`."""
NEEDED: Final = {"check_correctness": "Accepted(correctness) or Rejected(…)", "eval_performance": "a Performance"}
"""Method → what it has to return."""
KEPT: Final = ("__module__", "__qualname__", "__doc__", "is_elementwise")
"""Attributes that the evaluator keeps, though its methods are others."""


def accept_context(evaluator: type[Evaluator]) -> type[Evaluator]:
    """Return an evaluator whose methods can be called with `context`: the same one where this package's take it."""
    is_own = evaluator.__module__.startswith(OWN_PACKAGE)  # also where somebody has put theirs into a checkout
    if is_own and all(_takes_context(getattr(evaluator, name)) for name in METHODS):
        return evaluator
    names = {name: getattr(evaluator, name) for name in KEPT if hasattr(evaluator, name)}
    methods = {name: classmethod(_fitted(name, getattr(evaluator, name))) for name in METHODS}
    return type(evaluator.__name__, (evaluator,), {**names, **methods})


def _takes_context(method: Callable[..., Any]) -> bool:
    parameters = inspect.signature(method).parameters
    return "context" in parameters or any(item.kind is item.VAR_KEYWORD for item in parameters.values())


def _fitted(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    wanted = {*inspect.signature(method).parameters} | ({"context"} if _takes_context(method) else set())

    def call(cls: type[Evaluator], *arguments: Any, context: JudgeContext) -> Any:
        offered = {"context": context, "log_path": os.devnull, "trace_set_root": context.blob_root}
        if name != "build_baseline":
            tensors = (value for trial in arguments[2] for value in trial if isinstance(value, torch.Tensor))
            offered["device"] = str(next(tensors, torch.empty(0)).device)
        returned = method(*arguments, **{key: value for key, value in offered.items() if key in wanted})
        match name, returned:
            case ("build_baseline", _) | ("check_correctness", Accepted() | Rejected()):
                return returned
            case "check_correctness", Correctness():
                return Accepted(returned)
            case "check_correctness", (Correctness() as correctness, None):
                return Accepted(correctness)
            case "check_correctness", (correctness, Evaluation(status=status, log=log)):
                if status is not EvaluationStatus.PASSED:
                    return Rejected(status, log, correctness)
            case "eval_performance", Performance():
                return returned
            case "eval_performance", (Performance() as performance, None):
                return performance
            case _:
                pass
        what = "nothing (None)" if returned is None else f"an object of type {type(returned).__name__}"
        raise WorkloadFault(f"{cls.__qualname__}.{name} returned {what}: {NEEDED[name]} is needed")

    return call
