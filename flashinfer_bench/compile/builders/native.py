"""C++ and CUDA solutions: each .cpp and .cu is compiled to an object, and all objects are linked to a shared library.

The compilers run in the folder of the sources, which is on the include path. `cuda` uses the CUDA toolkit, `cpp` does
not. The binding decides how Python calls the library: `Binding` in `toolchain.py` has its additions to compiling and
linking.
"""

from __future__ import annotations

import hashlib
import os
import re
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

from flashinfer_bench.compile.artifact import (
    HEADERS,
    LINK,
    PRODUCTS,
    READ_LIST,
    BuildFailure,
    BuildRecipe,
    BuildStep,
    BuildTarget,
    Stages,
)
from flashinfer_bench.compile.flags import check_flags
from flashinfer_bench.compile.requirements import cutlass_includes, toolkit_includes, wants_cutlass
from flashinfer_bench.compile.toolchain import MODULE, Binding, Compiler, CudaToolkit, Toolchain
from flashinfer_bench.data import Solution, SupportedBindings
from flashinfer_bench.data.entry import find_binding, registers_operators
from flashinfer_bench.data.solution import CompileOptions

LIBRARY: Final = f"{MODULE}.so"
READABLE_VARIABLE: Final = "FIB_BUILD_READABLE"
"""Variable with further folders that compilers may read, for a toolchain in an unusual place."""
HOST_SUFFIXES: Final = (".cpp", ".cc", ".cxx", ".c++")
DEVICE_SUFFIX: Final = ".cu"
UNIT_NAME: Final = re.compile(r"[A-Za-z0-9_][\w.+=@\-]*(/[A-Za-z0-9_][\w.+=@\-]*)*")
"""Names of files to compile. Other characters are refused, because nvcc hands names to a shell."""
DEVICE_LINK_FLAGS: Final = frozenset({"-rdc=true", "--rdc=true", "--relocatable-device-code=true"})
"""Flags of nvcc that require a separate link step for device code."""
GCC_FLAGS: Final = ("-fmax-errors=20", "-fdiagnostics-color=never")
"""Flags of g++ that keep logs short."""
SECONDS: Final = {"tvm-ffi": 4.0, "torch": 25.0, "cuda": 10.0, "cutlass": 40.0}
"""Guessed seconds of compiling. Each file adds the time of its binding. Each .cu file also adds "cuda", and a solution
with CUTLASS adds "cutlass" once.

The guess decides only the order of builds."""
SECONDS_A_BYTE: Final = 1e-4
SPACE: Final = rb"\s|//[^\n]*\n|/\*(?:[^*]|\*(?!/))*\*/"
"""A character of white space, or a comment."""
HOST_PROBE: Final = b"#include <vector>\nint probe(int x) { return std::vector<int>(x).size(); }\n"
DEVICE_PROBE: Final = b"#include <cuda_runtime.h>\n__global__ void kernel() {}\nvoid probe() { kernel<<<1, 1>>>(); }\n"
"""Sources that every working compiler accepts. If a probe fails, the machine is at fault and not the solution."""


@dataclass(frozen=True)
class Commands:
    """Makes the commands for one solution."""

    cxx: Compiler
    cuda: CudaToolkit | None
    binding: Binding
    flags: CompileOptions
    includes: tuple[Path, ...]
    """Folders with the headers of libraries."""
    target: BuildTarget
    packages: tuple[Path, ...]
    """NVIDIA's pip packages, for libraries that the toolkit lacks."""

    @property
    def gcc_flags(self) -> tuple[str, ...]:
        """Flags of the binding for g++; empty for clang."""
        return () if self._is_clang else self.binding.gcc_flags

    @property
    def can_precompile(self) -> bool:
        """Whether this compiler uses a precompiled main header. clang finds none in an include folder."""
        return self.binding.kind == "torch" and not self._is_clang

    @property
    def _is_clang(self) -> bool:
        return "clang" in self.cxx.path.resolve().name

    @property
    def _links_device_code(self) -> bool:
        return self.cuda is not None and not DEVICE_LINK_FLAGS.isdisjoint(self.flags.cuda_cflags)

    def stages(self, units: Sequence[str]) -> Stages:
        """Return the commands that make the objects, link relocatable device code, and link the library."""
        objects = [f"../obj/{index}.o" for index in range(len(units))]
        steps = []
        for unit, made in zip(units, objects, strict=True):
            command = self._device() if unit.endswith(DEVICE_SUFFIX) else self.host()
            argv = (*command, "-MD", "-MF", f"{made.removesuffix('.o')}.d", "-c", unit, "-o", made)
            steps.append(BuildStep(f"compile {unit}", argv))
        stages = [tuple(steps)]
        if self._links_device_code:
            command = [*self._nvcc(), "-Xcompiler", "-fPIC", *self._architectures(), "-dlink", *objects]
            objects = [*objects, "../obj/device.o"]
            stages.append((BuildStep("link device code", (*command, "-o", objects[-1])),))
        return (*stages, (BuildStep(LINK, (*self._link(objects), "-o", f"{PRODUCTS}/{LIBRARY}")),))

    def host(self) -> list[str]:
        """Return the command that compiles C++, without its input and output."""
        own = ["-O3", f"-std=c++{self.binding.standard}", "-fPIC", *(() if self._is_clang else GCC_FLAGS)]
        headers = ["-isystem", HEADERS] if self.can_precompile else []
        command = [str(self.cxx.path), *own, *self.gcc_flags, *self.binding.macros, *self.flags.cflags, "-I."]
        return [*command, *headers, *_search(self.includes)]

    def _device(self) -> list[str]:
        given = self.flags.cuda_cflags
        own = ["--expt-relaxed-constexpr"]
        own += [] if _has(given, "-O") else ["-O3"]
        own += [] if _has(given, "-std", "--std") else [f"-std=c++{self.binding.standard}"]
        host = [*([] if "-fPIC" in given else ["-fPIC"]), *self.gcc_flags]
        own += [word for flag in host for word in ("-Xcompiler", flag)]
        own += [*self.binding.macros, *self.binding.nvcc_macros, *self._architectures()]
        return [*self._nvcc(), *own, *given, "-I.", *_search(self.includes)]

    def _nvcc(self) -> list[str]:
        assert self.cuda is not None  # there is a .cu file
        return [str(self.cuda.nvcc.path), "-ccbin", str(self.cxx.path)]

    def _architectures(self) -> list[str]:
        """Return flags for the architectures of the target; none if the solution's own flags name architectures."""
        starts = ("-gencode", "--generate-code", "-arch", "--gpu-arch")
        chosen = [flag for flag in self.flags.cuda_cflags if flag.startswith(starts)]
        if chosen and not any(flag.endswith("=native") for flag in chosen):
            return []
        return [f"-gencode=arch=compute_{name},code=sm_{name}" for name in self.target.architectures]

    def _link(self, objects: Sequence[str]) -> list[str]:
        cuda, flags, binding = self.cuda, self.flags, self.binding
        folders = cuda.library_folders() if cuda is not None else []
        has_driver = any((folder / "libcuda.so").exists() for folder in folders)
        command = [str(self.cxx.path), "-shared", "-fPIC", *objects]
        command += [self._locate(flag, folders) for flag in flags.ld_flags]
        command += ["-fopenmp"] if "-fopenmp" in (*flags.cflags, *flags.cuda_cflags, *flags.ld_flags) else []
        command += [f"-L{binding.home / 'lib'}", *binding.libraries]
        if cuda is not None:
            command += binding.cuda_libraries
            command += [f"-L{folder}" for folder in folders]
            command += ["-lcudart", f"-Wl,-rpath,{cuda.home / 'lib64'}"]
            command += ["-lcudadevrt"] if self._links_device_code else []
            command += ["-Wl,--as-needed", "-lcuda"] if has_driver else []
        # torch's own libraries lack symbols that the Python process provides.
        return [*command, *(["-Wl,-z,defs"] if binding.kind == "tvm-ffi" and (has_driver or cuda is None) else [])]

    def _locate(self, flag: str, folders: Sequence[Path]) -> str:
        """Return the linker's argument for a flag. If only a pip package has the library, the argument is the library's
        path."""
        name = f"lib{flag.removeprefix('-l')}.so"
        if not flag.startswith("-l") or any((folder / name).exists() for folder in folders):
            return flag
        packaged = (path for package in self.packages for path in sorted((package / "lib").glob(f"{name}*")))
        return str(next(packaged, flag))


def _has(flags: Sequence[str], *starts: str) -> bool:
    return any(flag.startswith(starts) for flag in flags)


def _search(folders: Iterable[Path]) -> list[str]:
    return [word for folder in folders for word in ("-isystem", str(folder))]


def make_recipe(solution: Solution, toolchain: Toolchain, target: BuildTarget) -> BuildRecipe:
    """Return the recipe of a cpp or cuda solution; `why_not_buildable` must have found the toolchain before.

    Raises:
        BuildFailure: the solution requests something impossible or forbidden.
    """
    record = solution.spec.language.record
    cxx, cuda = toolchain.cxx, toolchain.cuda if record.requires_cuda else None
    assert cxx is not None  # checked by `why_not_buildable`
    sources = {source.path: source.content.encode() for source in solution.sources}
    units = choose_units(list(sources), is_cuda=cuda is not None)
    symbol = solution.get_entry_symbol()
    if not symbol.isidentifier() or not symbol.isascii():
        raise BuildFailure(f"the entry point names {symbol!r}, which is no name of an exported function")
    result = find_binding(solution)
    binding = toolchain.tvm_ffi if result.binding is SupportedBindings.TVM_FFI else toolchain.torch
    assert binding is not None  # checked by `why_not_buildable`
    python = [toolchain.python_include] if binding.kind == "torch" and toolchain.python_include is not None else []
    packages = toolchain.nvidia_packages if cuda else ()
    dependencies = [*record.dependencies, *solution.spec.dependencies]
    libraries = [*binding.includes, *python, *(cutlass_includes() if wants_cutlass(dependencies) else [])]
    readable = [binding.home, *cxx.files()]
    if cuda is not None:
        libraries += toolkit_includes(cuda, packages)
        readable += [cuda.home, *cuda.library_folders(), *packages]
    readable += [Path(folder) for folder in os.environ.get(READABLE_VARIABLE, "").split(os.pathsep) if folder]
    may_read = tuple(dict.fromkeys([*readable, *libraries]))
    flags = check_flags(solution.spec.compile_options, may_read)
    commands = Commands(cxx, cuda, binding, flags, tuple(libraries), target, packages)
    stages = commands.stages(units)
    probe_unit, probe_content = ("probe.cu", DEVICE_PROBE) if cuda else ("probe.cpp", HOST_PROBE)
    hosts = [sources[unit] for unit in units if not unit.endswith(DEVICE_SUFFIX)]
    takes_header = commands.can_precompile and any(begins_with(text, binding.main_header) for text in hosts)
    return BuildRecipe(
        kind=binding.kind,
        entry=LIBRARY,
        symbol=symbol,
        sources=sources,
        made_from=_made_from(commands, sources, stages),
        products=(LIBRARY,),
        stages=stages,
        readable=may_read,
        probe=replace(commands, flags=CompileOptions()).stages([probe_unit]),
        probe_sources={probe_unit: probe_content},
        main_header=binding.main_header,
        needs_symbol=None if registers_operators(solution) else binding.exports.format(symbol),
        lacks_symbol=binding.lacks.format(symbol),
        note=result.note,
        toolkit=cuda.version if cuda else None,
        chooses_architecture=any("arch" in flag or "gencode" in flag for flag in flags.cuda_cflags),
        header=_header_recipe(commands, may_read) if takes_header else None,
        guessed_seconds=_guess_seconds(binding, units, b"".join(sources.values())),
    )


def choose_units(paths: Sequence[str], *, is_cuda: bool) -> list[str]:
    """Return the sources that are compiled, each to one object. All other sources are headers.

    Raises:
        BuildFailure: no source can be compiled, a source is CUDA code in a cpp solution, a name is forbidden, or a
            precompiled header is among the sources.
    """
    units = [path for path in paths if PurePosixPath(path).suffix in (*HOST_SUFFIXES, DEVICE_SUFFIX)]
    if not units:
        raise BuildFailure(f"there is no .cpp or .cu file to compile; the sources are: {', '.join(paths)}")
    for path in paths:
        if any(part.endswith(".gch") for part in PurePosixPath(path).parts):
            raise BuildFailure(f"{path}: precompiled headers are no sources; leave it out")
    for path in units:
        if not UNIT_NAME.fullmatch(path):
            raise BuildFailure(f"{path!r}: names of files to compile consist of letters, digits and _ . + = @ -")
        if path.endswith(DEVICE_SUFFIX) and not is_cuda:
            raise BuildFailure(f"{path} is CUDA code, and the solution's language is cpp; its language should be cuda")
    return units


def begins_with(source: bytes, header: str) -> bool:
    """Return whether a source begins, after comments, with the include of a header."""
    name = re.escape(header.encode())
    return re.match(rb"(?:%b)*#[ \t]*include[ \t]*(?:<%b>|\"%b\")" % (SPACE, name, name), source) is not None


def _header_recipe(commands: Commands, readable: tuple[Path, ...]) -> BuildRecipe:
    """Return the recipe that precompiles the main header alone, with the solution's flags except macros and folders.

    Omitting the macros is safe: g++ refuses a precompiled header if a macro that affects it differs.
    """
    header, given = commands.binding.main_header, commands.flags.cflags
    kept = [word for word in given if word.startswith("-") and not word.startswith(("-D", "-U", "-I", "-isystem"))]
    commands = replace(commands, flags=CompileOptions(cflags=kept))
    product, source = f"{header}.gch", f"{PRODUCTS}/{header}"  # files may include the header's text again
    output = ("-MD", "-MF", f"{PRODUCTS}/{READ_LIST}", "-x", "c++-header", source, "-o", f"{PRODUCTS}/{product}")
    text = {source: f"#include_next <{header}>\n".encode()}
    stages = ((BuildStep(f"precompile {header}", (*commands.host(), *output)),),)
    return BuildRecipe(
        kind="header",
        entry=product,
        symbol="",
        sources=text,
        made_from=_made_from(commands, text, stages),
        products=(product, header, READ_LIST),
        stages=stages,
        readable=readable,
    )


def _made_from(commands: Commands, sources: Mapping[str, bytes], stages: Stages) -> dict[str, Any]:
    """Return everything that decides the library: sources, commands, compilers, versions, ABI."""
    cuda, binding = commands.cuda, commands.binding
    cutlass = [folder / "cutlass" / "version.h" for folder in commands.includes]
    native = any("native" in flag for flag in (*commands.flags.cflags, *commands.flags.cuda_cflags))
    return {
        "sources": {path: hashlib.sha256(content).hexdigest() for path, content in sources.items()},
        "commands": [list(step.argv) for stage in stages for step in stage],
        "compilers": {"cxx": commands.cxx.identity, "nvcc": cuda.nvcc.identity if cuda else None},
        "versions": {
            binding.kind: binding.version,
            "cuda": list(cuda.version) if cuda else None,
            "cutlass": [hashlib.sha256(path.read_bytes()).hexdigest() for path in cutlass if path.is_file()],
        },
        "abi": sysconfig.get_config_var("SOABI") if binding.kind == "torch" else sysconfig.get_platform(),
        "processor": _processor() if native else None,
    }


def _processor() -> str:
    """Return the lines about the processor that -march=native depends on."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(sorted(set(re.findall(r"^(?:model name|flags|Features)\s*:.*$", text, re.MULTILINE))))


def _guess_seconds(binding: Binding, units: Sequence[str], text: bytes) -> float:
    heavy = SECONDS["cutlass"] if b"cutlass/" in text or b"cute/" in text else 0.0
    device = SECONDS["cuda"] * sum(unit.endswith(DEVICE_SUFFIX) for unit in units)
    return len(units) * SECONDS[binding.kind] + device + heavy + len(text) * SECONDS_A_BYTE
