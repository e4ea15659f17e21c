"""A session that keeps one call: `python -m flashinfer_bench.examine.repro.session FD FOLDER`.

It judges as any session does, with the solution in a worker. After the verdict it writes the call that decided to the
folder: `inputs`, `expected` and `got` as safetensors, `call.json` and `map.txt`.
"""

from __future__ import annotations

import json
import math
import signal
import sys
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file

from flashinfer_bench.bench.evaluators.compare.rule import Tolerance
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.evaluator import Evaluator, Rejected
from flashinfer_bench.bench.evaluators.integrity.norms import row_length
from flashinfer_bench.bench.runner.protocol import BlockJob, BlockOrder, JobFault
from flashinfer_bench.bench.runner.session.device_session import DeviceSession
from flashinfer_bench.bench.runner.session.job import BlockContext, JobResult
from flashinfer_bench.bench.runner.session.main import serve
from flashinfer_bench.bench.runner.session.opening import open_session
from flashinfer_bench.data import Definition
from flashinfer_bench.examine.repro.capture import KeptCall, keeping
from flashinfer_bench.examine.repro.map import draw_map
from flashinfer_bench.sandbox.process_tree import die_with_parent, hide_memory

KEPT_DTYPES: Final = frozenset({"float64", "float32", "float16", "bfloat16", "bool", "uint8", "int8", "int32", "int64"})
"""Tensors of other dtypes are stored as bytes."""


class KeepingSession(DeviceSession):
    """A session that writes the call that decides to a folder."""

    folder = Path()

    def open_block(self, block: BlockOrder) -> BlockContext:
        """Open it with an evaluator that keeps calls."""
        opened = super().open_block(block)
        self._kept = KeptCall()
        opened.evaluator = keeping(opened.evaluator, self._kept)
        return opened

    def run_job(self, block: BlockContext, order: BlockJob) -> JobResult | JobFault:
        """Judge the job, and write the call down."""
        result = super().run_job(block, order)
        if isinstance(result, JobResult):
            self._write(block, order, result)
        return result

    def _write(self, block: BlockContext, order: BlockJob, result: JobResult) -> None:
        kept, definition = self._kept, block.definition
        job = block.open_job(order)
        style = self._styles.get(job.solution.digest)
        facts: dict[str, Any] = {
            "inputs": list(definition.inputs),
            "outputs": list(definition.outputs),
            "style": style.style if style is not None else "value",
            "evaluator": block.evaluator.__name__,
            "device": self._hello.device,
            "evidence": _read_evidence(definition, kept, result),
            "config": block.open_job(order).config.to_order(),
            "blob_root": order.blob_root,
            "was_timed": kept.was_timed,
            "dtypes": {},
            "scalars": {},
        }
        judge: Any = block.evaluator
        facts["compares"] = compares_single_calls(judge, definition)
        tolerance = judge.tolerance(job.config) if issubclass(judge, DefaultEvaluator) else Tolerance(0.0, 0.0)
        facts["tolerance"] = {
            "atol": tolerance.atol,
            "rtol": tolerance.rtol,
            "required_matched_ratio": tolerance.required_matched_ratio,
            "is_sum": tolerance.is_sum,
            "max_error_cap": tolerance.max_error_cap,
            "max_absolute_error": tolerance.max_absolute_error if math.isfinite(tolerance.max_absolute_error) else None,
            "ignores_shared_zeros": tolerance.ignores_shared_zeros,
        }
        if kept.inputs is not None:
            named = dict(zip(definition.inputs, kept.inputs, strict=False))
            facts["scalars"] = {name: one for name, one in named.items() if not isinstance(one, torch.Tensor)}
            self._save("inputs", named, facts)
        outputs = list(definition.outputs)
        for name, values in (("expected", kept.expected), ("got", kept.got)):
            if values is not None:
                self._save(name, dict(zip(outputs, values, strict=False)), facts)
        (self.folder / "call.json").write_text(json.dumps(facts, indent=2, default=str) + "\n", encoding="utf-8")
        if facts["compares"] and kept.expected is not None and kept.got is not None:
            maps = [
                draw_map(name, left, right, tolerance)
                for name, left, right in zip(outputs, kept.expected, kept.got, strict=False)
                if left.shape == right.shape and left.dtype == right.dtype
            ]
            (self.folder / "map.txt").write_text("\n".join(maps), encoding="utf-8")

    def _save(self, name: str, values: dict[str, Any], facts: dict[str, Any]) -> None:
        tensors: dict[str, torch.Tensor] = {}
        for key, value in values.items():
            if not isinstance(value, torch.Tensor):
                continue
            dtype = str(value.dtype).removeprefix("torch.")
            plain = value.contiguous()
            if dtype not in KEPT_DTYPES and plain.ndim:
                facts["dtypes"].setdefault(name, {})[key] = dtype
                plain = plain.view(torch.uint8)
            tensors[key] = plain
        save_file(tensors, str(self.folder / f"{name}.safetensors"))


def compares_single_calls(evaluator: type[Evaluator], definition: Definition) -> bool:
    """Tell whether one call is judged by comparing its elements, so that a script can do the same."""
    if not issubclass(evaluator, DefaultEvaluator) or not evaluator.compares_elements(definition):
        return False
    judge: Any = evaluator.__base__  # `keeping` has made a subclass of it
    steps = ("check_correctness", "judge_call")
    return all(getattr(judge, one).__func__ is getattr(DefaultEvaluator, one).__func__ for one in steps)


def _read_evidence(definition: Definition, kept: KeptCall, result: JobResult) -> dict[str, Any] | None:
    """Return the figures of the rule that decided, for the script; None where the tolerance did."""
    outcome = result.outcome
    if not isinstance(outcome, Rejected) or outcome.integrity is None:
        return None
    evidence = dict(outcome.integrity["evidence"])
    if "row" in evidence and kept.expected is not None:
        expected = kept.expected[list(definition.outputs).index(evidence["output"])]
        evidence["of_rows"] = expected.numel() // (row_length(expected) or expected.numel())
    return evidence


def main() -> None:
    """Serve the host at the other end of a descriptor."""
    die_with_parent(signal.SIGKILL)
    hide_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the host to handle
    KeepingSession.folder = Path(sys.argv[2])
    with open_session(int(sys.argv[1])) as opened:
        serve(opened, KeepingSession)


if __name__ == "__main__":
    main()
