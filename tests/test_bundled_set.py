"""The trace set that ships: it loads whole, is as large as it says, and every file in it fits the others. No torch."""

import ast
import json
from collections import Counter
from pathlib import Path

import pytest

from flashinfer_bench.data import (
    Definition,
    EvaluationStatus,
    SafetensorsInput,
    Solution,
    SupportedBindings,
    SupportedLanguages,
    TraceSet,
)
from flashinfer_bench.data.entry import check_entry

ROOT = Path(__file__).parents[1] / "flashinfer-trace"
WRONG = ROOT / "wrong"
COVERED = "gemm rmsnorm rope gqa_paged gqa_ragged mla_paged gdn moe sampling dsa_paged lowbit"
OP_TYPES = {*COVERED.split()}
STORED = {
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float32": "F32",
    "int8": "I8",
    "int32": "I32",
    "int64": "I64",
}
EXPECTED = json.loads((WRONG / "expected.json").read_text())
BUNDLED = TraceSet.from_path(ROOT)
WRONG_SET = TraceSet.from_path(WRONG)
SOLUTIONS = [solution for group in BUNDLED.solutions.values() for solution in group]
EVERY_DEFINITION = pytest.mark.parametrize("definition", BUNDLED.definitions.values(), ids=lambda d: d.name)


def read_tensors(blob: Path) -> dict[str, tuple[str, list[int]]]:
    """Read dtype and shape of each tensor off the header of a safetensors file."""
    with blob.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return {key: (entry["dtype"], entry["shape"]) for key, entry in header.items() if key != "__metadata__"}


def blobs_of(definition: Definition) -> list[tuple[str, SafetensorsInput, dict[str, int]]]:
    return [
        (name, source, dict(trace.workload.axes))
        for trace in BUNDLED.workloads[definition.name]
        for name, source in trace.workload.inputs.items()
        if isinstance(source, SafetensorsInput)
    ]


def test_it_loads_without_issues_is_as_large_as_promised_and_stays_small() -> None:
    assert [str(issue) for issue in BUNDLED.issues] == []
    assert {definition.op_type for definition in BUNDLED.definitions.values()} == OP_TYPES
    assert len(BUNDLED.definitions) >= 12
    assert sum(len(workloads) for workloads in BUNDLED.workloads.values()) >= 30
    folders = ("definitions", "solutions", "workloads", "blob")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 5_000_000


@EVERY_DEFINITION
def test_a_definition_can_run_has_two_solutions_or_more_and_blobs_that_fit(definition: Definition) -> None:
    authors = {solution.author for solution in BUNDLED.solutions[definition.name]}
    workloads = BUNDLED.workloads[definition.name]
    assert (definition.is_runnable, "plain" in authors) == (True, True)
    assert min(len(authors), len(workloads)) >= 2
    stored = blobs_of(definition)
    for name, source, axes in stored:
        shape = definition.get_input_shapes(axes)[list(definition.inputs).index(name)]
        wanted = (STORED[definition.inputs[name].dtype], list(shape or ()))
        assert read_tensors(ROOT / source.path)[source.tensor_key] == wanted, f"{name} in {source.path}"
    for name, spec in definition.inputs.items():
        if spec.dtype in {"int32", "int64"} and spec.shape:  # no index is left to chance
            assert len({source.path for own, source, _ in stored if own == name}) == len(workloads), name


def test_no_blob_is_left_over() -> None:
    used = {ROOT / source.path for definition in BUNDLED.definitions.values() for _, source, _ in blobs_of(definition)}
    assert set((ROOT / "blob").rglob("*.safetensors")) == used


@pytest.mark.parametrize("solution", SOLUTIONS, ids=lambda s: s.name)
def test_a_solution_parses_and_takes_what_its_style_says(solution: Solution) -> None:
    for source in solution.sources:
        if source.path.endswith(".py"):
            ast.parse(source.content)
    assert check_entry(solution, BUNDLED.definitions[solution.definition]) == []


def test_solutions_come_in_every_kind_that_the_engine_must_build() -> None:
    styles = Counter(solution.spec.declared_style for solution in SOLUTIONS)
    assert (styles[None], min(styles[True], styles[False]) >= 15) == (1, True)
    assert sum(solution.spec.language is SupportedLanguages.TRITON for solution in SOLUTIONS) >= 8
    for language in (SupportedLanguages.CPP, SupportedLanguages.CUDA):
        compiled = [solution for solution in SOLUTIONS if solution.spec.language is language]
        kinds = {(solution.spec.binding, solution.spec.declared_style) for solution in compiled}
        assert kinds == {(binding, style) for binding in SupportedBindings for style in (True, False)}
        assert op_types_of(compiled) == {"gemm", "rmsnorm", "rope", "gqa_paged"}
        assert any("/" in source.path for solution in compiled for source in solution.sources)
    with_flashinfer = [solution for solution in SOLUTIONS if "flashinfer" in solution.spec.dependencies]
    assert op_types_of(with_flashinfer) == {"rmsnorm", "sampling", "rope", "gqa_paged", "gqa_ragged", "mla_paged"}


def op_types_of(solutions: list[Solution]) -> set[str]:
    return {BUNDLED.definitions[solution.definition].op_type for solution in solutions}


def test_each_wrong_solution_has_an_expected_status() -> None:
    names = {solution.name for group in WRONG_SET.solutions.values() for solution in group}
    assert set(EXPECTED) == names
    assert {EvaluationStatus(entry["status"]) for entry in EXPECTED.values()} == set(EvaluationStatus)


@pytest.mark.parametrize("op_type", sorted(OP_TYPES))
def test_an_op_type_has_five_mutants_or_more_and_the_workloads_that_show_them(op_type: str) -> None:
    definitions = [name for name, definition in BUNDLED.definitions.items() if definition.op_type == op_type]
    mutants = [s for name in definitions for s in WRONG_SET.solutions.get(name, []) if s.author == "mutant"]
    assert len(mutants) >= 5
    for mutant in mutants:
        uuids = [trace.workload.uuid for trace in BUNDLED.workloads[mutant.definition]]
        for prefix in EXPECTED[mutant.name].get("seen_in", []):
            assert sum(uuid.startswith(prefix) for uuid in uuids) == 1, f"{mutant.name}: {prefix}"


def test_the_wrong_ones_lie_over_the_set() -> None:
    together = TraceSet.merge([BUNDLED, WRONG_SET])
    wrong = [solution for group in together.solutions.values() for solution in group if solution.author == "wrong"]
    assert together.issues == []
    assert len(wrong) >= 20
    assert {solution.definition for solution in wrong} <= set(BUNDLED.definitions)
