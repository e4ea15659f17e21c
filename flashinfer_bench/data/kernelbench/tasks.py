"""Reads KernelBench's tasks and solutions.

    level1/23_Softmax.py                        a task: the definition kernelbench_l1_023_softmax, with one workload
    NAME/level_1_problem_23_sample_0_kernel.py  a solution of it, by the author NAME

The arguments, parameters and buffers of a task are the definition's inputs. A solution is the author's file, the task,
and an entry file that connects them (`block.py`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.data.adapted import SOLUTION_FILE, find_by_file, find_engine
from flashinfer_bench.data.issue import LoadIssue
from flashinfer_bench.data.problems.folder import Raw, make_name, read_source
from flashinfer_bench.data.trace_set import TraceSet
from flashinfer_bench.errors import DataSetError

PRECISIONS: Final = {
    "fp32": ("float32", 1e-4),
    "fp16": ("float16", 1e-2),
    "bf16": ("bfloat16", 1e-2),
}
"""KernelBench's precision → dtype of floating-point tensors, and the tolerance (both atol and rtol)."""


class KernelBench:
    """Reads tasks at one precision."""

    name = "kernelbench"
    file = re.compile(r"(\d+)_(.+)\.py")
    mark = "get_inputs"
    form = "level1/1_Name.py with def get_inputs()"

    def __init__(self, precision: str = "fp32") -> None:
        self.precision = precision

    def read(self, file: Path, text: str, _issues: list[LoadIssue]) -> str:
        """Return the code of a task."""
        if find_engine(file.name, text):
            raise DataSetError(
                "it defines ModelNew, so it is no task; name it NAME/level_1_problem_1_sample_0_kernel.py"
            )
        return text

    def name_solutions(self, found: TraceSet, file: Path) -> Iterator[tuple[str, str, str]]:
        """Yield the solution from a file of a KernelBench run."""
        if SOLUTION_FILE.fullmatch(file.stem):
            if (definition := find_by_file([file.stem], found.definitions)) is None:
                raise DataSetError("no converted task has its level and problem")
            if find_engine(file.name, read_source(file)) is None:
                raise DataSetError("it is not valid Python, or defines no ModelNew")
            author = file.absolute().parent.name
            yield definition, f"{author}_{file.stem}", author

    def make(
        self, file: Path, source: str, facts: Raw, block: str, _issues: list[LoadIssue]
    ) -> Iterator[tuple[Raw, list[Raw]]]:
        """Yield the definition of a task, with its workload."""
        number, name = self.file.fullmatch(file.name).groups()  # type: ignore[union-attr] # the name was matched before
        match = re.fullmatch(r"level_?(\d+)", file.absolute().parent.name)
        dtype, bound = PRECISIONS[self.precision]
        level = f"{self.name}_l{match[1]}" if match else self.name
        # KernelBench's identity of a task
        digest = hashlib.md5(re.sub(r"#[^\n]*|\s", "", source).encode(), usedforsecurity=False).hexdigest()
        created = f"KernelBenchTask(globals(), {dtype!r}, {facts['arguments']}, {tuple(facts['written'])!r})"
        footer = "run, make_inputs, bind_solution = _task.run, _task.make_inputs, _task.bind_solution"
        definition: dict[str, Any] = {
            "name": f"{level}_{int(number):03}_{make_name(name)}",
            "op_type": level,
            "axes": {},
            "reference": f"{source.rstrip()}\n\n\n{block}\n\n_task = {created}\n{footer}\n",
            "tags": [f"version:{digest}"],
        }
        for side in ("inputs", "outputs"):
            definition[side] = {
                name: {"shape": shape, "dtype": dtype if kind == "float32" else kind}
                for name, (shape, kind) in facts[side].items()
            }
        yield (
            definition,
            [{"axes": {}, "tolerance": {"max_atol": bound, "max_rtol": bound, "required_matched_ratio": 1.0}}],
        )
