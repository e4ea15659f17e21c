"""The public faces: lazy names, `__all__` and what type checkers see agree, and importing is cheap."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = [
    "flashinfer_bench",
    "flashinfer_bench.bench",
    "flashinfer_bench.bench.evaluators",
    "flashinfer_bench.data",
    "flashinfer_bench.testing",
]
HEAVY = ["torch", "triton", "numpy", "pydantic"]


@pytest.mark.parametrize("name", PACKAGES)
def test_every_name_can_be_had(name):
    package = importlib.import_module(name)
    for public in package.__all__:
        assert getattr(package, public) is not None
    assert dir(package) == sorted(package.__all__)


@pytest.mark.parametrize("name", PACKAGES)
def test_type_checkers_see_the_same_names(name):
    package = importlib.import_module(name)
    tree = ast.parse(Path(package.__file__).read_text())
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name for node in guarded.body for alias in node.names}
    assert seen == set(package.__all__) - {"__version__", "__version_tuple__"}


@pytest.mark.parametrize("name", PACKAGES)
def test_another_name_is_an_attribute_error(name):
    package = importlib.import_module(name)
    with pytest.raises(AttributeError, match="Benchmrak"):
        _ = package.Benchmrak
    with pytest.raises(ImportError):
        exec(f"from {name} import Benchmrak")


@pytest.mark.parametrize("name", PACKAGES)
def test_importing_a_package_imports_nothing_heavy(name):
    code = f"import sys, {name}; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=200)
    assert done.stdout.strip() == "[]"


def test_loading_a_set_imports_no_torch(tmp_path):
    code = (
        "import sys; from flashinfer_bench.data import TraceSet; TraceSet.from_path(sys.argv[1]).summary();"
        "import flashinfer_bench.data.store.blobs, flashinfer_bench.data.store.trace_writer;"
        "import flashinfer_bench.data.json_utils;"
        "print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200)
    assert done.stdout.strip() == "False"
