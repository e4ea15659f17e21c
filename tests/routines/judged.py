"""A routine judged in this process: its reference as a backend, and backends that are wrong in one way."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from flashinfer_bench.bench.evaluators.evaluator import Rejected
from flashinfer_bench.cli.perf.flags import parse_case
from flashinfer_bench.data import Solution
from flashinfer_bench.routines.case.generated_entry import generate_entry, write_entry
from flashinfer_bench.routines.case.spec import Case
from flashinfer_bench.routines.table import find_routine
from tests.bench.evaluators.judging import Judging
from tests.routines.small import SMALL

Backend = Callable[..., list[torch.Tensor]]
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


@lru_cache(maxsize=64)
def make_case(routine: str, flags: str | None = None) -> Case:
    """Make a case of a routine, at a small size where no flags are given."""
    table_entry, args = parse_case(["--routine", routine, *shlex.split(SMALL[routine] if flags is None else flags)])
    return table_entry.make_case(args)


def load(solution: Solution) -> dict[str, Any]:
    """Return the names of a solution."""
    module: dict[str, Any] = {}
    exec(solution.sources[0].content, module)
    return module


class Library:
    """Stands in for flashinfer: counts calls. What reorders a matrix gives it back."""

    calls = 0

    def __init__(self, name: str = "") -> None:
        self.name = name

    def __getattr__(self, name: str) -> Library:
        if name.startswith("__"):
            raise AttributeError(name)
        return Library(name)

    def __call__(self, *given: Any, **_named: Any) -> Any:
        Library.calls += 1
        return given[0] if self.name.startswith(("shuffle", "reorder", "convert")) else self

    def __iter__(self) -> Iterator[Library]:
        return iter((self, self))

    def __enter__(self) -> None: ...

    def __exit__(self, *_error: object) -> None: ...


class JudgedRoutine:
    """The engine's evaluator on one routine, with plain functions as solutions."""

    def __init__(self, routine: str, root: Path, flags: str | None = None) -> None:
        self.case = make_case(routine, flags)
        entry = generate_entry(find_routine(routine), self.case, ["torch"])
        write_entry(root, entry)
        self.job = Judging(entry.definition, entry.workload, root=root, num_trials=1, **asdict(self.case.check))
        self.baseline = self.job.baseline()
        self.inputs = self.baseline.inputs[0]
        self.reference = load(entry.solutions["torch"])["run"]

    def honest(self, *inputs: Any) -> list[torch.Tensor]:
        returned = self.reference(*inputs)
        return list(returned) if isinstance(returned, (list, tuple)) else [returned]

    def calls_of(self, solution: Solution) -> int:
        """Return how often a solution calls the library, which a stand-in plays."""
        Library.calls, functions = 0, load(solution)
        given = [one.clone() if isinstance(one, torch.Tensor) else one for one in self.inputs]
        given += map(torch.zeros_like, self.baseline.outputs[0] if solution.spec.destination_passing_style else ())
        with patch.object(torch, "zeros", torch.empty):  # the stand-in leaves its workspaces alone
            functions["run"](*given, **functions.get("setup", lambda *_: {})(*given))
        return Library.calls

    def status(self, function: Callable[..., Any]) -> str:
        """Judge a backend: PASSED, or how it is rejected."""
        verdict = self.job.check(function, self.baseline)
        return verdict.status.value if isinstance(verdict, Rejected) else "PASSED"

    def changed(self, change: Callable[[torch.Tensor], Any]) -> Backend:
        """Return a backend each of whose outputs is changed in place."""

        def run(*inputs: Any) -> list[torch.Tensor]:
            outputs = [output.clone() for output in self.honest(*inputs)]
            for output in outputs:
                change(output.view(torch.uint8) if output.dtype == torch.float4_e2m1fn_x2 else output)
            return outputs

        return run

    def wrong_scale(self, *inputs: Any) -> list[torch.Tensor]:
        """Scale the first float output, or what it is computed from; chances that are sampled are cubed."""
        outputs = self.honest(*inputs)
        for index, output in enumerate(outputs):
            if output.dtype.is_floating_point and output.dtype != torch.float4_e2m1fn_x2:
                return [*outputs[:index], (output.float() * 1.25).to(output.dtype), *outputs[index + 1 :]]
        at = next(at for at, one in enumerate(inputs) if isinstance(one, torch.Tensor) and one.dtype in FLOATS)
        given = inputs[at].float()
        other = torch.nn.functional.normalize(given**3, p=1, dim=-1) if bool((given >= 0).all()) else -1.25 * given
        return self.honest(*inputs[:at], other.to(inputs[at].dtype), *inputs[at + 1 :])

    def wrong_backends(self) -> dict[str, Backend]:
        """Return backends by what is wrong with them."""
        return {
            "zeros": self.changed(lambda output: output.zero_()),
            "last row skipped": self.changed(lambda output: output[-1:].zero_()),
            "wrong scale": self.wrong_scale,
        }
