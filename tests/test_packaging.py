"""What an installed copy of the package holds: all that a checkout has."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "flashinfer_bench"


def test_every_data_file_of_the_package_is_installed_with_it():
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 reads TOML")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    declared = settings["tool"]["setuptools"]["package-data"]
    installed = {
        path
        for name, patterns in declared.items()
        for p in patterns
        for path in ROOT.joinpath(*name.split(".")).glob(p)
    }
    listed = subprocess.run(["git", "ls-files", PACKAGE], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    data = {ROOT / line for line in listed.stdout.splitlines() if not line.endswith(".py")}
    assert data
    assert data == installed
