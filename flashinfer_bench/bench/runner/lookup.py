"""Asks a process of its own which evaluator judges which definition: the host imports neither torch nor plug-ins.

So a plug-in that cannot be used is found before anything runs. The process is forked from the one that sessions are
forked from (`launcher.py`), which has torch already. So a run with plug-ins waits for no further import of torch. Its
side is `lookup_main.py`; each sends one frame:

    question  {"plug_ins": [PlugIn], "definitions": [Definition]}
    answer    {"choices": {definition: EvaluatorChoice}, "failed": {definition: reason}, "known": KnownParameters}
              or  {"refused": reason}
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from flashinfer_bench.base.exits import describe_exit
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.evaluators.parameters import KnownParameters, Parameter, find_wrong_parameters
from flashinfer_bench.bench.evaluators.plug_ins import EvaluatorChoice, PlugIn
from flashinfer_bench.bench.runner.environments import starter_environment
from flashinfer_bench.bench.runner.launcher import Launcher, launcher_for, passing_launcher, read_tail
from flashinfer_bench.data import Definition
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.worker.wire import FrameReader, WireClosed, WireError, send_frame

LOOKUP_LIMIT_S: Final = 180.0
"""Seconds that importing torch and the plug-ins, and choosing, may take; then the run is refused."""
CHILD: Final = "flashinfer_bench.bench.runner.lookup_main"
ANSWER_BYTES: Final = 1 << 28
NO_DEVICE: Final = {"CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "1"}
"""Variables of the process: a plug-in must not touch a device while it is imported."""


@dataclass(frozen=True)
class EvaluatorLookup:
    """What the process told."""

    choices: Mapping[str, EvaluatorChoice] = field(default_factory=dict)
    """Definition → the evaluator that judges it."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Definition → why its evaluator is not known: one of the evaluators fails on it."""
    known: KnownParameters = field(default_factory=KnownParameters)

    def has_all(self, definitions: Iterable[Definition]) -> bool:
        """Tell whether all of them were asked about."""
        return all(item.name in self.choices or item.name in self.failed for item in definitions)

    def check(self, definitions: Sequence[Definition], config: BenchmarkConfig) -> None:
        """Check that each definition has an evaluator, which takes what the configuration gives in `extra`.

        Raises:
            ConfigError: an evaluator fails on a definition; or all keys and values of `extra` that are wrong.
        """
        reasons = [self.failed[item.name] for item in definitions if item.name in self.failed]
        if reasons:
            raise ConfigError(reasons[0])
        wrong = dict.fromkeys(line for item in definitions for line in self._find_wrong(item, config))
        if wrong:
            raise ConfigError("\n".join(wrong))

    def _find_wrong(self, definition: Definition, config: BenchmarkConfig) -> list[str]:
        choice = self.choices[definition.name]
        if choice.parameters is None:
            return []
        settings = config.resolve_eval_config(definition)
        return find_wrong_parameters(settings, choice.name, choice.parameters, self.known)


def look_up_evaluators(
    definitions: Iterable[Definition],
    plug_ins: Sequence[PlugIn],
    *,
    kind: str = "cpu",
    keeps_starter: bool = False,
    limit_s: float = LOOKUP_LIMIT_S,
) -> EvaluatorLookup:
    """Find out which evaluator judges each definition.

    Args:
        definitions: which.
        plug_ins: the evaluators beside the built-in ones.
        kind: the devices of the run, whose sessions are forked from the same process.
        keeps_starter: this thread is about to start sessions, so the process that forks them stays.
        limit_s: how long it may take.

    Raises:
        ConfigError: a plug-in cannot be imported, or offers no evaluator.
    """
    question = {
        "plug_ins": [asdict(plug_in) for plug_in in plug_ins],
        "definitions": [definition.model_dump(mode="json") for definition in definitions],
    }
    names = ", ".join(plug_in.reference for plug_in in plug_ins) or "none"
    environment = starter_environment(os.environ, kind)
    with nullcontext(launcher_for(environment)) if keeps_starter else passing_launcher(environment) as starter:
        answer = _ask(starter, {**environment, **NO_DEVICE}, question, names, limit_s)
    if "refused" in answer:
        raise ConfigError(answer["refused"])
    choices = {name: _read_choice(choice) for name, choice in answer["choices"].items()}
    known = KnownParameters(frozenset(answer["known"]["keys"]), answer["known"]["are_all"])
    return EvaluatorLookup(choices, answer["failed"], known)


def _ask(
    starter: Launcher, environment: Mapping[str, str], question: dict[str, Any], names: str, limit_s: float
) -> dict[str, Any]:
    ours, theirs = socket.socketpair()
    with ours, tempfile.TemporaryFile() as printed:
        with theirs:
            process = starter.start(environment, theirs.fileno(), theirs.fileno(), printed.fileno(), serves=CHILD)
        try:
            ours.settimeout(limit_s)
            send_frame(ours, question)
            return FrameReader(ours, max_bytes=ANSWER_BYTES, takes_fds=False).read()
        except TimeoutError:
            raise ConfigError(f"importing the evaluators ({names}) takes more than {limit_s:g} s") from None
        except (WireClosed, WireError, OSError):
            process.wait(1.0)
            last = read_tail(printed) or starter.last_words()
            ended = f"the process that imports the evaluators ({names}) {describe_exit(process.code)}"
            raise ConfigError(f"{ended}; it said last:\n{last}") from None
        finally:
            process.kill()
            process.close()


def _read_choice(told: Mapping[str, Any]) -> EvaluatorChoice:
    declared = told["parameters"]
    parameters = None if declared is None else {key: Parameter(**item) for key, item in declared.items()}
    return EvaluatorChoice(**{**told, "parameters": parameters})
