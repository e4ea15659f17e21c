"""Decides how a function with named arguments is called: which arguments are passed by position, and which by keyword.

The judge and the worker call a reference; `validate` only reads its source. All three use this module.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from inspect import Parameter, Signature
from itertools import takewhile
from typing import Any, Final, NamedTuple

POSITIONAL: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


class NamedCall(NamedTuple):
    """The names of arguments: those passed by position, and those passed by keyword."""

    positional: tuple[str, ...]
    """In the order of the call."""
    keywords: tuple[str, ...]

    def bind(self, function: Callable[..., Any], values: Mapping[str, Any]) -> Callable[[], Any]:
        """Return a call of the function; `values` has the arguments by name."""
        by_keyword = {name: values[name] for name in self.keywords}
        return partial(function, *(values[name] for name in self.positional), **by_keyword)


def split_names(signature: Signature | None, names: Iterable[str]) -> NamedCall:
    """Return how a function takes arguments that have these names.

    A parameter gets the argument of the same name, by position if possible, since keywords are slower. If a name fits
    no parameter, all arguments are passed by position, in the order of `names`. Only keyword-only parameters then get a
    keyword.

    Args:
        signature: the function's signature; None if it is not known.
        names: the names of all arguments, in the order in which they are passed by position.
    """
    names = tuple(names)
    parameters = list(signature.parameters.values()) if signature is not None else []
    kinds = {parameter.name: parameter.kind for parameter in parameters}
    fits = all(kinds.get(name) not in (None, Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD) for name in names)
    takes_any = Parameter.VAR_KEYWORD in kinds.values() and Parameter.VAR_POSITIONAL not in kinds.values()
    if not fits and not takes_any:
        by_keyword = tuple(name for name in names if kinds.get(name) is Parameter.KEYWORD_ONLY)
        return NamedCall(tuple(name for name in names if name not in by_keyword), by_keyword)
    first = takewhile(lambda parameter: parameter.kind in POSITIONAL and parameter.name in names, parameters)
    positional = tuple(parameter.name for parameter in first)
    return NamedCall(positional, tuple(name for name in names if name not in positional))


def find_call(function: Callable[..., Any], names: Iterable[str]) -> NamedCall:
    """Return how a function takes arguments that have these names, from its signature."""
    call = split_names(read_signature(function), names)
    outer = read_signature(function, follow_wrapped=False)
    kinds = {parameter.kind for parameter in outer.parameters.values()} if outer is not None else None
    if kinds and kinds.isdisjoint((*POSITIONAL, Parameter.VAR_POSITIONAL)):
        return NamedCall((), (*call.positional, *call.keywords))  # the decorator takes keywords only
    return call


def read_signature(function: Any, *, follow_wrapped: bool = True) -> Signature | None:
    """Return a callable's parameters; None if Python cannot read them.

    A torch module, compiled or not, has the parameters of its `forward`. A scripted function or an operator has the
    parameters of its schema.
    """
    module = getattr(function, "_orig_mod", function)
    target = module.forward if hasattr(module, "_forward_hooks") else module
    schema: Any = getattr(target, "schema", getattr(target, "_schema", None))
    try:
        if hasattr(schema, "arguments"):
            return Signature([_read_parameter(one) for one in schema.arguments if one.name != "self"])
        return inspect.signature(target, follow_wrapped=follow_wrapped)
    except (AttributeError, TypeError, ValueError):
        return None


def _read_parameter(argument: Any) -> Parameter:
    default = argument.default_value if argument.has_default_value() else Parameter.empty
    return Parameter(argument.name, Parameter.POSITIONAL_OR_KEYWORD, default=default)
