"""The list of evaluators, in the order in which they are asked. The judge's process adds the evaluators of plug-ins.

A plug-in's module offers its evaluators in a list `EVALUATORS`, or appends them to `_EVALUATORS` while it is imported.
Evaluators in the public package's documented form are adapted to the calls of the device session. Their methods may
have no parameter `context`, or take `device`, `log_path` and `trace_set_root`. These methods may return a
`Correctness`, or a pair (`Correctness`, `Evaluation`). The `Evaluation` is None if the solution is right.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import operator
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from flashinfer_bench.bench.evaluator_record import RECORDS, make_key
from flashinfer_bench.bench.evaluators import blame
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.evaluator import Accepted, Evaluator, JudgeContext, Rejected
from flashinfer_bench.bench.evaluators.plug_ins import (
    APPENDED,
    BUILT_IN,
    OWN_PACKAGE,
    EvaluatorChoice,
    KnownParameters,
    PlugIn,
    read_parameters,
)
from flashinfer_bench.data import Correctness, Definition, Evaluation, EvaluationStatus, Performance
from flashinfer_bench.data.names import did_you_mean, nearest_name
from flashinfer_bench.errors import ConfigError, WorkloadFault

_EVALUATORS: list[type[Evaluator]] = [
    getattr(importlib.import_module(f"{__package__}.{record.module}"), name)
    for name, record in RECORDS.items()
    if record.op_types
]
"""The first evaluator that takes a definition judges it; if no evaluator takes it, DefaultEvaluator judges it. The
built-in evaluators have records in `bench/evaluator_record.py`."""

_ORIGINS: dict[type[Evaluator], str] = {}
"""Evaluator of a plug-in → the source that names the plug-in."""

OFFER: Final = "EVALUATORS"
"""Name of the list in which a plug-in's module offers its evaluators."""
SLIP_CUTOFF: Final = 0.9
"""A method's name counts as misspelt if its similarity (0 to 1) to an overridable method's name is at least this
number. Such names differ in a letter or two."""
DIGEST_LENGTH: Final = 16
"""Hexadecimal digits of a source file's SHA-256 in a fingerprint."""
METHODS: Final = ("build_baseline", "check_correctness", "eval_performance")
"""The methods that the device session calls with `context`."""
NEEDED: Final = {"check_correctness": "Accepted(correctness) or Rejected(…)", "eval_performance": "a Performance"}
"""Method → its required return value."""


def find_evaluator(definition: Definition) -> type[Evaluator]:
    """Return the evaluator that judges a definition, with methods that can be called with `context`."""
    evaluator = _find(definition)
    # The name alone proves nothing: a user's module inside a checkout has the package's prefix, too.
    if evaluator.__module__.startswith(OWN_PACKAGE) and all(_takes_context(getattr(evaluator, it)) for it in METHODS):
        return evaluator
    kept = ("__module__", "__qualname__", "__doc__", "is_elementwise")
    names = {name: getattr(evaluator, name) for name in kept if hasattr(evaluator, name)}
    methods = {name: classmethod(partial(_call, name, getattr(evaluator, name))) for name in METHODS}
    return type(evaluator.__name__, (evaluator,), {**names, **methods})


def register(plug_ins: Iterable[PlugIn]) -> None:
    """Import plug-ins and add their evaluators: before the built-in evaluators if `is_first`, else after them.

    Raises:
        ConfigError: a plug-in cannot be imported, offers no evaluator, or offers something that is no evaluator.
    """
    first: list[type[Evaluator]] = []
    for plug_in in plug_ins:
        for evaluator in _import_evaluators(plug_in):
            _ORIGINS.setdefault(evaluator, plug_in.origin)
            if evaluator not in (*first, *_EVALUATORS):
                (first if plug_in.is_first else _EVALUATORS).append(evaluator)
    _EVALUATORS[:0] = first


def choose_evaluator(definition: Definition) -> EvaluatorChoice:
    """Return the evaluator that judges a definition, with the reason.

    Raises:
        ConfigError: an evaluator fails on the definition.
    """
    what = f"an evaluator's can_evaluate or why failed for definition {definition.name}"
    with blame.blaming(partial(_explain, what)):
        evaluator = _find(definition)
        why = str(evaluator.why(definition))
    module, name = evaluator.__module__, evaluator.__qualname__
    is_own = module.startswith(OWN_PACKAGE)
    fingerprint = make_key(name if is_own else f"{module}:{name}", evaluator.revision)
    file = None if is_own else inspect.getsourcefile(evaluator)
    if file is not None:
        fingerprint += f" {hashlib.sha256(Path(file).read_bytes()).hexdigest()[:DIGEST_LENGTH]}"
    return EvaluatorChoice(
        name=name,
        module=module,
        origin=BUILT_IN if is_own else _ORIGINS.get(evaluator, APPENDED),
        why=why,
        fingerprint=fingerprint,
        parameters=None if evaluator.extra_keys is None else read_parameters(evaluator.extra_keys),
    )


def list_known_parameters() -> KnownParameters:
    """Return the declarations of all registered plug-ins."""
    declared = [item.extra_keys for item in _EVALUATORS if not item.__module__.startswith(OWN_PACKAGE)]
    keys = frozenset(key for parameters in declared for key in parameters or ())
    return KnownParameters(keys, are_all=None not in declared)


def _find(definition: Definition) -> type[Evaluator]:
    return next((evaluator for evaluator in _EVALUATORS if evaluator.can_evaluate(definition)), DefaultEvaluator)


def _import_evaluators(plug_in: PlugIn) -> list[type[Evaluator]]:
    name, _, attribute = plug_in.reference.partition(":")
    before, reported = list(_EVALUATORS), f"{plug_in.origin}: {plug_in.reference}"
    if plug_in.folder is not None and plug_in.folder not in sys.path:
        sys.path.append(plug_in.folder)  # last, so that it hides no installed module
    with blame.blaming(partial(_explain, f"{reported} cannot be imported", missing=name)):
        module = importlib.import_module(name)
        offered = operator.attrgetter(attribute)(module) if attribute else getattr(module, OFFER, None)
    if offered is None:
        offered = [evaluator for evaluator in _EVALUATORS if evaluator not in before or evaluator.__module__ == name]
    evaluators = list(offered) if isinstance(offered, (list, tuple)) else [offered]
    if not evaluators:
        raise ConfigError(f"{reported} offers no evaluator; give the module a list {OFFER} = [...]")
    for evaluator in evaluators:
        reason = _why_unusable(evaluator)
        if reason is not None:
            raise ConfigError(f"{reported} offers {evaluator!r}, {reason}")
    return evaluators


def _why_unusable(evaluator: Any) -> str | None:
    if not isinstance(evaluator, type) or not issubclass(evaluator, Evaluator):
        return "which is no subclass of Evaluator"
    if inspect.isabstract(evaluator):
        return f"which lacks {', '.join(sorted(evaluator.__abstractmethods__))}"
    plain = [name for name in ("can_evaluate", *METHODS) if inspect.isfunction(inspect.getattr_static(evaluator, name))]
    if plain:
        return f"whose {', '.join(plain)} cannot be called on the class: write @classmethod above"
    own = vars(evaluator)
    known = {name for owner in (Evaluator, DefaultEvaluator) for name in vars(owner) if not name.startswith("_")}
    for name in (name for name, item in own.items() if isinstance(item, (classmethod, staticmethod))):
        meant = None if name.startswith("_") or name in known else nearest_name(name, known, cutoff=SLIP_CUTOFF)
        # A known name with an ending, such as `tolerances`, is no slip.
        if meant is not None and meant not in own and not name.startswith(meant):
            return f"whose {name} overrides nothing: is {meant} meant? (if not, begin the name with an underscore)"
    try:
        read_parameters(evaluator.extra_keys or {})
    except ValueError as error:
        return f"whose `extra_keys` cannot be used: {error}"
    takers = [getattr(one.can_evaluate, "__func__", None) for one in (evaluator, DefaultEvaluator)]
    takes_all = takers[0] is takers[1] and getattr(evaluator, "record", None) is DefaultEvaluator.record
    if takes_all and evaluator is not DefaultEvaluator:
        return "which has no can_evaluate of its own and would take every definition; if that is meant, return True"
    return None


def _explain(what: str, error: BaseException, *, missing: str = "") -> ConfigError:
    """Return an error that describes a plug-in's failure and names its line. If the module `missing` was not found, the
    error also says how to make it importable."""
    ours = (__file__, blame.__file__, importlib.__file__)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename not in ours and frame.line]
    where = f" ({frames[0].filename}, line {frames[0].lineno})" if frames else ""
    hint = ""
    if isinstance(error, ModuleNotFoundError) and error.name and f"{missing}.".startswith(f"{error.name}."):
        hint = "; install its package, or put the folder that it lies in on PYTHONPATH"
        if missing.endswith(".py"):
            hint = f"; a module is named without .py: {missing.removesuffix('.py')}"
    return ConfigError(f"{what}: {type(error).__name__}: {error}{where}{hint}")


def _takes_context(method: Callable[..., Any]) -> bool:
    parameters = inspect.signature(method).parameters
    return "context" in parameters or any(item.kind is item.VAR_KEYWORD for item in parameters.values())


def _call(name: str, method: Callable[..., Any], cls: type[Evaluator], *arguments: Any, context: JudgeContext) -> Any:
    """Call a plug-in evaluator's method with the arguments that it declares, and convert its result."""
    offered: dict[str, Any] = {"context": context, "log_path": os.devnull, "trace_set_root": context.blob_root}
    if name != "build_baseline":
        tensors = (value for trial in arguments[2] for value in trial if isinstance(value, torch.Tensor))
        offered["device"] = str(next(tensors, torch.empty(0)).device)
    wanted = {*inspect.signature(method).parameters, *(["context"] if _takes_context(method) else [])}
    returned = method(*arguments, **{key: value for key, value in offered.items() if key in wanted})
    if name == "build_baseline":
        return returned
    result, evaluation = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
    if isinstance(evaluation, Evaluation) and evaluation.status is not EvaluationStatus.PASSED:
        return Rejected(evaluation.status, evaluation.log, result)
    wanted_types = (Accepted, Rejected, Correctness) if name == "check_correctness" else Performance
    if evaluation is None and isinstance(result, wanted_types):
        model: Any = getattr(result, "correctness", result)
        for key in getattr(model, "model_extra", None) or ():
            hint = did_you_mean(key, type(model).model_fields)
            raise WorkloadFault(
                f"{cls.__qualname__}.{name} returned a {type(model).__name__} with unknown {key!r}{hint}"
            )
        return Accepted(result) if isinstance(result, Correctness) else result
    what = "nothing (None)" if returned is None else f"an object of type {type(returned).__name__}"
    raise WorkloadFault(f"{cls.__qualname__}.{name} returned {what}: {NEEDED[name]} is needed")
