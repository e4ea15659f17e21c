"""The list of evaluators, in the order in which they are asked. The judge's process adds the evaluators of plug-ins.

A plug-in's module offers its evaluators in a list `EVALUATORS`, or appends them to `_EVALUATORS` while it is imported.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import operator
import sys
import traceback
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.bench.evaluator_record import find_records, make_mark
from flashinfer_bench.bench.evaluators.blame import Blame
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.evaluator import Evaluator
from flashinfer_bench.bench.evaluators.parameters import KnownParameters, read_parameters
from flashinfer_bench.bench.evaluators.plug_ins import APPENDED, BUILT_IN, OWN_PACKAGE, EvaluatorChoice, PlugIn
from flashinfer_bench.bench.evaluators.without_context import METHODS, accept_context
from flashinfer_bench.data import Definition
from flashinfer_bench.data.names import nearest_name
from flashinfer_bench.errors import ConfigError

_EVALUATORS: list[type[Evaluator]] = [
    getattr(importlib.import_module(f"{__package__}.{record.module}"), record.name)
    for record in find_records()
    if record.op_types
]
"""The first that takes a definition judges it; if none does, DefaultEvaluator. The built-in ones are those of the
records that the files of this package declare (`bench/evaluator_record.py`)."""

_ORIGINS: dict[type[Evaluator], str] = {}
"""Evaluator of a plug-in → where the plug-in was named."""

OFFER: Final = "EVALUATORS"
"""Name of a module's list of the evaluators that it offers."""
SLIP_CUTOFF: Final = 0.9
"""A method at this similarity to one that may be overridden is a slip: a letter or two of such names differ."""
DIGEST_LENGTH: Final = 16
"""Hexadecimal digits of a source file's sha256 that a fingerprint has."""


def find_evaluator(definition: Definition) -> type[Evaluator]:
    """Give the evaluator that judges a definition, such that each of its methods can be called with `context`."""
    return accept_context(_find(definition))


def register(plug_ins: Iterable[PlugIn]) -> None:
    """Import plug-ins and add their evaluators: before the built-in ones where `is_first`, else after them.

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
    """Say which evaluator judges a definition, and why.

    Raises:
        ConfigError: an evaluator fails on the definition.
    """
    what = f"the registered evaluators cannot be asked about definition {definition.name}"
    with Blame(partial(_explain, what)):
        evaluator = _find(definition)
        why = str(evaluator.why(definition))
    module = evaluator.__module__
    is_own = module.startswith(OWN_PACKAGE)
    return EvaluatorChoice(
        name=evaluator.__qualname__,
        module=module,
        origin=BUILT_IN if is_own else _ORIGINS.get(evaluator, APPENDED),
        why=why,
        fingerprint=_fingerprint(evaluator, is_own=is_own),
        parameters=None if evaluator.extra_keys is None else read_parameters(evaluator.extra_keys),
    )


def list_known_parameters() -> KnownParameters:
    """Return what the registered plug-ins declare together."""
    declared = [item.extra_keys for item in _EVALUATORS if not item.__module__.startswith(OWN_PACKAGE)]
    keys = frozenset(key for parameters in declared for key in parameters or ())
    return KnownParameters(keys, are_all=None not in declared)


def _find(definition: Definition) -> type[Evaluator]:
    return next((evaluator for evaluator in _EVALUATORS if evaluator.can_evaluate(definition)), DefaultEvaluator)


def _import_evaluators(plug_in: PlugIn) -> list[type[Evaluator]]:
    name, _, attribute = plug_in.reference.partition(":")
    before = list(_EVALUATORS)
    if plug_in.folder is not None and plug_in.folder not in sys.path:
        sys.path.append(plug_in.folder)  # last, so that nothing in it hides an installed module
    what = f"{plug_in.origin}: {plug_in.reference} cannot be imported"
    with Blame(partial(_explain, what, missing=name)):
        module = importlib.import_module(name)
        offered = operator.attrgetter(attribute)(module) if attribute else getattr(module, OFFER, None)
    if offered is None:
        offered = [evaluator for evaluator in _EVALUATORS if evaluator not in before or evaluator.__module__ == name]
    evaluators = list(offered) if isinstance(offered, (list, tuple)) else [offered]
    if not evaluators:
        raise ConfigError(
            f"{plug_in.origin}: {plug_in.reference} offers no evaluator; give the module a list {OFFER} = [...]"
        )
    for evaluator in evaluators:
        reason = _why_unusable(evaluator)
        if reason is not None:
            raise ConfigError(f"{plug_in.origin}: {plug_in.reference} offers {evaluator!r}, {reason}")
    return evaluators


def _find_slips(evaluator: type[Evaluator]) -> Iterator[tuple[str, str]]:
    """Yield each method of a plug-in whose name is nearly that of one to override, which it leaves as it was."""
    known = {name for owner in (Evaluator, DefaultEvaluator) for name in vars(owner) if not name.startswith("_")}
    for name, item in vars(evaluator).items():
        if name.startswith("_") or name in known or not isinstance(item, (classmethod, staticmethod)):
            continue
        meant = nearest_name(name, known, cutoff=SLIP_CUTOFF)
        # A name that goes on behind a known one, such as `tolerances`, is no slip.
        if meant is not None and meant not in vars(evaluator) and not name.startswith(meant):
            yield name, meant


def _why_unusable(evaluator: Any) -> str | None:
    if not isinstance(evaluator, type) or not issubclass(evaluator, Evaluator):
        return "which is no subclass of Evaluator"
    if inspect.isabstract(evaluator):
        return f"which lacks {', '.join(sorted(evaluator.__abstractmethods__))}"
    plain = [name for name in ("can_evaluate", *METHODS) if inspect.isfunction(inspect.getattr_static(evaluator, name))]
    if plain:
        return f"whose {', '.join(plain)} cannot be called on the class: write @classmethod above"
    for name, meant in _find_slips(evaluator):
        return f"whose {name} overrides nothing: is {meant} meant? (if not, begin the name with an underscore)"
    try:
        read_parameters(evaluator.extra_keys or {})
    except ValueError as error:
        return f"whose `extra_keys` cannot be used: {error}"
    inherited = inspect.getattr_static(evaluator, "can_evaluate")
    default = inspect.getattr_static(DefaultEvaluator, "can_evaluate")
    is_inherited = inherited is default and evaluator is not DefaultEvaluator
    if is_inherited and getattr(evaluator, "record", None) is DefaultEvaluator.record:
        return "which has no can_evaluate of its own and would take every definition; if that is meant, return True"
    return None


def _fingerprint(evaluator: type[Evaluator], *, is_own: bool) -> str:
    if is_own:
        return make_mark(evaluator.__qualname__, evaluator.revision)
    name = f"{evaluator.__module__}:{evaluator.__qualname__}"
    return f"{make_mark(name, evaluator.revision)} {_digest_source(evaluator)}".strip()


def _digest_source(evaluator: type[Evaluator]) -> str:
    """Return the beginning of the sha256 of the evaluator's source file; empty where there is no file."""
    path = inspect.getsourcefile(evaluator)
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:DIGEST_LENGTH] if path is not None else ""


def _explain(what: str, error: BaseException, *, missing: str = "") -> ConfigError:
    """Say where a plug-in failed and in which line; where the module `missing` is not found, how to make it found."""
    ours = (__file__, importlib.__file__)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename not in ours and frame.line]
    where = f" ({frames[0].filename}, line {frames[0].lineno})" if frames else ""
    hint = ""
    if isinstance(error, ModuleNotFoundError) and error.name and f"{missing}.".startswith(f"{error.name}."):
        hint = "; install its package, or put the folder that it lies in on PYTHONPATH"
    return ConfigError(f"{what}: {type(error).__name__}: {error}{where}{hint}")
