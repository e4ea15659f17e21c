"""The Sampling evaluator. A sampler is random, so its draws are judged (`draws`), not compared."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch

from flashinfer_bench.bench.config import ResolvedEvalConfig
from flashinfer_bench.bench.evaluator_record import COUNT, SHARE, EvaluatorRecord, ExtraKey, find_weights, is_number
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.evaluator import JudgeContext, JudgedCall, Rejected, SolutionRunnable, Verdict
from flashinfer_bench.bench.evaluators.inputs.seeds import make_generator
from flashinfer_bench.bench.evaluators.sampling.draws import (
    SamplingLimits,
    count_calls,
    judge_draws,
    judge_flattened,
    judge_timed,
    make_flattened,
    place_calls,
)
from flashinfer_bench.bench.evaluators.sampling.rules import read_problem
from flashinfer_bench.data import Definition
from flashinfer_bench.data.dtypes import DTYPES
from flashinfer_bench.errors import DefinitionFault

CPU: Final = torch.device("cpu")
TIMED_DRAWS: Final = 96
"""Draws of each timed trial that are judged at least. A sampler that draws the likeliest token passes if that has more
than nine tenths of a row."""
PATIENCE_S: Final = 20.0
"""Seconds after which no more calls on flattened rows are made: a slow sampler, as under Triton's interpreter, has a
limit on its time, and being slow wins nothing."""


def draws_tokens(definition: Definition) -> bool:
    """Tell whether a definition gives one token for each row of probabilities or logits."""
    specs = list(definition.outputs.values())
    is_tokens = len(specs) == 1 and DTYPES[specs[0].dtype].kind == "int" and len(specs[0].shape or ()) == 1
    return is_tokens and find_weights(definition) is not None


class SamplingEvaluator(DefaultEvaluator):
    """Takes definitions of op type sampling that draw one token for each row of probabilities or logits."""

    record = EvaluatorRecord(
        revision=4,
        op_types=("sampling",),
        takes=draws_tokens,
        extra_keys={
            "sampling_validation_trials": COUNT,
            "sampling_tvd_threshold": SHARE,
            "sampling_false_alarm_rate": SHARE,
            "sampling_least_shift": ExtraKey(
                "a number from 0.001 to 0.5", lambda value: is_number(value) and 1e-3 <= value <= 0.5
            ),
        },
    )
    is_random = True
    needs_expected = False

    @classmethod
    def count_reads(cls, elements: int) -> int:
        """Return the calls in which TIMED_DRAWS draws of each trial are judged."""
        return math.ceil(TIMED_DRAWS / max(elements, 1))

    @classmethod
    def check_correctness(
        cls,
        definition: Definition,
        sol_runnable: SolutionRunnable,
        inputs: list[list[Any]],
        ref_outputs: list[list[torch.Tensor]],
        cfg: ResolvedEvalConfig,
        *,
        context: JudgeContext,
    ) -> Verdict:
        """Call the sampler many times on the inputs of the first trial and judge all draws together."""
        limits, expected = SamplingLimits.of(cfg), ref_outputs[0]
        read_problem(definition, inputs[0])  # what cannot be judged is no fault of the sampler
        generator = make_generator(context.seed, "places of draws", device=CPU)
        calls = list(call_within(math.inf, sol_runnable, inputs[0], limits.trials, expected))
        found = judge_draws(definition, calls, limits, generator)
        if isinstance(found, Rejected):
            own = JudgedCall(inputs[0], expected, expected)
            if isinstance(place_calls(definition, [own], generator), Rejected):
                raise DefinitionFault(
                    f"the reference of {definition.name} draws tokens that its own filters do not allow; "
                    "the rules of the Sampling evaluator do not fit this definition"
                )
            return found
        deadline = time.monotonic() + PATIENCE_S
        count = count_calls(expected[0].numel(), limits.least_shift) if cfg.power_rule else 0
        flattened = [
            call
            for flat, times in make_flattened(definition, inputs[0], count, generator)
            for call in call_within(deadline, sol_runnable, flat, times, expected)
        ]
        return judge_flattened(definition, flattened, limits, generator, found.correctness) if flattened else found

    @classmethod
    def judge_reads(
        cls, definition: Definition, calls: Sequence[JudgedCall], cfg: ResolvedEvalConfig, context: JudgeContext
    ) -> Verdict:
        """Judge timed calls, each on probabilities of its own: every token is allowed, and their places are uniform.

        The calls of `check_correctness` have equal inputs, and timed ones have not. So a solution that tells them apart
        could do without a part of each row in timed calls only.
        """
        generator = make_generator(context.seed, "places of timed draws", device=CPU)
        return judge_timed(definition, calls, SamplingLimits.of(cfg), generator)


def call_within(
    deadline: float, sol_runnable: SolutionRunnable, inputs: list[Any], count: int, expected: list[torch.Tensor]
) -> Iterator[JudgedCall]:
    """Yield calls on the same inputs, at most `count`, and none after a time of `time.monotonic`."""
    if count <= 0 or time.monotonic() > deadline:
        return
    for outputs in sol_runnable.call_repeatedly(inputs, count):
        yield JudgedCall(inputs, outputs, expected)
        if time.monotonic() > deadline:
            return
