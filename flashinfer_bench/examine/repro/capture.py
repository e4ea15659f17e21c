"""Writes down the call that decides a verdict: a session whose evaluator is wrapped (`Hello.tool`).

The folder gets `inputs`, `expected` and `got` as safetensors, `call.json` and `map.txt`. A rejected call is written,
and a call that raised. If all are right, the first one is.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file

from flashinfer_bench.bench.config import ResolvedEvalConfig
from flashinfer_bench.bench.evaluators.compare.outputs import find_failing
from flashinfer_bench.bench.evaluators.compare.rule import Tolerance
from flashinfer_bench.bench.evaluators.evaluator import Accepted, Evaluator, JudgedCall, Rejected, Verdict
from flashinfer_bench.bench.runner.protocol import BlockOrder
from flashinfer_bench.bench.runner.session.device_session import DeviceSession
from flashinfer_bench.bench.runner.session.job import BlockContext
from flashinfer_bench.data import Definition

STORED: Final = frozenset({"float64", "float32", "float16", "bfloat16", "bool", "uint8", "int8", "int32", "int64"})
"""Tensors of other dtypes are stored as bytes."""
MAP_LINES, MAP_SIGNS = 24, 64
"""Lines of a map, and signs of a line, at most; each sign stands for a block of elements."""
LEGEND: Final = ". right, - few, + many, # all wrong"
SIGNS: Final = ((0.0, "."), (0.1, "-"), (0.9, "+"), (1.0, "#"))
"""Largest share of a block that fails → its sign."""
FACTS: Final = "call.json"


class Recorder:
    """A solution as a callable that remembers its latest outputs."""

    got: Any = None

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def __call__(self, *args: Any) -> Any:
        """Call the solution."""
        self.got = None
        self.got = self._kernel(*args)
        return self.got


class RecordedChecks:
    """Checks on stress inputs that hand on each call that is wrong."""

    def __init__(self, checks: Any, write: Callable[..., None]) -> None:
        self._checks = checks
        self._write = write

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._checks, name)

        def judge(case: str, call: JudgedCall, *rest: Any) -> Verdict:
            verdict: Verdict = found(case, call, *rest)
            if isinstance(verdict, Rejected):
                self._write(call, verdict)
            return verdict

        return judge if name in ("judge", "judge_constants") else found


class Session(DeviceSession):
    """Judges, and keeps a call."""

    def open_block(self, order: BlockOrder) -> BlockContext:
        """Open it with an evaluator that keeps calls."""
        opened = super().open_block(order)
        assert self._hello.tool is not None
        opened.evaluator = keep(opened.evaluator, Path(self._hello.tool[1]))
        return opened


def keep(evaluator: type[Evaluator], folder: Path) -> type[Evaluator]:
    """Return an evaluator that judges as another one does, and writes the call that decides to a folder."""
    base: Any = evaluator
    styles: list[str] = []

    class Keeping(base):  # type: ignore[misc]
        """Judges as its base, trial by trial if that judges calls alone."""

        is_elementwise = getattr(evaluator, "is_elementwise", False)

        @classmethod
        def check_correctness(
            cls, definition: Definition, sol_runnable: Any, inputs: Any, *rest: Any, **named: Any
        ) -> Verdict:
            """Judge, and write a call down. The rest are expected outputs and settings."""
            expected, cfg = rest
            kernel = Recorder(sol_runnable)
            styles.append(getattr(getattr(sol_runnable, "calling_style", None), "style", ""))
            size = 1 if evaluator.judges_calls_alone else len(inputs)
            verdict: Any = None
            for at in range(0, len(inputs), size):
                trials = slice(at, at + size)
                verdict = None
                try:
                    verdict = super().check_correctness(
                        definition, kernel, inputs[trials], expected[trials], cfg, **named
                    )
                finally:
                    if not isinstance(verdict, Accepted) or not (folder / FACTS).exists():
                        got = kernel.got if size == 1 else None
                        cls.write(definition, cfg, JudgedCall(inputs[at], got or [], expected[at]), verdict)
                if isinstance(verdict, Rejected):
                    break
            return verdict  # type: ignore[no-any-return] # there is a trial

        @classmethod
        def stress_checks(cls, definition: Definition, cfg: ResolvedEvalConfig) -> Any:
            """Judge calls on other inputs, and write down the one that is wrong."""
            checks = super().stress_checks(definition, cfg)
            return None if checks is None else RecordedChecks(checks, partial(cls.write, definition, cfg))

        @classmethod
        def write(cls, definition: Definition, cfg: ResolvedEvalConfig, call: JudgedCall, verdict: Any) -> None:
            """Write a call, and the facts that the script needs."""
            compares = evaluator.judges_calls_alone and base.compares_elements(definition)
            tolerance = base.tolerance(cfg) if compares else Tolerance(0.0, 0.0)
            facts = {
                "style": styles[0],
                "config": cfg.to_order(),
                "compares": compares,
                "tolerance": asdict(tolerance),
                "evidence": (getattr(verdict, "integrity", None) or {}).get("evidence", {}),
                **save_call(folder, definition, call),
            }
            (folder / FACTS).write_text(json.dumps(facts, indent=2, default=str) + "\n", encoding="utf-8")
            pairs = zip(definition.outputs, call.expected, call.got, strict=False) if compares else ()
            maps = [draw_map(name, left, right, tolerance) for name, left, right in pairs if left.shape == right.shape]
            (folder / "map.txt").write_text("\n".join(maps), encoding="utf-8")

    Keeping.__name__ = evaluator.__name__
    return Keeping


def save_call(folder: Path, definition: Definition, call: JudgedCall) -> dict[str, Any]:
    """Write the tensors of a call; return its other values, the dtypes, and the device."""
    scalars: dict[str, Any] = {}
    dtypes: dict[str, dict[str, str]] = {}
    device = "cpu"
    for part, specs in (("inputs", definition.inputs), ("expected", definition.outputs), ("got", definition.outputs)):
        tensors: dict[str, torch.Tensor] = {}
        dtypes[part] = {}
        for name, value in zip(specs, getattr(call, part), strict=False):
            if not isinstance(value, torch.Tensor):
                scalars[name] = value
                continue
            device = value.device.type
            dtype = dtypes[part][name] = str(value.dtype).removeprefix("torch.")
            plain = value.detach().cpu().clone().contiguous()
            tensors[name] = plain.view(torch.uint8) if dtype not in STORED and plain.ndim else plain
        save_file(tensors, str(folder / f"{part}.safetensors"))
    return {"scalars": scalars, "dtypes": dtypes, "device": device}


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
    lines = [f"{head}, in {hit[0]} of {height} rows and {hit[1]} of {width} columns", LEGEND]
    # A single long row is folded: one stretch of it below the other.
    signs = min(width, MAP_SIGNS * (MAP_LINES if height == 1 else 1))
    shares = torch.nn.functional.adaptive_avg_pool2d(rows[None].float(), (min(height, MAP_LINES), signs))[0]
    parts = [part for row in shares for part in row.split(MAP_SIGNS)]
    places = [at * height // len(parts) if height > 1 else at * MAP_SIGNS * width // signs for at in range(len(parts))]
    for place, part in zip(places, parts, strict=True):
        drawn = (next(sign for most, sign in SIGNS if share <= most) for share in part.tolist())
        lines.append(f"{place:>8} {''.join(drawn)}")
    return "\n".join([*lines, ""])
