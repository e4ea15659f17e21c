"""Asks which evaluator judges which definition, under the configuration of a command."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from flashinfer_bench.bench.evaluators.plug_ins import EvaluatorChoice, list_plug_ins
from flashinfer_bench.bench.runner.lookup import look_up_evaluators
from flashinfer_bench.cli.settings import read_config
from flashinfer_bench.data import Definition


def choose_evaluators(args: argparse.Namespace, definitions: Sequence[Definition]) -> dict[str, EvaluatorChoice]:
    """Return the evaluator of each definition, by its name.

    Raises:
        ConfigError: an evaluator cannot be used, or `extra` has what it does not take.
    """
    config = read_config(args)
    found = look_up_evaluators(definitions, list_plug_ins(config.evaluator_modules))
    found.check(definitions, config)
    return dict(found.choices)
