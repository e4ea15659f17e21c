"""The oldest and the newest Python beside this one import all modules that need no torch, and run commands."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PURE = "pydantic msgspec pyyaml rich numpy safetensors packaging typing-extensions nvidia-ml-py"
MADE = ROOT / ".venv" / "beside"
"""Environments of the other interpreters; the packages in them are fetched once."""
IS_REQUIRED = "FIB_TEST_INTERPRETERS"
"""With this variable an interpreter whose packages cannot be fetched is a failure, and no skip."""
VERSIONS = [f"3.{minor}" for minor in range(10, 16) if minor != sys.version_info.minor]
LACKING = "torch triton ray jinja2 flashinfer fastapi uvicorn httpx cupti pandas pyarrow"
SCRIPT = f"""
import importlib, pkgutil, flashinfer_bench
from flashinfer_bench.cli.main import cli
for words in (["list"], ["validate"]):
    assert cli([*words, "--local", "flashinfer-trace"]) == 0, words
for found in pkgutil.walk_packages(flashinfer_bench.__path__, "flashinfer_bench.", onerror=lambda name: None):
    if not found.name.endswith("__main__"):
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            assert error.name.partition(".")[0] in "{LACKING}".split(), error
cli(["--help"])
"""


def find_interpreter(version):
    """Return a Python of a version, on the path or in pyenv's folder; None if there is none."""
    kept = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for path in filter(None, [*map(str, kept), shutil.which(f"python{version}")]):
        # A shim of pyenv may not work.
        if subprocess.run([path, "-c", "import venv"], capture_output=True, check=False).returncode == 0:
            return path
    return None


def make_environment(version, interpreter):
    """Return an interpreter of a version, with the packages that need no torch."""
    folder = MADE / version
    if not (folder / "ready").exists():
        subprocess.run([interpreter, "-m", "venv", "--clear", "--without-pip", folder], check=True)
        fetch = ["--python", folder / "bin/python", "install", "--quiet", "--no-compile", "--retries", "8"]
        subprocess.run([sys.executable, "-m", "pip", *fetch, *PURE.split()], check=True)
        (folder / "ready").touch()
    return folder / "bin/python"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("at", [0, -1], ids=["oldest", "newest"])
def test_what_needs_no_torch_works_on_other_pythons(at):
    found = [(version, path) for version in VERSIONS if (path := find_interpreter(version))]
    if not found:
        pytest.skip("there is no other Python beside this one")
    try:
        python = make_environment(*found[at])
    except subprocess.CalledProcessError as error:
        if os.environ.get(IS_REQUIRED):
            raise
        pytest.skip(f"the packages for Python {found[at][0]} cannot be fetched: {error}")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [python, "-W", "error", "-c", SCRIPT]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, "commands:" in done.stdout) == (0, True), done.stderr[-3000:]
