"""The house rules of the package: small folders, one meaning for a class name, few parameters, imports that work."""

import ast
import importlib
import re
from collections import defaultdict

import pytest

import flashinfer_bench.agents
import flashinfer_bench.bench.evaluators
import flashinfer_bench.data
from tests.conftest import CHECKOUT

PACKAGE = CHECKOUT / "flashinfer_bench"
MOST_ENTRIES = 20
MOST_PARAMETERS = 5
EXEMPT = re.compile(
    r"Evaluator\.(build_baseline|check_correctness|eval_performance)$"
    r"|^bench/resident/engine\.py Engine\.submit$"
    r"|^testing/gpu_time\.py bench_gpu_time$"
    r"|^routines/code/"
    r"|^agents/(packing|tools)\.py (pack_solution_from_files|flashinfer_bench_run_\w+)$"
)
"""Documented interfaces: the methods of an evaluator, `bench_gpu_time`, what scripts and models call by the names of
their parameters. Code that is copied into solutions: its parameters are the inputs of a definition.
"""
PLACES = {
    "flashinfer_bench.bench": ["Benchmark", "BenchmarkConfig", "EvalConfig", "ResolvedEvalConfig"],
    "flashinfer_bench.bench.evaluators": flashinfer_bench.bench.evaluators.__all__,
    "flashinfer_bench.bench.evaluators.default": ["DefaultEvaluator"],
    "flashinfer_bench.bench.evaluators.evaluator": ["Accepted", "Evaluator", "Rejected"],
    "flashinfer_bench.bench.evaluators.registry": ["_EVALUATORS"],
    "flashinfer_bench.bench.evaluators.utils": ["allocate_outputs", "normalize_result"],
    "flashinfer_bench.bench.evaluators.verdict": ["check_form"],
    "flashinfer_bench.agents": flashinfer_bench.agents.__all__,
    "flashinfer_bench.bench.timing": ["time_runnable"],
    "flashinfer_bench.bench.utils": ["gen_inputs", "load_safetensors"],
    "flashinfer_bench.cli.main": ["cli"],
    "flashinfer_bench.compile": ["Builder", "BuilderRegistry", "BuildError", "Runnable", "RunnableMetadata"],
    "flashinfer_bench.data": flashinfer_bench.data.__all__,
    "flashinfer_bench.data.definition": ["DType"],
    "flashinfer_bench.data.json_utils": ["load_json_file", "load_jsonl_file", "save_json_file", "save_jsonl_file"],
    "flashinfer_bench.data.trace": ["Correctness", "Environment", "Evaluation", "EvaluationStatus", "Performance"],
    "flashinfer_bench.env": ["get_fib_cache_path", "get_fib_dataset_path"],
    "flashinfer_bench.testing": ["bench_gpu_time"],
}
"""Module to the names that users import from it."""
SPECIFIED = CHECKOUT.parent / "shared" / "spec"
"""Documents of users, where they lie beside the checkout."""
DOCUMENTS = sorted([CHECKOUT / "README.md", *(CHECKOUT / "docs").rglob("*.md"), *SPECIFIED.glob("*.md")])
FROM = re.compile(r"\bfrom (flashinfer_bench[\w.]*) import (\([^)]*\)|[^\n`;#]+)")
WHOLE = re.compile(r"(?<!\w )\bimport (flashinfer_bench(?:\.\w+)*)")


def test_no_two_files_of_tests_share_a_name():
    """Folders of tests are no packages, so pytest imports their files by name alone, and refuses a second one."""
    seen = defaultdict(list)
    for path in (CHECKOUT / "tests").rglob("test_*.py"):
        seen[path.name].append(path.parent.name)
    assert {name: folders for name, folders in seen.items() if len(folders) > 1} == {}


@pytest.fixture(scope="module")
def trees():
    """The syntax tree of every module, by its path in the package."""
    return {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_bytes()) for path in PACKAGE.rglob("*.py")}


def list_functions(node, outer=""):
    """Yield every function with its name, which begins with those of the classes and functions around it."""
    for child in ast.iter_child_nodes(node):
        is_function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
        name = f"{outer}{child.name}" if is_function or isinstance(child, ast.ClassDef) else ""
        if is_function:
            yield name, child
        yield from list_functions(child, f"{name}." if name else outer)


def count_parameters(function):
    """Count a function's parameters without self and cls."""
    given = function.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return sum(one is not None and one.arg not in ("self", "cls") for one in every)


def is_triton_kernel(function):
    return any("triton.jit" in ast.unparse(decorator) for decorator in function.decorator_list)


def read_imports(text):
    """Return module → names of every import of the package that a document writes down."""
    found = {module: [] for module in WHOLE.findall(text)}
    for module, names in FROM.findall(text):
        found.setdefault(module, []).extend(re.findall(r"(?:^|,)\s*(\w+)", names.strip("()")))
    return found


def test_no_folder_shows_more_entries_than_a_reader_takes_in():
    folders = [PACKAGE, *(path for path in PACKAGE.rglob("*") if path.is_dir() and path.name != "__pycache__")]
    entries = {
        str(folder): sum(path.name not in ("__pycache__", "py.typed") for path in folder.iterdir())
        for folder in folders
    }
    assert {folder: count for folder, count in entries.items() if count > MOST_ENTRIES} == {}


def test_no_class_name_stands_for_two_things(trees):
    places = defaultdict(list)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_function_takes_more_than_five_parameters(trees):
    found = [
        f"{path} {name}"
        for path, tree in trees.items()
        for name, function in list_functions(tree)
        if count_parameters(function) > MOST_PARAMETERS
        and not is_triton_kernel(function)
        and not EXEMPT.search(f"{path} {name}")
    ]
    assert found == []


def test_reading_imports_finds_every_form():
    inline = "`from flashinfer_bench.a import b`, `import flashinfer_bench.c` and `from torch import nn`"
    block = "from flashinfer_bench import (\n    d as e,\n    f,\n)\nfrom flashinfer_bench.a import g, h\n"
    assert read_imports(inline) == {"flashinfer_bench.a": ["b"], "flashinfer_bench.c": []}
    assert read_imports(block) == {"flashinfer_bench": ["d", "f"], "flashinfer_bench.a": ["g", "h"]}


@pytest.mark.cpu
@pytest.mark.parametrize("places", [PLACES, *DOCUMENTS], ids=lambda given: getattr(given, "name", "list"))
def test_every_import_that_a_document_names_works(places):
    for module, names in (places if isinstance(places, dict) else read_imports(places.read_text())).items():
        importlib.import_module(module)
        for name in names:
            exec(f"from {module} import {name}", {})
