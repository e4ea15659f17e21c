"""What workers read: the interpreter and the toolchain, never what lies beside them."""

import os
import sys
from pathlib import Path

import pytest

from flashinfer_bench.bench.runner.workers import reach
from flashinfer_bench.bench.runner.workers.reach import carve, find_readable, keep_reachable
from tests.conftest import CHECKOUT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="confinement is Linux's")


def is_readable(path, readable):
    return any(Path(os.path.realpath(path)).is_relative_to(folder) for folder in readable)


def test_the_interpreter_and_this_package_are_read_and_what_lies_beside_is_not():
    readable = find_readable({"PATH": "/usr/bin"}, import_path=[str(CHECKOUT), ""])
    assert all(is_readable(path, readable) for path in (sys.executable, os.__file__, pytest.__file__, reach.__file__))
    beside = ("tests", "flashinfer-trace", "pyproject.toml")
    assert not any(is_readable(CHECKOUT / name, readable) for name in beside)
    assert not any(
        is_readable(path, readable) for path in ("/root", "/home", "/tmp", "/run", "/etc/shadow", "/dev/shm")
    )


def test_of_a_folder_on_the_import_path_only_modules_are_read(tmp_path):
    for name in ("package/__init__.py", "module.py", "data/secret.txt", ".git/config"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    readable = find_readable({}, import_path=[str(tmp_path)])
    assert is_readable(tmp_path / "package/__init__.py", readable)
    assert is_readable(tmp_path / "module.py", readable)
    assert not is_readable(tmp_path / "data/secret.txt", readable)
    assert not is_readable(tmp_path / ".git/config", readable)


def test_a_folder_that_packages_are_installed_into_is_read_whole(tmp_path):
    for name in ("one-1.0.dist-info/METADATA", "namespace/part.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("")
    assert is_readable(tmp_path / "namespace/part.py", find_readable({}, import_path=[str(tmp_path)]))


def test_folders_that_variables_name_are_read_but_no_whole_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("home/cuda/bin", "home/cuda/include", "home/lib"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "home/cuda/bin/nvcc").write_text("")
    (tmp_path / "home/cuda/include/cuda.h").write_text("#define CUDA_VERSION 13000\n")
    home = tmp_path / "home"
    named = {"CUDA_HOME": str(home / "cuda"), "LD_LIBRARY_PATH": f"{home / 'lib'}:{home}:{tmp_path}:/"}
    readable = find_readable(named, import_path=[])
    assert is_readable(home / "cuda/bin/nvcc", readable)
    assert is_readable(home / "lib", readable)
    assert not {str(home), str(tmp_path), "/"} & set(readable)


def test_a_program_that_a_variable_names_is_read_and_its_home_is_not(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    ptxas, other = tmp_path / "home/tools/ptxas", tmp_path / "home/tools/other"
    ptxas.parent.mkdir(parents=True)
    for path in (ptxas, other):
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
    readable = find_readable({"TRITON_PTXAS_PATH": str(ptxas), "TRITON_CACHE_PATH": str(other)}, import_path=[])
    assert is_readable(ptxas, readable)
    assert not is_readable(other, readable)


def test_what_is_hidden_is_left_out_of_a_folder_that_is_read(tmp_path):
    for name in ("a/b/secret", "a/open", "c"):
        (tmp_path / name).mkdir(parents=True)
    assert carve(str(tmp_path), [str(tmp_path / "a/b/secret"), "/elsewhere"]) == [
        str(tmp_path / "a/open"),
        str(tmp_path / "c"),
    ]
    assert carve(str(tmp_path / "a/b/secret"), [str(tmp_path / "a")]) == []


def test_programs_are_looked_for_where_they_can_be_started():
    assert (
        keep_reachable("/root/bin:/usr/bin:/home/x/.local/bin:/opt/x/bin", ["/usr", "/opt/x"]) == "/usr/bin:/opt/x/bin"
    )
