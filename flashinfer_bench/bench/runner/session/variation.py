"""What the calls of a job are given: content of their own, from a secret that no worker can read."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import torch

from flashinfer_bench.bench.evaluators.inputs.contents import Contents, VariedInput, find_varied
from flashinfer_bench.bench.runner.session.job import JobContext
from flashinfer_bench.bench.runner.workers.kernel_task import Vary

FIRST_CALLS: Final = 8
"""The evaluator's own inputs are given to one of this many calls, at random: no call can be known for it."""


def vary_secretly(job: JobContext, seed: int | None = None) -> Vary:
    """Return what gives the calls of a job's trials their content.

    Args:
        job: the job.
        seed: decides the contents, where a run has to be repeatable; None draws a secret.
    """
    secret = secrets.randbits(62) if seed is None else seed
    definition, workload = job.block.definition, job.workload

    @cache
    def find(device: torch.device) -> list[VariedInput]:
        return find_varied(definition, workload, device)

    def vary(trial: int, inputs: Sequence[Any]) -> Contents:
        tensor = next((value for value in inputs if isinstance(value, torch.Tensor)), None)
        device = torch.device("cpu") if tensor is None else tensor.device
        base_number = secrets.randbelow(FIRST_CALLS)
        return Contents(inputs, find(device), secret + trial, base_number)

    return vary
