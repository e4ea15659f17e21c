"""The public names of the package and the imports that its documents show: each works."""

import importlib
import re
from collections import defaultdict

import pytest

import flashinfer_bench.agents
import flashinfer_bench.bench.evaluators
import flashinfer_bench.data
from tests.conftest import CHECKOUT

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


def read_imports(text):
    """Return module → names of every import of the package that a document writes down."""
    found = {module: [] for module in WHOLE.findall(text)}
    for module, names in FROM.findall(text):
        found.setdefault(module, []).extend(re.findall(r"(?:^|,)\s*(\w+)", names.strip("()")))
    return found


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
