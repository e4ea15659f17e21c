"""A session that keeps one call: `answer` plays its host (`base/isolated.py`).

It judges as any session does, with the solution in a worker. After the verdict it writes the call that decided to the
folder: `inputs`, `expected` and `got` as safetensors, `call.json` and `map.txt`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file

from flashinfer_bench.base.exits import describe_exit
from flashinfer_bench.base.wire import FrameReader, WireClosed, send_frame
from flashinfer_bench.bench.evaluators.compare.outputs import find_failing
from flashinfer_bench.bench.evaluators.compare.pattern import describe_places
from flashinfer_bench.bench.evaluators.compare.rule import Tolerance
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.evaluator import Evaluator, Rejected
from flashinfer_bench.bench.evaluators.integrity.norms import row_length
from flashinfer_bench.bench.runner.protocol import BlockJob, BlockOrder, JobFault
from flashinfer_bench.bench.runner.session.device_session import DeviceSession
from flashinfer_bench.bench.runner.session.job import BlockContext, JobResult
from flashinfer_bench.bench.runner.session.main import serve
from flashinfer_bench.bench.runner.session.opening import MOST_BYTES, open_session
from flashinfer_bench.data import Definition
from flashinfer_bench.examine.repro.capture import KeptCall, keeping
from flashinfer_bench.sandbox.process_tree import die_with_parent, fork, hide_memory

STORED: Final = frozenset({"float64", "float32", "float16", "bfloat16", "bool", "uint8", "int8", "int32", "int64"})
"""Tensors of other dtypes are stored as bytes."""
MOST_LINES, MOST_SIGNS = 24, 64
"""Lines of a map, and signs of a line, at most; each sign stands for a block of elements."""
LEGEND: Final = ". right, - few, + many, # all wrong"
SIGNS: Final = ((0.0, "."), (0.1, "-"), (0.9, "+"))
"""Largest share of a block that fails → its sign. Above it is `#`."""


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Have a session judge the job of a block, and keep its call; return the evaluation, or a fault."""
    ours, theirs = socket.socketpair()
    session = fork()
    if session == 0:
        ours.close()
        die_with_parent(signal.SIGKILL)
        hide_memory()
        KeepingSession.folder = Path(request["folder"])
        with open_session(theirs.detach()) as opened:
            serve(opened, KeepingSession)
        os._exit(0)
    theirs.close()
    with ours:
        try:
            for order in ({"hello": request["hello"]}, {"block": request["block"]}, {"begin": True}):
                send_frame(ours, order)
            reader = FrameReader(ours, max_bytes=MOST_BYTES)
            frame: Any = {}
            while not {"fault", "verdict"} & frame.keys():
                frame = reader.read()
        except (WireClosed, BrokenPipeError):
            code = os.waitstatus_to_exitcode(os.waitpid(session, 0)[1])
            return {"fault": f"the session {describe_exit(code)}, without a verdict"}
    os.waitpid(session, 0)
    found: dict[str, Any] = frame.get("verdict") or {"fault": frame["fault"]["message"]}
    return found


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
        kept = self._kept
        definition = block.definition
        job = block.open_job(order)
        style = self._styles.get(job.solution.digest)
        judge = block.evaluator
        compares = compares_single_calls(judge, definition)
        tolerance = judge.tolerance(job.config) if issubclass(judge, DefaultEvaluator) else Tolerance(0.0, 0.0)
        facts: dict[str, Any] = {
            "inputs": list(definition.inputs),
            "outputs": list(definition.outputs),
            "style": style.style if style is not None else "value",
            "evaluator": judge.__name__,
            "device": self._hello.device,
            "evidence": _read_evidence(definition, kept, result),
            "config": job.config.to_order(),
            "blob_root": order.blob_root,
            "was_timed": kept.was_timed,
            "compares": compares,
            "tolerance": asdict(tolerance),
            "dtypes": {},
            "scalars": {},
        }
        outputs = list(definition.outputs)
        named = (("inputs", list(definition.inputs), kept.inputs), ("expected", outputs, kept.expected))
        for name, keys, values in (*named, ("got", outputs, kept.got)):
            if values is not None:
                self._save(name, dict(zip(keys, values, strict=False)), facts)
        (self.folder / "call.json").write_text(json.dumps(facts, indent=2, default=str) + "\n", encoding="utf-8")
        if compares and kept.expected is not None and kept.got is not None:
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
                facts["scalars"][key] = value
                continue
            dtype = str(value.dtype).removeprefix("torch.")
            facts["dtypes"].setdefault(name, {})[key] = dtype
            plain = value.contiguous()
            tensors[key] = plain.view(torch.uint8) if dtype not in STORED and plain.ndim else plain
        save_file(tensors, str(self.folder / f"{name}.safetensors"))


def compares_single_calls(evaluator: type[Evaluator], definition: Definition) -> bool:
    """Tell whether one call is judged by comparing its elements, so that a script can do the same."""
    if not issubclass(evaluator, DefaultEvaluator) or not evaluator.compares_elements(definition):
        return False
    judge: Any = evaluator.__base__  # `keeping` has made a subclass of it
    steps = ("check_correctness", "judge_call")
    return all(getattr(judge, one).__func__ is getattr(DefaultEvaluator, one).__func__ for one in steps)


def _read_evidence(definition: Definition, kept: KeptCall, result: JobResult) -> dict[str, Any] | None:
    """Return the figures of the rule that decided, for the script; None if the tolerance did."""
    outcome = result.outcome
    if not isinstance(outcome, Rejected) or outcome.integrity is None:
        return None
    evidence = dict(outcome.integrity["evidence"])
    if "row" in evidence and kept.expected is not None:
        expected = kept.expected[list(definition.outputs).index(evidence["output"])]
        evidence["of_rows"] = expected.numel() // (row_length(expected) or expected.numel())
    return evidence


def draw_map(name: str, expected: torch.Tensor, got: torch.Tensor, tolerance: Tolerance) -> str:
    """Return which rows and columns of an output fail, as a small map with a line that says what it shows."""
    failing = find_failing(expected, got, tolerance)
    count = int(failing.sum())
    head = f"{name} {list(expected.shape)}: {count} of {failing.numel()} elements fail"
    if not count:
        return f"{head}\n"
    rows = failing.reshape(-1, failing.shape[-1] if failing.ndim else 1)
    height, width = rows.shape
    hit = int(rows.any(dim=1).sum()), int(rows.any(dim=0).sum())
    lines = [f"{head}, in {hit[0]} of {height} rows and {hit[1]} of {width} columns"]
    lines += filter(None, [describe_places(failing)])
    tall = -(-height // MOST_LINES)
    wide = -(-width // MOST_SIGNS)
    if height == 1:  # one stretch of it below the other
        wide = -(-width // (MOST_LINES * MOST_SIGNS))
        tall = wide * MOST_SIGNS
        lines.append(f"each sign is {wide} of the row's elements, each line begins at the one told: {LEGEND}")
    else:
        lines.append(f"each sign is {tall} x {wide} elements: {LEGEND}")
    for at, part in enumerate(torch.split(rows.float(), tall, dim=int(height == 1))):
        shares = [float(block.mean()) for block in torch.split(part, wide, dim=1)]
        signs = (next((sign for most, sign in SIGNS if share <= most), "#") for share in shares)
        lines.append(f"{at * tall:>8} {''.join(signs)}")
    return "\n".join([*lines, ""])
