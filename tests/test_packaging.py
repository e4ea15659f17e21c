"""What an installed copy of the package and its source distribution hold: all that a checkout has."""

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OF_THE_CHECKOUT = (".ci/run", ".gitignore", "flashinfer-trace/wrong/.gitignore")
LEFT_BY_RUNS = ("flashinfer-trace/traces/a.jsonl", "flashinfer-trace/wrong/traces/a.jsonl", "tests/__pycache__/a.pyc")


def tracked(folder="."):
    """Return what git knows of a folder, as paths from the root; the test is skipped where there is no git."""
    listed = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode or not listed.stdout:
        pytest.skip("not a git checkout")
    return {line for line in listed.stdout.splitlines() if (ROOT / line).exists()}


def test_every_data_file_of_the_package_is_installed_with_it():
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 reads TOML")
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    installed = {
        path.relative_to(ROOT).as_posix()
        for name, patterns in declared.items()
        for pattern in patterns
        for path in ROOT.joinpath(*name.split(".")).glob(pattern)
    }
    assert {line for line in tracked("flashinfer_bench") if not line.endswith(".py")} == installed != set()


@pytest.fixture
def checkout(tmp_path):
    """Make a fresh checkout."""
    for name in tracked():
        (tmp_path / "checkout" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / "checkout" / name)
    return tmp_path / "checkout"


def build(checkout, hook):
    """Call a hook of the build backend as pip does; return what it made."""
    made = checkout.parent / "built"
    made.mkdir()
    code = f"import sys; from setuptools.build_meta import {hook} as hook; hook(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(made)], cwd=checkout, check=True, capture_output=True)
    (path,) = made.iterdir()
    return path


@pytest.mark.parametrize("hook", ["build_wheel", "build_editable"])
def test_what_pip_calls_writes_nothing_into_the_checkout(checkout, hook):
    before = {path: path.stat().st_mtime_ns for path in checkout.rglob("*")}
    build(checkout, hook)
    assert {path: path.stat().st_mtime_ns for path in checkout.rglob("*")} == before


def test_the_source_distribution_holds_what_a_checkout_does_and_no_results(checkout):
    for name in LEFT_BY_RUNS:
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).touch()
    with tarfile.open(build(checkout, "build_sdist")) as archive:
        held = {member.name.partition("/")[2] for member in archive if member.isfile()}
    made = {name for name in held if ".egg-info/" in name} | {"PKG-INFO", "setup.cfg"}
    assert held - made == tracked() - {*OF_THE_CHECKOUT}
