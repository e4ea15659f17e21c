"""The sets that the rows run: small ones that are written here, and parts of the bundled one.

A set is made of plain documents (`definition`, `solution`, `workload`), and is written to a folder or kept in memory.
Solutions of the engine's own speed have a text of their own (`MARK`), so that nothing of theirs was compiled before.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from benchmarks.kit.commands import CHECKOUT, Job
from flashinfer_bench.data import Definition, Solution, Trace, TraceSet, Workload
from flashinfer_bench.data.store import layout

BUNDLED: Final = CHECKOUT / "flashinfer-trace"
RMSNORM: Final = ("rmsnorm", "rmsnorm_h4096")
GEMM: Final = ("gemm", "gemm_n1024_k4096")
SAMPLER: Final = ("sampling", "top_p_sampling_from_probs_v32000")
BATCHES_OF_8: Final = tuple(16 * 2**number for number in range(8))
BATCHES_OF_32: Final = tuple(16 * number for number in range(1, 33))
SLOW_WORKLOADS: Final = 47
REFERENCE_MS: Final = 24.0
MARK: Final = uuid4().hex[:8]
KERNEL: Final = re.compile(r"(@triton\.jit\ndef \w+\([^)]*\):\n)")
PRODUCT: Final = (
    "import torch\n\n\ndef run(x, weight):\n    for _ in range({steps}):\n        y = x @ weight\n    return y\n"
)
SMALL_RMSNORM: Final = """\
import torch


def run(x, weight):
    scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
    return (x.float() * scale).to(x.dtype) * weight
"""
Document = dict[str, Any]


@dataclass(frozen=True)
class MadeSet:
    """A set on disk."""

    root: Path
    expected: dict[Job, str] | None
    """Job → its status; None if all of them have to be PASSED."""


def definition(
    name: str,
    inputs: dict[str, str],
    outputs: dict[str, str],
    axes: dict[str, int | None],
    reference: str,
    *,
    op_type: str = "bench",
) -> Document:
    """Return a definition.

    Args:
        name: its name.
        inputs: name → dtype and axes, such as "float32 m n".
        outputs: likewise.
        axes: name → size; None if workloads say it.
        reference: the source.
        op_type: the kind of operation.
    """
    sizes = {axis: {"type": "var"} if n is None else {"type": "const", "value": n} for axis, n in axes.items()}
    tensors = [
        {one: {"dtype": text.split()[0], "shape": text.split()[1:]} for one, text in side.items()}
        for side in (inputs, outputs)
    ]
    named = {"name": name, "op_type": op_type, "axes": sizes, "reference": reference}
    return {**named, "inputs": tensors[0], "outputs": tensors[1]}


def solution(of: str, name: str, text: str, *, fills: bool = False, **spec: Any) -> Document:
    """Return a solution of one file, in Python unless `spec` says otherwise; with `fills` it writes into outputs."""
    spec = {"language": "python", "target_hardware": ["cpu", "cuda"], "entry_point": "main.py::run", **spec}
    sources = [{"path": spec["entry_point"].partition("::")[0], "content": text}]
    spec["destination_passing_style"] = fills
    return {"name": name, "definition": of, "author": "bench", "spec": spec, "sources": sources}


def workloads(of: Document, axis: str = "", sizes: Sequence[int] = (0,)) -> list[Document]:
    """Return a workload of random inputs for each size of an axis."""
    inputs = {name: {"type": "random"} for name in of["inputs"]}
    return [
        {"uuid": f"w{number:02}", "axes": {axis: size} if axis else {}, "inputs": inputs}
        for number, size in enumerate(sizes)
    ]


def in_memory(*parts: tuple[Document, Iterable[Document], Iterable[Document]]) -> TraceSet:
    """Return a set of (definition, solutions, workloads) that lies in no folder."""
    trace_set = TraceSet()
    for made, solutions, lines in parts:
        name = made["name"]
        trace_set.definitions[name] = Definition.model_validate(made)
        trace_set.solutions[name] = [Solution.model_validate(one) for one in solutions]
        found = [Workload.model_validate(line) for line in lines]
        trace_set.workloads[name] = [Trace(definition=name, workload=line, solution=None) for line in found]
    return trace_set


def write(
    root: Path, made: Document, solutions: Sequence[Document], lines: Sequence[Document], wrong: dict[str, str] | None
) -> MadeSet:
    """Write a definition with its solutions and workloads; `wrong` has the statuses of those that do not pass."""
    at = {"op_type": made["op_type"], "definition": made["name"]}
    traces = [{"definition": made["name"], "solution": None, "workload": line} for line in lines]
    files = {layout.definition_path(root, **at): json.dumps(made)}
    files[layout.workloads_path(root, **at)] = "".join(f"{json.dumps(trace)}\n" for trace in traces)
    for one in solutions:
        files[layout.solution_path(root, author=one["author"], solution=one["name"], **at)] = json.dumps(one)
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    names = [(one["name"], line["uuid"]) for one in solutions for line in lines]
    return MadeSet(root, {(made["name"], *pair): (wrong or {}).get(pair[0], "PASSED") for pair in names})


def bundled(which: tuple[str, str]) -> Document:
    """Read a definition of the bundled set."""
    path = layout.definition_path(BUNDLED, op_type=which[0], definition=which[1])
    found: Document = json.loads(path.read_text(encoding="utf-8"))
    return found


def copy(which: tuple[str, str], author: str, name: str, change: tuple[str, str] = ("", "")) -> Document:
    """Return a right solution of the bundled set under another name, with a text of its own, or changed."""
    at = {"author": author, "op_type": which[0], "definition": which[1]}
    path = layout.solution_path(BUNDLED, solution=f"{author}_{which[1]}", **at)
    given = json.loads(path.read_text(encoding="utf-8"))
    text = given["sources"][0]["content"]
    if change[0] and change[0] not in text:
        raise ValueError(f"{path} has no {change[0]!r}")
    comment = f"# {name}, {MARK}"
    text = KERNEL.sub(rf"\g<1>    {comment}\n", text.replace(*change) if change[0] else text)
    given["sources"][0]["content"] = f"{comment}\n{text}"
    return {**given, "name": name, "author": "bench"}


def verdicts(root: Path, batches: Sequence[int] = (1, 16, 64, 256, 1024)) -> MadeSet:
    """Write four solutions of rmsnorm: two are right, one is wrong, one raises, as a model would write them."""
    wrong = {"b_other_mean": "INCORRECT_NUMERICAL", "d_unknown_size": "RUNTIME_ERROR"}
    solutions = [
        copy(RMSNORM, "triton", "a_triton"),
        copy(RMSNORM, "triton", "b_other_mean", ("/ HIDDEN", "/ 2048")),
        copy(RMSNORM, "torch", "c_torch"),
        copy(RMSNORM, "triton", "d_unknown_size", ("HIDDEN: tl.constexpr", "HIDDEN")),
    ]
    made = bundled(RMSNORM)
    return write(root, made, solutions, workloads(made, "batch_size", batches), wrong)


def gemm(root: Path, batches: Sequence[int] = (1, 16, 128, 1024)) -> MadeSet:
    """Write a Triton and a torch solution of a matrix product."""
    made = bundled(GEMM)
    return write(root, made, [copy(GEMM, one, one) for one in ("triton", "torch")], workloads(made, "M", batches), None)


def sampler(root: Path) -> MadeSet:
    """Write one sampler of 32,000 tokens with its workload of two rows, whose probabilities lie in a file."""
    path = layout.workloads_path(BUNDLED, op_type=SAMPLER[0], definition=SAMPLER[1])
    lines = [json.loads(line)["workload"] for line in path.read_text(encoding="utf-8").splitlines()]
    line = next(one for one in lines if one["axes"]["batch_size"] == 2)
    for source in line["inputs"].values():
        (root / source["path"]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(BUNDLED / source["path"], root / source["path"])
    return write(root, bundled(SAMPLER), [copy(SAMPLER, "torch", "torch")], [line], None)


def triton(root: Path, solutions: int = 8, batches: Sequence[int] = BATCHES_OF_8) -> MadeSet:
    """Write N Triton solutions of rmsnorm."""
    written = [copy(RMSNORM, "triton", f"triton_{number:02}") for number in range(solutions)]
    made = bundled(RMSNORM)
    return write(root, made, written, workloads(made, "batch_size", batches), None)


def python(root: Path, solutions: int = 8, batches: Sequence[int] = tuple(range(1, 9))) -> MadeSet:
    """Write N Python solutions of a small rmsnorm, for a CPU."""
    inputs = {"x": "float32 batch hidden", "weight": "float32 hidden"}
    axes = {"batch": None, "hidden": 1024}
    name = "rmsnorm_h1024"
    made = definition(name, inputs, {"y": inputs["x"]}, axes, SMALL_RMSNORM, op_type="rmsnorm")
    written = [solution(name, f"torch_{n}", f"# torch_{n}, {MARK}\n{SMALL_RMSNORM}") for n in range(solutions)]
    return write(root, made, written, workloads(made, "batch", batches), None)


def slow_reference(root: Path, *, steps: int, width: int, rows: Sequence[int]) -> MadeSet:
    """Write a reference of N matrix products, of which one is enough, and a solution that makes one."""
    inputs = {"x": "bfloat16 rows width", "weight": "bfloat16 width width"}
    axes = {"rows": None, "width": width}
    name = f"slow_product_h{width}"
    made = definition(name, inputs, {"y": inputs["x"]}, axes, PRODUCT.format(steps=steps), op_type="gemm")
    return write(root, made, [solution(name, "quick", PRODUCT.format(steps=1))], workloads(made, "rows", rows), None)
