"""A session that writes the deciding call of a verdict to files (`SessionConfig.tool`).

The folder gets `inputs`, `expected` and `got` as safetensors, `call.json` and `map.txt`. If no single call decided, the
inputs are those of the first trial, and `got` is empty.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from math import ceil
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file

from flashinfer_bench.bench.evaluators.compare.outputs import find_failing
from flashinfer_bench.bench.evaluators.compare.tolerance import Tolerance
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.evaluator import JudgedCall, Rejected
from flashinfer_bench.bench.runner.protocol import JobFault, RequestedJob
from flashinfer_bench.bench.runner.session.device_session import DeviceSession
from flashinfer_bench.bench.runner.session.job import JobContext, JobResult, RequestContext
from flashinfer_bench.data import Definition

STORED: Final = frozenset({"float64", "float32", "float16", "bfloat16", "bool", "uint8", "int8", "int32", "int64"})
"""Tensors of other dtypes are stored as bytes."""
MAP_LINES, MAP_SIGNS = 24, 64
"""Maximum lines of a map, and maximum characters of a line. Each character stands for a block of elements."""
LEGEND: Final = ". right, - few, + many, # all wrong"
SIGNS: Final = ((0.0, "."), (0.1, "-"), (0.9, "+"), (1.0, "#"))
"""Largest share of failing elements in a block → the sign of the block."""


class Session(DeviceSession):
    """Judges a job, and writes the deciding call."""

    def run_job(self, request: RequestContext, requested: RequestedJob) -> JobResult | JobFault:
        """Judge a job, and write a call if there are inputs."""
        job = request.open_job(requested)
        result = super().run_job(request, requested)
        if isinstance(result, JobResult) and job.baseline is not None:
            call = JudgedCall(job.baseline.inputs[0], [], job.baseline.outputs[0])
            evidence = None
            if isinstance(result.outcome, Rejected):
                call = result.outcome.call or call
                evidence = (result.outcome.integrity or {}).get("evidence")
            self._write(job, call, evidence or {})
        return result

    def _write(self, job: JobContext, call: JudgedCall, evidence: Any) -> None:
        """Write a call, and the metadata for the script."""
        assert self._session_config.tool is not None
        folder = Path(self._session_config.tool[1])
        definition = job.request.definition
        judge = job.request.evaluator
        compares = judge.judges_calls_alone and getattr(judge, "compares_elements", lambda _: False)(definition)
        tolerance = judge.tolerance(job.config) if issubclass(judge, DefaultEvaluator) else Tolerance(0.0, 0.0)
        style = self._styles.get(job.solution.digest)
        metadata = {
            "style": style.style if style is not None else "value",
            "compares": compares,
            "tolerance": asdict(tolerance),
            "evidence": evidence,
            "device": self._session_config.device,
            **save_call(folder, definition, call),
        }
        (folder / "call.json").write_text(json.dumps(metadata, indent=2, default=str) + "\n", encoding="utf-8")
        pairs = zip(definition.outputs, call.expected, call.got, strict=False) if compares else ()
        maps = [draw_map(name, left, right, tolerance) for name, left, right in pairs if left.shape == right.shape]
        (folder / "map.txt").write_text("\n".join(maps), encoding="utf-8")


def save_call(folder: Path, definition: Definition, call: JudgedCall) -> dict[str, Any]:
    """Write the tensors of a call; return its other values, and the dtypes."""
    scalars: dict[str, Any] = {}
    dtypes: dict[str, dict[str, str]] = {}
    for part, specs in (("inputs", definition.inputs), ("expected", definition.outputs), ("got", definition.outputs)):
        tensors: dict[str, torch.Tensor] = {}
        dtypes[part] = {}
        for name, value in zip(specs, getattr(call, part), strict=False):
            if not isinstance(value, torch.Tensor):
                scalars[name] = value
                continue
            dtype = dtypes[part][name] = str(value.dtype).removeprefix("torch.")
            plain = value.detach().cpu().clone().contiguous()
            tensors[name] = plain.view(torch.uint8) if dtype not in STORED and plain.ndim else plain
        save_file(tensors, str(folder / f"{part}.safetensors"))
    return {"scalars": scalars, "dtypes": dtypes}


def draw_map(name: str, expected: torch.Tensor, got: torch.Tensor, tolerance: Tolerance) -> str:
    """Return a small text map of the failing rows and columns of an output, below a headline and a legend."""
    failing = find_failing(expected, got, tolerance)
    count = int(failing.sum())
    head = f"{name} {list(expected.shape)}: {count} of {failing.numel()} elements fail"
    if not count:
        return f"{head}\n"
    rows = failing.reshape(-1, failing.shape[-1] if failing.ndim else 1)
    height, width = rows.shape
    hit = int(rows.any(dim=1).sum()), int(rows.any(dim=0).sum())
    # A single long row is wrapped over several lines.
    signs = min(width, MAP_SIGNS * (MAP_LINES if height == 1 else 1))
    shares = torch.nn.functional.adaptive_avg_pool2d(rows[None].float(), (min(height, MAP_LINES), signs))[0]
    parts = [part for row in shares for part in row.split(MAP_SIGNS)]
    legend = f"{LEGEND}; a sign stands for {ceil(height / MAP_LINES)} x {ceil(width / signs)} elements"
    lines = [f"{head}, in {hit[0]} of {height} rows and {hit[1]} of {width} columns", legend]
    starts = [at * height // len(parts) if height > 1 else at * MAP_SIGNS * width // signs for at in range(len(parts))]
    for start, part in zip(starts, parts, strict=True):
        drawn = (next(sign for most, sign in SIGNS if share <= most) for share in part.tolist())
        lines.append(f"{start:>8} {''.join(drawn)}")
    return "\n".join([*lines, ""])
