"""The golden tests import public names only, so that a rewrite of the inside leaves them as they are.

Spec: docs/migration.md ("Names"), docs/evaluators.md, docs/engine.md, docs/serve.md: the modules that documents name.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.golden.promised.test_golden_models import NAMES

FOLDER = Path(__file__).parents[1]
FILES = sorted(FOLDER.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_golden_file_imports_public_names_only(path):
    for node in ast.walk(ast.parse(path.read_text())):
        modules = [node.module] if isinstance(node, ast.ImportFrom) else []
        modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for module in filter(None, modules):
            if module.partition(".")[0] in ("flashinfer_bench", "tests"):
                assert module in NAMES or module.startswith("tests.golden")
