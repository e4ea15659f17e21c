"""What an installed copy of the package and its source distribution hold: all that a checkout has."""

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILD = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
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
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    declared = settings["tool"]["setuptools"]["package-data"]
    installed = {
        path.relative_to(ROOT).as_posix()
        for name, patterns in declared.items()
        for p in patterns
        for path in ROOT.joinpath(*name.split(".")).glob(p)
    }
    data = {line for line in tracked("flashinfer_bench") if not line.endswith(".py")}
    assert data
    assert data == installed


def test_the_source_distribution_holds_what_a_checkout_does_and_no_results(tmp_path):
    checkout, names = tmp_path / "checkout", tracked()
    for name in names:
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, checkout / name)
    for name in LEFT_BY_RUNS:
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).touch()
    subprocess.run([sys.executable, "-c", BUILD, str(tmp_path)], cwd=checkout, check=True, capture_output=True)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        held = {name.partition("/")[2] for name in archive.getnames() if archive.getmember(name).isfile()}
    made = {name for name in held if ".egg-info/" in name} | {"PKG-INFO", "setup.cfg"}
    assert held - made == names - {*OF_THE_CHECKOUT}
