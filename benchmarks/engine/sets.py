"""The sets that the rows run, made of the definitions and right solutions of the bundled set, and of `sources.py`.

Each solution has a text of its own, so that each is built, loaded and compiled for itself. The texts have a mark that
differs from one start of the script to the next, so that nothing of theirs was ever compiled before.
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

from benchmarks.engine import sources
from benchmarks.engine.command import CHECKOUT
from benchmarks.engine.timeline import Job
from flashinfer_bench.data.store import layout

BUNDLED: Final = CHECKOUT / "flashinfer-trace"
RMSNORM: Final = ("rmsnorm", "rmsnorm_h4096")
GEMM: Final = ("gemm", "gemm_n1024_k4096")
SAMPLER: Final = ("sampling", "top_p_sampling_from_probs_v32000")
KERNEL: Final = re.compile(r"(@triton\.jit\ndef \w+\([^)]*\):\n)")
MARK: Final = uuid4().hex[:8]
SLOW_WORKLOADS: Final = 47


@dataclass(frozen=True)
class MadeSet:
    """A set on disk."""

    root: Path
    expected: dict[Job, str] | None
    """Job → its status; None where all of them have to be PASSED."""


@dataclass(frozen=True)
class Code:
    """A solution to be written."""

    name: str
    text: str
    language: str = "python"
    has_outputs: bool = False
    """It writes into outputs that it is given; else it returns them."""
    status: str = "PASSED"


def verdicts(root: Path, batches: Sequence[int]) -> MadeSet:
    """Write four solutions of rmsnorm: two are right, one is wrong, one raises, as a model would write them."""
    wrong = Code("b_forgets_to_add", sources.FORGETS_TO_ADD, "triton", status="INCORRECT_NUMERICAL")
    raising = Code("d_unknown_size", sources.UNKNOWN_SIZE, "triton", status="RUNTIME_ERROR")
    solutions = [take(RMSNORM, "triton", "a_triton"), wrong, take(RMSNORM, "torch", "c_torch"), raising]
    return write_set(root, read_definition(RMSNORM), solutions, {"batch_size": batches})


def gemm(root: Path, batches: Sequence[int]) -> MadeSet:
    """Write a Triton and a torch solution of a matrix product."""
    solutions = [take(GEMM, "triton", "triton"), take(GEMM, "torch", "torch")]
    return write_set(root, read_definition(GEMM), solutions, {"M": batches})


def sampler(root: Path) -> MadeSet:
    """Write one sampler of 32,000 tokens with its workload of two rows, whose probabilities lie in a file."""
    op_type, definition = SAMPLER
    text = layout.workloads_path(BUNDLED, op_type=op_type, definition=definition).read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    line = next(one for one in lines if one["workload"]["axes"]["batch_size"] == 2)
    for source in line["workload"]["inputs"].values():
        (root / source["path"]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(BUNDLED / source["path"], root / source["path"])
    return write(root, read_definition(SAMPLER), [take(SAMPLER, "torch", "torch")], [line["workload"]])


def triton(root: Path, solutions: int, batches: Sequence[int]) -> MadeSet:
    """Write so many Triton solutions of rmsnorm."""
    written = [take(RMSNORM, "triton", f"triton_{number:02}") for number in range(solutions)]
    return write_set(root, read_definition(RMSNORM), written, {"batch_size": batches})


def slow_reference(root: Path, *, steps: int, width: int, rows: Sequence[int]) -> MadeSet:
    """Write a reference of so many matrix products, where one is enough, and a solution that makes one."""
    reference = sources.SLOW_REFERENCE.replace("STEPS", str(steps))
    definition = {
        "name": f"slow_product_h{width}",
        "op_type": "gemm",
        "axes": {"rows": {"type": "var"}, "width": {"type": "const", "value": width}},
        "inputs": {
            "x": {"shape": ["rows", "width"], "dtype": "bfloat16"},
            "weight": {"shape": ["width", "width"], "dtype": "bfloat16"},
        },
        "outputs": {"y": {"shape": ["rows", "width"], "dtype": "bfloat16"}},
        "reference": reference,
    }
    return write_set(root, definition, [Code("quick", sources.QUICK_PRODUCT)], {"rows": rows})


def python(root: Path, solutions: int, batches: Sequence[int]) -> MadeSet:
    """Write so many Python solutions of a small rmsnorm, for a CPU."""
    definition = {
        "name": "rmsnorm_h1024",
        "op_type": "rmsnorm",
        "axes": {"batch": {"type": "var"}, "hidden": {"type": "const", "value": 1024}},
        "inputs": {
            "x": {"shape": ["batch", "hidden"], "dtype": "float32"},
            "weight": {"shape": ["hidden"], "dtype": "float32"},
        },
        "outputs": {"y": {"shape": ["batch", "hidden"], "dtype": "float32"}},
        "reference": sources.SMALL_RMSNORM,
    }
    written = [Code(f"torch_{number}", sources.SMALL_RMSNORM) for number in range(solutions)]
    return write_set(root, definition, written, {"batch": batches})


def read_definition(which: tuple[str, str]) -> dict[str, Any]:
    """Read a definition of the bundled set."""
    op_type, name = which
    file = layout.definition_path(BUNDLED, op_type=op_type, definition=name)
    definition: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return definition


def take(which: tuple[str, str], author: str, name: str) -> Code:
    """Take a right solution of the bundled set under another name."""
    op_type, definition = which
    at = {"author": author, "op_type": op_type, "definition": definition}
    file = layout.solution_path(BUNDLED, solution=f"{author}_{definition}", **at)
    given = json.loads(file.read_text(encoding="utf-8"))
    (source,), spec = given["sources"], given["spec"]
    return Code(name, source["content"], spec["language"], spec["destination_passing_style"])


def mark(code: Code) -> str:
    """Give a solution a text of its own: a comment, and one in each Triton kernel, by whose text Triton finds it."""
    comment = f"# {code.name}, {MARK}"
    text, kernels = KERNEL.subn(rf"\g<1>    {comment}\n", code.text)
    if code.language == "triton" and not kernels:
        raise ValueError(f"{code.name} has no Triton kernel that can be marked")
    return f"{comment}\n{text}"


def write_set(
    root: Path, definition: dict[str, Any], solutions: Iterable[Code], sizes: dict[str, Sequence[int]]
) -> MadeSet:
    """Write a set whose workloads are random inputs, one for each size of its axis."""
    ((axis, values),) = sizes.items()
    workloads = [
        {
            "uuid": f"w{number:02}",
            "axes": {axis: value},
            "inputs": {name: {"type": "random"} for name in definition["inputs"]},
        }
        for number, value in enumerate(values)
    ]
    return write(root, definition, list(solutions), workloads)


def write(
    root: Path, definition: dict[str, Any], solutions: Sequence[Code], workloads: Sequence[dict[str, Any]]
) -> MadeSet:
    """Write a set of one definition."""
    at = {"op_type": definition["op_type"], "definition": definition["name"]}
    lines = [{"definition": definition["name"], "solution": None, "workload": workload} for workload in workloads]
    write_file(layout.definition_path(root, **at), json.dumps(definition))
    write_file(layout.workloads_path(root, **at), "".join(f"{json.dumps(line)}\n" for line in lines))
    for code in solutions:
        spec = {
            "language": code.language,
            "target_hardware": ["cpu", "cuda"],
            "entry_point": "main.py::run",
            "destination_passing_style": code.has_outputs,
        }
        given = {
            "name": code.name,
            "definition": definition["name"],
            "author": "bench",
            "spec": spec,
            "sources": [{"path": "main.py", "content": mark(code)}],
        }
        write_file(layout.solution_path(root, author="bench", solution=code.name, **at), json.dumps(given))
    expected = {(definition["name"], code.name, one["uuid"]): code.status for code in solutions for one in workloads}
    return MadeSet(root, expected)


def write_file(path: Path, text: str) -> None:
    """Write a file, with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
