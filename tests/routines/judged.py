"""A routine judged in this process: its reference as a backend, and backends that are wrong in one way."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from flashinfer_bench.bench.config import ResolvedEvalConfig
from flashinfer_bench.bench.evaluators.evaluator import Verdict
from flashinfer_bench.cli.perf.flags import parse_case
from flashinfer_bench.routines.case.materials import make_material, write_material
from flashinfer_bench.routines.case.spec import Case
from flashinfer_bench.routines.table import find_routine
from tests.bench.evaluators.judging import Judging
from tests.routines.small import SMALL


@lru_cache(maxsize=64)
def make_case(routine: str, flags: str | None = None) -> Case:
    """Make a case of a routine, at a small size where no flags are given."""
    table_entry, args = parse_case(["--routine", routine, *shlex.split(SMALL[routine] if flags is None else flags)])
    return table_entry.make_case(args)


class JudgedRoutine:
    """The engine's evaluator on one routine, with plain functions as solutions."""

    def __init__(self, routine: str, root: Path, flags: str | None = None) -> None:
        self.case = make_case(routine, flags)
        material = make_material(find_routine(routine), self.case, ["torch"])
        write_material(root, material)
        check = self.case.check
        config = ResolvedEvalConfig(
            rtol=check.rtol, atol=check.atol, required_matched_ratio=check.ratio, num_trials=1, extra=dict(check.extra)
        )
        self.job = Judging(material.definition, material.workload, root=root, **config.values())
        self.baseline = self.job.baseline()
        module: dict[str, Any] = {}
        exec(material.solutions["torch"].sources[0].content, module)
        self.reference: Callable[..., Any] = module["run"]

    def honest(self, *inputs: Any) -> list[torch.Tensor]:
        returned = self.reference(*inputs)
        return list(returned) if isinstance(returned, (list, tuple)) else [returned]

    def check(self, function: Callable[..., Any]) -> Verdict:
        return self.job.check(function, self.baseline)


def zero(judged: JudgedRoutine) -> Callable[..., Any]:
    """Write zeros."""
    return lambda *inputs: [torch.zeros_like(output) for output in judged.honest(*inputs)]


def skip_row(judged: JudgedRoutine) -> Callable[..., Any]:
    """Leave the last row of each output at zero."""

    def run(*inputs: Any) -> list[torch.Tensor]:
        outputs = [output.clone() for output in judged.honest(*inputs)]
        for output in outputs:
            as_bytes(output)[-1:] = 0
        return outputs

    return run


def wrong_scale(judged: JudgedRoutine) -> Callable[..., Any]:
    """Scale the first float output, or what it is computed from, by 1.25; chances that are sampled are squared."""

    def run(*inputs: Any) -> list[torch.Tensor]:
        outputs = judged.honest(*inputs)
        for index, output in enumerate(outputs):
            if is_plain_float(output):
                outputs[index] = (output.float() * 1.25).to(output.dtype)
                return outputs
        return judged.honest(*distort(inputs))

    return run


def nan(judged: JudgedRoutine) -> Callable[..., Any]:
    """Write NaN into the first element of each plain float output."""

    def run(*inputs: Any) -> list[torch.Tensor]:
        outputs = [output.clone() for output in judged.honest(*inputs)]
        for output in outputs:
            if is_plain_float(output):
                output.view(-1)[0] = float("nan")
        return outputs

    return run


def distort(inputs: Sequence[Any]) -> list[Any]:
    """Change the first float tensor so that its ranks and its shares change."""
    changed = list(inputs)
    for index, value in enumerate(inputs):
        if isinstance(value, torch.Tensor) and value.dtype in (torch.float32, torch.bfloat16, torch.float16):
            is_chances = bool((value >= 0).all())
            other = value.float().pow(3) if is_chances else value.float() * -1.25
            changed[index] = (other / other.sum(dim=-1, keepdim=True) if is_chances else other).to(value.dtype)
            break
    return changed


def is_plain_float(output: torch.Tensor) -> bool:
    return output.dtype.is_floating_point and output.dtype != torch.float4_e2m1fn_x2


def as_bytes(output: torch.Tensor) -> torch.Tensor:
    return output.view(torch.uint8) if output.dtype == torch.float4_e2m1fn_x2 else output


WRONG = {"zero": zero, "skip_row": skip_row, "wrong_scale": wrong_scale}
"""Fault to what makes a backend with it."""
