"""Finds the evaluator of each definition in a separate process, since the host imports neither torch nor plug-ins.

The lookup comes before the run, so that a broken plug-in is found first. The process (`base/isolated.py`) imports this
module and calls `answer`:

    question  {"plug_ins": [PlugIn], "definitions": [Definition]}
    answer    {"found": EvaluatorLookup} or {"refused": reason}
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from pydantic import TypeAdapter

from flashinfer_bench.base.exits import describe_exit
from flashinfer_bench.base.isolated import IsolatedFailure, run_isolated
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.evaluators.plug_ins import (
    EvaluatorChoice,
    KnownParameters,
    PlugIn,
    find_wrong_parameters,
)
from flashinfer_bench.bench.runner.environments import server_environment
from flashinfer_bench.bench.runner.launcher import launcher_for
from flashinfer_bench.data import Definition
from flashinfer_bench.errors import ConfigError

LOOKUP_LIMIT_S: Final = 180.0
"""Seconds for importing torch and the plug-ins, and for the lookup. After this time the run is refused."""
NO_DEVICE: Final = {"CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "1"}
"""Variables of the process. A plug-in must not use a device during its import."""


@dataclass(frozen=True)
class EvaluatorLookup:
    """The answer of the process."""

    choices: Mapping[str, EvaluatorChoice] = field(default_factory=dict)
    """Definition → its evaluator."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Definition → the error that an evaluator raised when it was asked whether it judges the definition."""
    known: KnownParameters = field(default_factory=KnownParameters)

    def has_all(self, definitions: Iterable[Definition]) -> bool:
        """Return whether all definitions were looked up."""
        return all(item.name in self.choices or item.name in self.failed for item in definitions)

    def check(self, definitions: Sequence[Definition], config: BenchmarkConfig) -> None:
        """Check that each definition has an evaluator, and that the evaluator accepts the configuration's `extra`.

        Raises:
            ConfigError: an evaluator fails on a definition, or keys or values of `extra` are wrong. The message lists
                all wrong keys and values.
        """
        reasons = [self.failed[item.name] for item in definitions if item.name in self.failed]
        if reasons:
            raise ConfigError(reasons[0])
        wrong: list[str] = []
        for item in definitions:
            choice = self.choices[item.name]
            if choice.parameters is not None:
                settings = config.resolve_eval_config(item)
                wrong += find_wrong_parameters(settings, choice.name, choice.parameters, self.known)
        if wrong:
            raise ConfigError("\n".join(dict.fromkeys(wrong)))


LOOKUPS: Final = TypeAdapter(EvaluatorLookup)


def look_up_evaluators(
    definitions: Iterable[Definition],
    plug_ins: Sequence[PlugIn],
    *,
    kind: str = "cpu",
    keeps_server: bool = False,
    limit_s: float = LOOKUP_LIMIT_S,
) -> EvaluatorLookup:
    """Find the evaluator of each definition.

    Args:
        plug_ins: the evaluators besides the built-in evaluators.
        kind: the kind of device of the run.
        keeps_server: start the fork server of this thread's later sessions, so that it imports torch during the lookup.

    Raises:
        ConfigError: a plug-in cannot be imported, or offers no evaluator.
    """
    question = {
        "plug_ins": [asdict(plug_in) for plug_in in plug_ins],
        "definitions": [definition.model_dump(mode="json") for definition in definitions],
    }
    names = ", ".join(plug_in.reference for plug_in in plug_ins) or "none"
    environment = server_environment(os.environ, kind)
    if keeps_server:
        launcher_for(environment)
    try:
        found = run_isolated(__name__, question, limit_s=limit_s, environment={**environment, **NO_DEVICE})
    except IsolatedFailure as failure:
        if failure.code is None:
            raise ConfigError(f"importing the evaluators ({names}) takes more than {limit_s:g} s") from None
        ended = f"the process that imports the evaluators ({names}) {describe_exit(failure.code)}"
        raise ConfigError(f"{ended}; it said last:\n{failure.log}") from None
    if "refused" in found:
        raise ConfigError(found["refused"])
    return LOOKUPS.validate_python(found["found"])


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """Import the evaluators, and return the evaluator of each definition. Runs in a separate process."""
    from flashinfer_bench.bench.evaluators import registry

    choices, failed = {}, {}
    try:
        registry.register(PlugIn(**plug_in) for plug_in in question["plug_ins"])
    except ConfigError as error:
        return {"refused": str(error)}
    for reported in question["definitions"]:
        definition = Definition.model_validate(reported)
        try:
            choices[definition.name] = registry.choose_evaluator(definition)
        except ConfigError as error:
            failed[definition.name] = str(error)
    found = EvaluatorLookup(choices, failed, registry.list_known_parameters())
    return {"found": LOOKUPS.dump_python(found, mode="json")}
