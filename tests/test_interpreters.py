"""Each Python from 3.10 on that lies beside this one imports what needs no torch, and runs commands that need none."""

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
IMPORT_ALL = f"""
import importlib, pkgutil, flashinfer_bench
for found in pkgutil.walk_packages(flashinfer_bench.__path__, "flashinfer_bench.", onerror=lambda name: None):
    if not found.name.endswith("__main__"):
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            assert error.name.partition(".")[0] in "{LACKING}".split(), error
"""
COMMANDS = {
    "import": ["-c", IMPORT_ALL],
    "help": ["-m", "flashinfer_bench", "--help"],
    "list": ["-m", "flashinfer_bench", "list", "--local", "flashinfer-trace"],
    "validate": ["-m", "flashinfer_bench", "validate", "--local", "flashinfer-trace"],
}


def find_interpreter(version):
    """Return a Python of a version, on the path or where pyenv keeps it; None where there is none."""
    kept = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    named = [shutil.which(f"python{version}"), *map(str, kept)]
    for path in filter(None, named):
        reported = subprocess.run(
            [path, "-c", "import venv"], capture_output=True, check=False
        )  # pyenv's shims may not work
        if reported.returncode == 0:
            return path
    return None


@pytest.fixture(scope="module", params=VERSIONS)
def python(request):
    """An interpreter of another version, with the packages that need no torch."""
    found = find_interpreter(request.param)
    if found is None:
        pytest.skip(f"there is no Python {request.param} beside this one")
    folder = MADE / request.param
    try:
        if not (folder / "ready").exists():
            subprocess.run([found, "-m", "venv", "--clear", "--without-pip", folder], check=True)
            fetch = ["--python", folder / "bin/python", "install", "--quiet", "--no-compile", *PURE.split()]
            subprocess.run([sys.executable, "-m", "pip", *fetch], check=True)
            (folder / "ready").touch()
    except subprocess.CalledProcessError as error:
        if os.environ.get(IS_REQUIRED):
            raise
        pytest.skip(f"the packages for Python {request.param} cannot be fetched: {error}")
    return folder / "bin/python"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_what_needs_no_torch_works_on_each_python_from_3_10_on(python, arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [python, "-W", "error", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
