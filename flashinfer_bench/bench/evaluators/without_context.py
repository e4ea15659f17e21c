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

from flashinfer_bench.bench.evaluators.evaluator import Accepted, Evaluator, JudgeContext, Rejected, Verdict
from flashinfer_bench.bench.evaluators.plug_ins import OWN_PACKAGE
from flashinfer_bench.data import Correctness, Evaluation, EvaluationStatus, Performance
from flashinfer_bench.errors import WorkloadFault

METHODS: Final = ("build_baseline", "check_correctness", "eval_performance")
"""The methods that the device session calls with `context`."""
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
    parameters = inspect.signature(method).parameters
    takes_context = _takes_context(method)

    def call(cls: type[Evaluator], *arguments: Any, context: JudgeContext) -> Any:
        more: dict[str, Any] = {"context": context} if takes_context else {}
        if name != "build_baseline" and "device" in parameters:
            more["device"] = _device_of(arguments[2])
        if "log_path" in parameters:
            more["log_path"] = os.devnull
        if "trace_set_root" in parameters:
            more["trace_set_root"] = context.blob_root
        returned = method(*arguments, **more)
        what = f"{cls.__qualname__}.{name}"
        if name == "check_correctness":
            return _read_verdict(what, returned)
        return _read_performance(what, returned) if name == "eval_performance" else returned

    return call


def _device_of(inputs: list[list[Any]]) -> str:
    tensors = (value for trial in inputs for value in trial if isinstance(value, torch.Tensor))
    return str(next(tensors, torch.empty(0)).device)


def _read_verdict(what: str, returned: Any) -> Verdict:
    match returned:
        case Accepted() | Rejected():
            return returned
        case Correctness() | (Correctness(), None):
            return Accepted(returned if isinstance(returned, Correctness) else returned[0])
        case (correctness, Evaluation(status=status, log=log)) if status is not EvaluationStatus.PASSED:
            return Rejected(status, log, correctness)
        case _:
            raise WorkloadFault(
                f"{what} returned {_describe(returned)}: Accepted(correctness) or Rejected(…) is needed"
            )


def _read_performance(what: str, returned: Any) -> Performance:
    match returned:
        case Performance():
            return returned
        case (Performance() as performance, None):
            return performance
        case _:
            raise WorkloadFault(f"{what} returned {_describe(returned)}: a Performance is needed")


def _describe(returned: Any) -> str:
    return "nothing (None)" if returned is None else f"an object of type {type(returned).__name__}"
