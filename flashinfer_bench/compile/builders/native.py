"""C++ and CUDA solutions: each .cpp and .cu is compiled to an object, and all objects are linked to a shared library.

The compilers run in the folder of the sources, which is on the include path. `cuda` uses the CUDA toolkit, `cpp` does
not. The binding decides how Python reaches the library.
"""

from __future__ import annotations

import hashlib
import os
import re
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

from flashinfer_bench.compile.artifact import BuildFailure
from flashinfer_bench.compile.builders.bindings import BINDINGS, MODULE, Binding
from flashinfer_bench.compile.dependencies import cutlass_includes, wants_cutlass
from flashinfer_bench.compile.flags import Flags, check_flags
from flashinfer_bench.compile.headers import LIST, begins_with
from flashinfer_bench.compile.includes import check_directives
from flashinfer_bench.compile.recipe import HEADERS, LINK, PRODUCTS, BuildRecipe, BuildStep, BuildTarget
from flashinfer_bench.compile.toolchain import Compiler, CudaToolkit, Toolchain
from flashinfer_bench.compile.toolkit import toolkit_includes
from flashinfer_bench.data import Solution
from flashinfer_bench.data.entry import find_binding, registers_operators

READABLE_VARIABLE: Final = "FIB_BUILD_READABLE"
"""Variable with further folders that compilers may read, for a toolchain in an unusual place."""
LIBRARY: Final = f"{MODULE}.so"
HOST_SUFFIXES: Final = (".cpp", ".cc", ".cxx", ".c++")
DEVICE_SUFFIX: Final = ".cu"
UNIT_NAME: Final = re.compile(r"[A-Za-z0-9_][\w.+=@\-]*(/[A-Za-z0-9_][\w.+=@\-]*)*")
"""Names of files to compile. Other characters are refused, because nvcc hands names to a shell."""
IDENTIFIER: Final = re.compile(r"[A-Za-z_]\w*")
DEVICE_LINK_FLAGS: Final = frozenset({"-rdc=true", "--rdc=true", "--relocatable-device-code=true"})
"""Flags of nvcc after which device code needs a link of its own."""
MAX_ERRORS: Final = 20
"""g++ stops after this number of errors, so that the log stays short."""
SELDOM_COLLECTS: Final = "--param=ggc-min-expand=200"
"""g++ looks for memory to free when it has three times as much as after the last look, in place of twice: of what
torch's header takes little could be freed. It makes the same."""
SECONDS: Final = {"tvm-ffi": 4.0, "torch": 25.0, "cuda": 10.0, "cutlass": 40.0, "kilobyte": 0.1}
"""Guessed seconds of compiling: for each file the headers of its binding, and more for a .cu file, CUTLASS and length.

The guess decides the order of builds and nothing else."""
HOST_PROBE: Final = b"#include <vector>\nint probe(int x) { return std::vector<int>(x).size(); }\n"
DEVICE_PROBE: Final = b"#include <cuda_runtime.h>\n__global__ void kernel() {}\nvoid probe() { kernel<<<1, 1>>>(); }\n"
"""Sources that every working compiler accepts. Where one fails, the machine is at fault and not the solution."""


@dataclass(frozen=True)
class CommandParts:
    """The parts of which the commands for one solution are made."""

    cxx: Compiler
    cuda: CudaToolkit | None
    binding: Binding
    flags: Flags
    includes: tuple[Path, ...]
    """Folders with the headers of libraries."""
    target: BuildTarget
    packages: tuple[Path, ...]
    """NVIDIA's pip packages, for libraries that the toolkit lacks."""


def native_recipe(solution: Solution, toolchain: Toolchain, target: BuildTarget) -> BuildRecipe:
    """Return how a cpp or cuda solution is built; `why_not_buildable` has said that the toolchain is there.

    Raises:
        BuildFailure: the solution asks for something that cannot or must not be.
    """
    is_cuda = solution.spec.language.value == "cuda"
    assert toolchain.cxx is not None  # asked before
    sources = {source.path: source.content.encode() for source in solution.sources}
    units = choose_units(list(sources), is_cuda=is_cuda)
    symbol = solution.get_entry_symbol()
    if not IDENTIFIER.fullmatch(symbol):
        raise BuildFailure(f"the entry point names {symbol!r}, which is no name of an exported function")
    check_directives(sources)
    found = find_binding(solution)
    binding = BINDINGS[found.binding.value](toolchain)
    cuda = toolchain.cuda if is_cuda else None
    libraries = _library_includes(solution, toolchain, cuda)
    readable = _readable(toolchain, cuda, binding, libraries)
    parts = CommandParts(
        cxx=toolchain.cxx,
        cuda=cuda,
        binding=binding,
        flags=check_flags(solution.spec.compile_options, readable),
        includes=(*binding.includes, *libraries),
        target=target,
        packages=toolchain.nvidia_packages if is_cuda else (),
    )
    stages = make_stages(parts, units)
    probe_unit, probe_content = ("probe.cu", DEVICE_PROBE) if cuda else ("probe.cpp", HOST_PROBE)
    return BuildRecipe(
        kind=binding.kind,
        entry=LIBRARY,
        symbol=symbol,
        sources=sources,
        made_from=_made_from(parts, sources, stages, libraries),
        products=(LIBRARY,),
        stages=stages,
        readable=readable,
        probe=make_stages(replace(parts, flags=Flags()), [probe_unit]),
        probe_sources={probe_unit: probe_content},
        main_header=binding.main_header,
        needs_symbol=None if registers_operators(solution) else binding.exports(symbol),
        note=found.note,
        toolkit=cuda.version if cuda else None,
        header=_header_recipe(parts, readable) if _takes_header(parts, units, sources) else None,
        guessed_seconds=_guess_seconds(parts, units, sources),
    )


def choose_units(paths: Sequence[str], *, is_cuda: bool) -> list[str]:
    """Return the sources that are compiled to an object each; all others are headers.

    Raises:
        BuildFailure: there is none, or one that this language does not compile, or a header that is compiled already.
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


def make_stages(parts: CommandParts, units: Sequence[str]) -> tuple[tuple[BuildStep, ...], ...]:
    """Return the commands that make the objects, link device code where it is relocatable, and link the library."""
    objects = [f"../obj/{index}.o" for index in range(len(units))]
    stages = [tuple(_compile_step(parts, unit, output) for unit, output in zip(units, objects, strict=True))]
    if parts.cuda is not None and DEVICE_LINK_FLAGS.intersection(parts.flags.nvcc):
        command = [*_nvcc(parts, parts.cuda), "-Xcompiler", "-fPIC", *_architectures(parts), "-dlink", *objects]
        stages.append((BuildStep("link device code", (*command, "-o", "../obj/device.o")),))
        objects = [*objects, "../obj/device.o"]
    return (*stages, (_link_step(parts, objects),))


def _compile_step(parts: CommandParts, unit: str, output: str) -> BuildStep:
    dependencies = ("-MD", "-MF", output.removesuffix(".o") + ".d")
    is_device = unit.endswith(DEVICE_SUFFIX)
    command = _device_command(parts, parts.cuda) if is_device and parts.cuda else _host_command(parts)
    return BuildStep(f"compile {unit}", (*command, *dependencies, "-c", unit, "-o", output))


def _host_command(parts: CommandParts) -> list[str]:
    own = ["-O3", f"-std=c++{parts.binding.standard}", "-fPIC"]
    if not _is_clang(parts.cxx):
        own += [f"-fmax-errors={MAX_ERRORS}", "-fdiagnostics-color=never", *parts.binding.gcc_flags]
    headers = ["-isystem", HEADERS] if _can_precompile(parts) else []
    own += [SELDOM_COLLECTS] if _can_precompile(parts) else []
    return [str(parts.cxx.path), *own, *parts.binding.macros, *parts.flags.cxx, "-I.", *headers, *_search(parts)]


def _is_clang(cxx: Compiler) -> bool:
    return "clang" in cxx.path.resolve().name


def _can_precompile(parts: CommandParts) -> bool:
    return parts.binding.header is not None and not _is_clang(parts.cxx)  # clang takes none from an include folder


def _takes_header(parts: CommandParts, units: Sequence[str], sources: dict[str, bytes]) -> bool:
    """Tell whether a C++ file begins with the header that is worth precompiling."""
    hosts = (unit for unit in units if not unit.endswith(DEVICE_SUFFIX))
    return _can_precompile(parts) and any(begins_with(sources[unit], str(parts.binding.header)) for unit in hosts)


def _header_recipe(parts: CommandParts, readable: tuple[Path, ...]) -> BuildRecipe:
    """Return how the binding's header is precompiled: from it alone, with the solution's flags but macros and folders.

    g++ itself refuses a precompiled header where a macro differs that the header knows.
    """
    header = parts.binding.header
    assert header is not None  # asked before
    words, kept = iter(parts.flags.cxx), list[str]()
    for word in words:
        if word == "-isystem":
            next(words)
        elif not word.startswith(("-D", "-U", "-I")):
            kept.append(word)
    parts = replace(parts, flags=Flags(cxx=tuple(kept)))
    product = f"{header}.gch"
    source = f"{PRODUCTS}/{header}"  # stays beside the product, for files that include the header a second time
    command = (*_host_command(parts), "-MD", "-MF", f"{PRODUCTS}/{LIST}", "-x", "c++-header", source)
    text = {source: f"#include_next <{header}>\n".encode()}
    stages = ((BuildStep(f"precompile {header}", (*command, "-o", f"{PRODUCTS}/{product}")),),)
    return BuildRecipe(
        kind="header",
        entry=product,
        symbol="",
        sources=text,
        made_from=_made_from(parts, text, stages, parts.includes),
        products=(product, str(header), LIST),
        stages=stages,
        readable=readable,
        include_folders=tuple(str(folder) for folder in parts.includes),
    )


def _device_command(parts: CommandParts, cuda: CudaToolkit) -> list[str]:
    given = parts.flags.nvcc
    own = ["--expt-relaxed-constexpr"]
    own += [] if _has(given, "-O") else ["-O3"]
    own += [] if _has(given, "-std", "--std") else [f"-std=c++{parts.binding.standard}"]
    own += [] if "-fPIC" in given else ["-Xcompiler", "-fPIC"]
    own += [] if _is_clang(parts.cxx) else [word for flag in parts.binding.gcc_flags for word in ("-Xcompiler", flag)]
    macros = [*parts.binding.macros, *parts.binding.nvcc_macros]
    return [*_nvcc(parts, cuda), *own, *macros, *_architectures(parts), *given, "-I.", *_search(parts)]


def _nvcc(parts: CommandParts, cuda: CudaToolkit) -> list[str]:
    return [str(cuda.nvcc.path), "-ccbin", str(parts.cxx.path)]


def _architectures(parts: CommandParts) -> list[str]:
    """Return flags for the architectures of the target; none where the solution's own flags choose."""
    chosen = [flag for flag in parts.flags.nvcc if _has([flag], "-gencode", "--generate-code", "-arch", "--gpu-arch")]
    if chosen and not any(flag.endswith("=native") for flag in chosen):
        return []
    return [f"-gencode=arch=compute_{name},code=sm_{name}" for name in parts.target.architectures]


def _has(flags: Sequence[str], *starts: str) -> bool:
    return any(flag.startswith(starts) for flag in flags)


def _search(parts: CommandParts) -> list[str]:
    return [word for folder in parts.includes for word in ("-isystem", str(folder))]


def _link_step(parts: CommandParts, objects: Sequence[str]) -> BuildStep:
    command = [str(parts.cxx.path), "-shared", "-fPIC", *objects, *_resolve_libraries(parts)]
    command += ["-fopenmp"] if "-fopenmp" in (*parts.flags.cxx, *parts.flags.nvcc, *parts.flags.link) else []
    command += parts.binding.link
    whole = parts.binding.links_whole
    if parts.cuda is not None:
        folders = parts.cuda.library_folders()
        command += [*parts.binding.cuda_link, *(f"-L{folder}" for folder in folders)]
        command += ["-lcudart", f"-Wl,-rpath,{parts.cuda.home / 'lib64'}"]
        command += ["-lcudadevrt"] if DEVICE_LINK_FLAGS.intersection(parts.flags.nvcc) else []
        has_driver = any((folder / "libcuda.so").exists() for folder in folders)
        command += ["-Wl,--as-needed", "-lcuda"] if has_driver else []
        whole = whole and has_driver
    command += ["-Wl,-z,defs"] if whole else []
    return BuildStep(LINK, (*command, "-o", f"{PRODUCTS}/{LIBRARY}"))


def _resolve_libraries(parts: CommandParts) -> list[str]:
    """Return the solution's flags for the linker. A library that only a pip package has is named by its path."""
    folders = parts.cuda.library_folders() if parts.cuda else []
    resolved: list[str] = []
    for flag in parts.flags.link:
        name = f"lib{flag.removeprefix('-l')}.so"
        packaged = [path for package in parts.packages for path in sorted((package / "lib").glob(f"{name}*"))]
        is_packaged = flag.startswith("-l") and packaged and not any((folder / name).exists() for folder in folders)
        resolved.append(str(packaged[0]) if is_packaged else flag)
    return resolved


def _library_includes(solution: Solution, toolchain: Toolchain, cuda: CudaToolkit | None) -> tuple[Path, ...]:
    """Return the folders of headers: those of the solution's dependencies, then the toolkit's, for .cpp files too."""
    folders = cutlass_includes() if wants_cutlass(solution.spec.dependencies) else []
    if cuda is not None:
        folders += toolkit_includes(cuda, toolchain.nvidia_packages)
    return tuple(folder for folder in folders if folder.is_dir())


def _readable(
    toolchain: Toolchain, cuda: CudaToolkit | None, binding: Binding, libraries: Sequence[Path]
) -> tuple[Path, ...]:
    folders = [*binding.includes, *libraries]
    if toolchain.cxx is not None:
        folders += toolchain.cxx.files()
    if cuda is not None:
        folders += [cuda.home, *cuda.library_folders(), *toolchain.nvidia_packages]
    folders += [Path(folder) for folder in os.environ.get(READABLE_VARIABLE, "").split(os.pathsep) if folder]
    for package in (toolchain.torch if binding.kind == "torch" else None, toolchain.tvm_ffi):
        folders += [package.home] if package is not None else []
    return tuple(dict.fromkeys(folders))


def _made_from(
    parts: CommandParts,
    sources: dict[str, bytes],
    stages: tuple[tuple[BuildStep, ...], ...],
    libraries: Sequence[Path],
) -> dict[str, Any]:
    """Return everything that decides the library: sources, commands, compilers, versions, ABI."""
    compilers = {"cxx": parts.cxx.identity, "nvcc": parts.cuda.nvcc.identity if parts.cuda else None}
    cutlass = [folder / "cutlass" / "version.h" for folder in libraries]
    versions = {
        **parts.binding.versions,
        "cuda": list(parts.cuda.version) if parts.cuda else None,
        "cutlass": [hashlib.sha256(path.read_bytes()).hexdigest() for path in cutlass if path.is_file()],
    }
    native = any("native" in flag for flag in (*parts.flags.cxx, *parts.flags.nvcc))
    return {
        "sources": {path: hashlib.sha256(content).hexdigest() for path, content in sources.items()},
        "commands": [list(step.argv) for stage in stages for step in stage],
        "compilers": compilers,
        "versions": versions,
        "abi": sysconfig.get_config_var("SOABI") if parts.binding.kind == "torch" else sysconfig.get_platform(),
        "processor": _processor() if native else None,
    }


def _processor() -> str:
    """Return the lines about the processor that -march=native depends on."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(sorted(set(re.findall(r"^(?:model name|flags|Features)\s*:.*$", text, re.MULTILINE))))


def _guess_seconds(parts: CommandParts, units: Sequence[str], sources: dict[str, bytes]) -> float:
    text = b"".join(sources.values())
    device_units = sum(unit.endswith(DEVICE_SUFFIX) for unit in units)
    heavy = SECONDS["cutlass"] if b"cutlass/" in text or b"cute/" in text else 0.0
    compiling = len(units) * SECONDS[parts.binding.kind] + device_units * SECONDS["cuda"]
    return compiling + heavy + len(text) / 1000 * SECONDS["kilobyte"]
