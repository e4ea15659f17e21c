"""The public faces: lazy names, `__all__`, type checkers and documents agree, and importing is cheap."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import CHECKOUT

PACKAGES = [
    "flashinfer_bench",
    "flashinfer_bench.bench",
    "flashinfer_bench.bench.evaluators",
    "flashinfer_bench.data",
    "flashinfer_bench.testing",
]
HEAVY = ["torch", "triton", "numpy", "pydantic"]
LOADING = """
import sys
from flashinfer_bench.data import TraceSet
TraceSet.from_path(sys.argv[1]).summary()
import flashinfer_bench.data.store.blobs, flashinfer_bench.data.store.jsonl, flashinfer_bench.data.json_utils
print([name for name in ["torch"] if name in sys.modules])
"""
DOCUMENTS = sorted([CHECKOUT / "README.md", *(CHECKOUT / "docs").rglob("*.md")])
FROM = re.compile(r"\bfrom (flashinfer_bench[\w.]*) import (\([^)]*\)|[^\n`;#]+)")
WHOLE = re.compile(r"(?<!\w )\bimport (flashinfer_bench(?:\.\w+)*)")


@pytest.mark.parametrize("name", PACKAGES)
def test_every_name_can_be_had_and_type_checkers_see_the_same(name):
    package = importlib.import_module(name)
    for public in package.__all__:
        assert getattr(package, public) is not None
    assert dir(package) == sorted(package.__all__)
    guarded = next(node for node in ast.parse(Path(package.__file__).read_text()).body if isinstance(node, ast.If))
    seen = {alias.name for node in guarded.body for alias in node.names}
    assert seen == set(package.__all__) - {"__version__", "__version_tuple__"}
    with pytest.raises(AttributeError, match="Benchmrak"):
        _ = package.Benchmrak


@pytest.mark.parametrize(
    "code",
    [*(f"import sys, {name}; print([one for one in {HEAVY} if one in sys.modules])" for name in PACKAGES), LOADING],
    ids=[*PACKAGES, "loading a set"],
)
def test_nothing_heavy_is_imported(tmp_path, code):
    command = [sys.executable, "-c", code, str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, check=True, timeout=200).stdout.strip() == "[]"


def test_no_two_files_of_tests_share_a_name():
    """Folders of tests are no packages, so pytest imports their files by name alone, and refuses a second one."""
    counts = Counter(path.name for path in (CHECKOUT / "tests").rglob("test_*.py"))
    assert [name for name, count in counts.items() if count > 1] == []


def read_imports(text):
    """Return module → names of every import of the package that a document writes down."""
    found = {module: [] for module in WHOLE.findall(text)}
    for module, names in FROM.findall(text):
        found.setdefault(module, []).extend(re.findall(r"(?:^|,)\s*(\w+)", names.strip("()")))
    return found


def test_reading_imports_finds_every_form():
    text = "`from flashinfer_bench.a import b`, `import flashinfer_bench.c` and `from torch import nn`\n"
    text += "from flashinfer_bench import (\n    d as e,\n    f,\n)\nfrom flashinfer_bench.a import g, h\n"
    assert read_imports(text) == {
        "flashinfer_bench.a": ["b", "g", "h"], "flashinfer_bench.c": [], "flashinfer_bench": ["d", "f"]}  # fmt: skip


@pytest.mark.cpu
@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.name)
def test_every_import_that_a_document_names_works(page):
    for module, names in read_imports(page.read_text()).items():
        importlib.import_module(module)
        for name in names:
            exec(f"from {module} import {name}", {})
