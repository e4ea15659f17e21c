"""C++ and CUDA solutions that compile in no time, and compilers that only pretend."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flashinfer_bench.compile import Toolchain, find_toolchain
from flashinfer_bench.compile.toolchain import find_cxx, find_torch
from flashinfer_bench.data.solution import Solution
from tests.kit.make import make_solution

EXPORT = 'extern "C" int __tvm_ffi_run(void*, const void*, int, void*) { return 0; }\n'
"""What tvm-ffi's macro comes to, without its headers: this takes a tenth of a second to compile."""

PRETENDER = """#!/bin/sh
{action}
while [ $# -gt 0 ]; do
  case "$1" in
    -MF) printf 'x: \\n' > "$2"; shift;;
    -o) printf '\\0__tvm_ffi_run\\0' > "$2"; shift;;
  esac
  shift
done
"""


def make_native(
    name: str = "native", main: str = EXPORT, *, headers: Mapping[str, str] | None = None, **spec: Any
) -> Solution:
    """Make a C++ solution of one file, or of one and its headers."""
    language = spec.pop("language", "cpp")
    entry = "main.cu" if language == "cuda" else "main.cpp"
    sources = {entry: main, **(headers or {})}
    spec = {"entry_point": f"{entry}::run", **spec}
    return make_solution(name, language=language, sources=sources, **spec)


def pretend_compiler(folder: Path, *, action: str = "") -> Toolchain:
    """Return a toolchain whose C++ compiler is a script in a folder.

    Args:
        folder: where the script is put.
        action: lines of shell that the script runs before it writes what it was told to.
    """
    script = folder / "tools" / "g++"
    script.parent.mkdir(exist_ok=True)
    script.write_text(PRETENDER.format(action=action), encoding="utf-8")
    script.chmod(0o755)
    return toolchain_of(script)


def toolchain_of(script: Path) -> Toolchain:
    """Return this machine's toolchain with another C++ compiler."""
    return replace(find_toolchain(), cxx=find_cxx({"CXX": str(script), "PATH": os.environ["PATH"]}))


def processes_in(folder: Path) -> list[int]:
    """Return the processes whose working folder is below a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cwd"):
        try:
            place = str(path.readlink())
        except OSError:
            continue  # it ended while we looked
        if place.startswith(f"{folder}/"):
            found.append(int(path.parent.name))
    return found


def pretend_torch(folder: Path, header: str, parts: Mapping[str, str] | None = None) -> Toolchain:
    """Return a toolchain with a torch of a few lines, whose libraries are empty.

    Args:
        folder: where it is put.
        header: the text of its `torch/extension.h`.
        parts: path → text of its other headers.
    """
    home = folder / "torch"
    for path, text in {"torch/extension.h": header, **(parts or {})}.items():
        place = home / "include" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    (home / "lib").mkdir()
    for name in ("c10", "torch_cpu", "torch", "torch_python"):
        (home / "lib" / f"lib{name}.so").write_text("/* a linker script */\n", encoding="utf-8")
    return replace(find_toolchain(), torch=find_torch(home), python_include=folder)
