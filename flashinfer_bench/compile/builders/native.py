"""C++ and CUDA solutions: each .cpp and .cu is compiled to an object, and all objects are linked to a shared library.

The compilers run in the folder of the sources, which is on the include path. `cuda` uses the CUDA toolkit, `cpp` does
not. The binding decides how Python reaches the library: `Binding` has what it adds to compiling and linking.
"""

from __future__ import annotations

import hashlib
import os
import re
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal

from flashinfer_bench.compile.artifact import BuildFailure
from flashinfer_bench.compile.dependencies import cutlass_includes, wants_cutlass
from flashinfer_bench.compile.flags import Flags, check_flags
from flashinfer_bench.compile.headers import LIST, begins_with
from flashinfer_bench.compile.includes import check_directives
from flashinfer_bench.compile.recipe import HEADERS, LINK, PRODUCTS, BuildRecipe, BuildStep, BuildTarget, Stages
from flashinfer_bench.compile.toolchain import Compiler, CudaToolkit, Toolchain
from flashinfer_bench.compile.toolkit import toolkit_includes
from flashinfer_bench.data import Solution
from flashinfer_bench.data.entry import find_binding, registers_operators

MODULE: Final = "solution"
"""Name of the library and, with torch's binding, of the extension module."""
LIBRARY: Final = f"{MODULE}.so"
READABLE_VARIABLE: Final = "FIB_BUILD_READABLE"
"""Variable with further folders that compilers may read, for a toolchain in an unusual place."""
HOST_SUFFIXES: Final = (".cpp", ".cc", ".cxx", ".c++")
DEVICE_SUFFIX: Final = ".cu"
UNIT_NAME: Final = re.compile(r"[A-Za-z0-9_][\w.+=@\-]*(/[A-Za-z0-9_][\w.+=@\-]*)*")
"""Names of files to compile. Other characters are refused, because nvcc hands names to a shell."""
DEVICE_LINK_FLAGS: Final = frozenset({"-rdc=true", "--rdc=true", "--relocatable-device-code=true"})
"""Flags of nvcc after which device code needs a link of its own."""
GCC_FLAGS: Final = ("-fmax-errors=20", "-fdiagnostics-color=never")
"""Flags of g++ that keep logs short."""
SELDOM_COLLECTS: Final = "--param=ggc-min-expand=200"
"""Flag of g++: free memory less often, since little of torch's header could be freed. The object stays the same."""
SECONDS: Final = {"tvm-ffi": 4.0, "torch": 25.0, "cuda": 10.0, "cutlass": 40.0, "kilobyte": 0.1}
"""Guessed seconds of compiling: for each file the headers of its binding, and more for a .cu file, CUTLASS and length.

The guess decides the order of builds and nothing else."""
HOST_PROBE: Final = b"#include <vector>\nint probe(int x) { return std::vector<int>(x).size(); }\n"
DEVICE_PROBE: Final = b"#include <cuda_runtime.h>\n__global__ void kernel() {}\nvoid probe() { kernel<<<1, 1>>>(); }\n"
"""Sources that every working compiler accepts. If one fails, the machine is at fault and not the solution."""


@dataclass(frozen=True)
class Binding:
    """One way to make a library callable from Python."""

    kind: Literal["tvm-ffi", "torch"]
    standard: int
    """C++ standard unless the solution's flags name one."""
    includes: tuple[Path, ...]
    macros: tuple[str, ...]
    link: tuple[str, ...]
    """Flags of the linker."""
    exports: str
    """Symbol that the library exports; {} stands for the entry function."""
    versions: Mapping[str, str]
    """Package → version. A new version gives the artifact another digest."""
    main_header: str
    """The header that solutions with this binding include."""
    cuda_link: tuple[str, ...] = ()
    """Further flags of the linker, for a library with CUDA code."""
    nvcc_macros: tuple[str, ...] = ()
    gcc_flags: tuple[str, ...] = ()
    """Flags that g++ alone knows, with which it takes less time."""
    links_whole: bool = False
    """Linking fails if a symbol stays undefined."""
    precompiles: bool = False
    """The main header is worth precompiling."""


def tvm_ffi_binding(toolchain: Toolchain) -> Binding:
    """Return the binding of apache-tvm-ffi; why_not_buildable has said that it is there."""
    files = toolchain.tvm_ffi
    assert files is not None  # asked before
    return Binding(
        kind="tvm-ffi",
        standard=17,
        includes=tuple(files.includes()),
        macros=("-DTVM_FFI_DLL_EXPORT_INCLUDE_METADATA=1",),  # tells the worker how many arguments the entry takes
        link=(f"-L{files.home / 'lib'}", "-ltvm_ffi"),
        exports="__tvm_ffi_{}",
        versions={"tvm_ffi": files.version},
        main_header="tvm/ffi/tvm_ffi.h",
        links_whole=True,
    )


def torch_binding(toolchain: Toolchain) -> Binding:
    """Return the binding of torch's C++ extensions; why_not_buildable has said that it is there."""
    files, python = toolchain.torch, toolchain.python_include
    assert files is not None  # asked before
    assert python is not None  # asked before
    return Binding(
        kind="torch",
        standard=files.standard,
        includes=(*files.includes(), python),
        macros=(
            f"-DTORCH_EXTENSION_NAME={MODULE}",
            "-DTORCH_API_INCLUDE_EXTENSION_H",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(files.has_new_abi)}",
            # A CPU build of torch lacks the one header that its own CUDA headers include; this leaves it out.
            *(() if files.has_cuda else ("-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE",)),
        ),
        link=(f"-L{files.home / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"),
        exports=f"PyInit_{MODULE}",
        versions={"torch": files.version},
        main_header="torch/extension.h",
        cuda_link=("-lc10_cuda", "-ltorch_cuda") if files.has_cuda else (),
        # As torch's own extension builder defines them; solutions that were written against it expect them.
        nvcc_macros=(
            "-D__CUDA_NO_HALF_OPERATORS__",
            "-D__CUDA_NO_HALF_CONVERSIONS__",
            "-D__CUDA_NO_BFLOAT16_CONVERSIONS__",
            "-D__CUDA_NO_HALF2_OPERATORS__",
        ),
        # Else g++ optimises all virtual functions of torch's headers, and drops them again.
        gcc_flags=("-fno-devirtualize",),
        precompiles=True,
    )


BINDINGS: Final[dict[str, Callable[[Toolchain], Binding]]] = {"tvm-ffi": tvm_ffi_binding, "torch": torch_binding}


@dataclass(frozen=True)
class Commands:
    """Makes the commands for one solution."""

    cxx: Compiler
    cuda: CudaToolkit | None
    binding: Binding
    flags: Flags
    includes: tuple[Path, ...]
    """Folders with the headers of libraries."""
    target: BuildTarget
    packages: tuple[Path, ...]
    """NVIDIA's pip packages, for libraries that the toolkit lacks."""

    @cached_property
    def _is_clang(self) -> bool:
        return "clang" in self.cxx.path.resolve().name

    @property
    def can_precompile(self) -> bool:
        """Whether this compiler takes a precompiled main header; clang takes none from an include folder."""
        return self.binding.precompiles and not self._is_clang

    @property
    def links_device_code(self) -> bool:
        """Whether device code is relocatable."""
        return self.cuda is not None and not DEVICE_LINK_FLAGS.isdisjoint(self.flags.nvcc)

    def stages(self, units: Sequence[str]) -> Stages:
        """Return the commands that make the objects, link relocatable device code, and link the library."""
        objects = [f"../obj/{index}.o" for index in range(len(units))]
        stages = [tuple(self._compile(unit, made) for unit, made in zip(units, objects, strict=True))]
        if self.links_device_code:
            command = [*self._nvcc(), "-Xcompiler", "-fPIC", *self._architectures(), "-dlink", *objects]
            objects = [*objects, "../obj/device.o"]
            stages.append((BuildStep("link device code", (*command, "-o", objects[-1])),))
        return (*stages, (BuildStep(LINK, (*self._link(objects), "-o", f"{PRODUCTS}/{LIBRARY}")),))

    def _compile(self, unit: str, output: str) -> BuildStep:
        command = self._device() if unit.endswith(DEVICE_SUFFIX) else self.host()
        dependencies = ("-MD", "-MF", output.removesuffix(".o") + ".d")
        return BuildStep(f"compile {unit}", (*command, *dependencies, "-c", unit, "-o", output))

    def host(self) -> list[str]:
        """Return the command that compiles C++, without its input and output."""
        own = ["-O3", f"-std=c++{self.binding.standard}", "-fPIC"]
        own += [] if self._is_clang else [*GCC_FLAGS, *self.binding.gcc_flags]
        own += [SELDOM_COLLECTS] if self.can_precompile else []
        headers = ["-isystem", HEADERS] if self.can_precompile else []
        command = [str(self.cxx.path), *own, *self.binding.macros, *self.flags.cxx, "-I."]
        return [*command, *headers, *self._search()]

    def _device(self) -> list[str]:
        given, gcc_flags = self.flags.nvcc, () if self._is_clang else self.binding.gcc_flags
        own = ["--expt-relaxed-constexpr"]
        own += [] if _has(given, "-O") else ["-O3"]
        own += [] if _has(given, "-std", "--std") else [f"-std=c++{self.binding.standard}"]
        host = [*([] if "-fPIC" in given else ["-fPIC"]), *gcc_flags]
        own += [word for flag in host for word in ("-Xcompiler", flag)]
        macros = [*self.binding.macros, *self.binding.nvcc_macros]
        return [*self._nvcc(), *own, *macros, *self._architectures(), *given, "-I.", *self._search()]

    def _nvcc(self) -> list[str]:
        assert self.cuda is not None  # there is a .cu file
        return [str(self.cuda.nvcc.path), "-ccbin", str(self.cxx.path)]

    def _architectures(self) -> list[str]:
        """Return flags for the architectures of the target; none if the solution's own flags choose."""
        starts = ("-gencode", "--generate-code", "-arch", "--gpu-arch")
        chosen = [flag for flag in self.flags.nvcc if flag.startswith(starts)]
        if chosen and not any(flag.endswith("=native") for flag in chosen):
            return []
        return [f"-gencode=arch=compute_{name},code=sm_{name}" for name in self.target.architectures]

    def _search(self) -> list[str]:
        return [word for folder in self.includes for word in ("-isystem", str(folder))]

    def _link(self, objects: Sequence[str]) -> list[str]:
        folders = self.cuda.library_folders() if self.cuda is not None else []
        has_driver = any((folder / "libcuda.so").exists() for folder in folders)
        command = [str(self.cxx.path), "-shared", "-fPIC", *objects]
        command += [self._locate(flag, folders) for flag in self.flags.link]
        command += ["-fopenmp"] if "-fopenmp" in (*self.flags.cxx, *self.flags.nvcc, *self.flags.link) else []
        command += self.binding.link
        if self.cuda is not None:
            command += [*self.binding.cuda_link, *(f"-L{folder}" for folder in folders)]
            command += ["-lcudart", f"-Wl,-rpath,{self.cuda.home / 'lib64'}"]
            command += ["-lcudadevrt"] if self.links_device_code else []
            command += ["-Wl,--as-needed", "-lcuda"] if has_driver else []
        return [*command, *(["-Wl,-z,defs"] if self.binding.links_whole and (has_driver or not self.cuda) else [])]

    def _locate(self, flag: str, folders: Sequence[Path]) -> str:
        """Return a flag for the linker. A library that only a pip package has is named by its path."""
        name = f"lib{flag.removeprefix('-l')}.so"
        if not flag.startswith("-l") or any((folder / name).exists() for folder in folders):
            return flag
        packaged = (path for package in self.packages for path in sorted((package / "lib").glob(f"{name}*")))
        return str(next(packaged, flag))


def make_recipe(solution: Solution, toolchain: Toolchain, target: BuildTarget) -> BuildRecipe:
    """Return how a cpp or cuda solution is built; `why_not_buildable` has said that the toolchain is there.

    Raises:
        BuildFailure: the solution asks for something that cannot or must not be.
    """
    cuda = toolchain.cuda if solution.spec.language.record.requires_cuda else None
    assert toolchain.cxx is not None  # asked before
    sources = {source.path: source.content.encode() for source in solution.sources}
    units = choose_units(list(sources), is_cuda=cuda is not None)
    symbol = solution.get_entry_symbol()
    if not symbol.isidentifier() or not symbol.isascii():
        raise BuildFailure(f"the entry point names {symbol!r}, which is no name of an exported function")
    check_directives(sources)
    found = find_binding(solution)
    binding = BINDINGS[found.binding.value](toolchain)
    libraries = _library_includes(solution, toolchain, cuda)
    readable = _readable(toolchain, cuda, binding, libraries)
    commands = Commands(
        cxx=toolchain.cxx,
        cuda=cuda,
        binding=binding,
        flags=check_flags(solution.spec.compile_options, readable),
        includes=(*binding.includes, *libraries),
        target=target,
        packages=toolchain.nvidia_packages if cuda else (),
    )
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
        readable=readable,
        probe=replace(commands, flags=Flags()).stages([probe_unit]),
        probe_sources={probe_unit: probe_content},
        main_header=binding.main_header,
        needs_symbol=None if registers_operators(solution) else binding.exports.format(symbol),
        note=found.note,
        toolkit=cuda.version if cuda else None,
        header=_header_recipe(commands, readable) if takes_header else None,
        guessed_seconds=_guess_seconds(binding, units, sources),
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


def _header_recipe(commands: Commands, readable: tuple[Path, ...]) -> BuildRecipe:
    """Return how the main header is precompiled: from it alone, with the solution's flags but macros and folders.

    g++ itself refuses a precompiled header if a macro differs that the header knows.
    """
    header, kept = commands.binding.main_header, list[str]()
    words = iter(commands.flags.cxx)
    for word in words:
        if word == "-isystem":
            next(words)
        elif not word.startswith(("-D", "-U", "-I")):
            kept.append(word)
    commands = replace(commands, flags=Flags(cxx=tuple(kept)))
    product, source = f"{header}.gch", f"{PRODUCTS}/{header}"  # the source stays: files may include it a second time
    output = ("-MD", "-MF", f"{PRODUCTS}/{LIST}", "-x", "c++-header", source, "-o", f"{PRODUCTS}/{product}")
    text = {source: f"#include_next <{header}>\n".encode()}
    stages = ((BuildStep(f"precompile {header}", (*commands.host(), *output)),),)
    return BuildRecipe(
        kind="header",
        entry=product,
        symbol="",
        sources=text,
        made_from=_made_from(commands, text, stages),
        products=(product, header, LIST),
        stages=stages,
        readable=readable,
        include_folders=tuple(str(folder) for folder in commands.includes),
    )


def _has(flags: Sequence[str], *starts: str) -> bool:
    return any(flag.startswith(starts) for flag in flags)


def _library_includes(solution: Solution, toolchain: Toolchain, cuda: CudaToolkit | None) -> tuple[Path, ...]:
    """Return the folders of headers: those of the solution's dependencies, then the toolkit's, for .cpp files too."""
    folders = cutlass_includes() if wants_cutlass(solution.spec.dependencies) else []
    folders += toolkit_includes(cuda, toolchain.nvidia_packages) if cuda else []
    return tuple(folder for folder in folders if folder.is_dir())


def _readable(
    toolchain: Toolchain, cuda: CudaToolkit | None, binding: Binding, libraries: Sequence[Path]
) -> tuple[Path, ...]:
    folders = [*binding.includes, *libraries, *(toolchain.cxx.files() if toolchain.cxx else [])]
    folders += [cuda.home, *cuda.library_folders(), *toolchain.nvidia_packages] if cuda else []
    folders += [Path(folder) for folder in os.environ.get(READABLE_VARIABLE, "").split(os.pathsep) if folder]
    for package in (toolchain.torch if binding.kind == "torch" else None, toolchain.tvm_ffi):
        folders += [package.home] if package is not None else []
    return tuple(dict.fromkeys(folders))


def _made_from(commands: Commands, sources: Mapping[str, bytes], stages: Stages) -> dict[str, Any]:
    """Return everything that decides the library: sources, commands, compilers, versions, ABI."""
    cuda, is_torch = commands.cuda, commands.binding.kind == "torch"
    cutlass = [folder / "cutlass" / "version.h" for folder in commands.includes]
    native = any("native" in flag for flag in (*commands.flags.cxx, *commands.flags.nvcc))
    return {
        "sources": {path: hashlib.sha256(content).hexdigest() for path, content in sources.items()},
        "commands": [list(step.argv) for stage in stages for step in stage],
        "compilers": {"cxx": commands.cxx.identity, "nvcc": cuda.nvcc.identity if cuda else None},
        "versions": {
            **commands.binding.versions,
            "cuda": list(cuda.version) if cuda else None,
            "cutlass": [hashlib.sha256(path.read_bytes()).hexdigest() for path in cutlass if path.is_file()],
        },
        "abi": sysconfig.get_config_var("SOABI") if is_torch else sysconfig.get_platform(),
        "processor": _processor() if native else None,
    }


def _processor() -> str:
    """Return the lines about the processor that -march=native depends on."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(sorted(set(re.findall(r"^(?:model name|flags|Features)\s*:.*$", text, re.MULTILINE))))


def _guess_seconds(binding: Binding, units: Sequence[str], sources: Mapping[str, bytes]) -> float:
    text = b"".join(sources.values())
    device_units = sum(unit.endswith(DEVICE_SUFFIX) for unit in units)
    heavy = SECONDS["cutlass"] if b"cutlass/" in text or b"cute/" in text else 0.0
    compiling = len(units) * SECONDS[binding.kind] + device_units * SECONDS["cuda"]
    return compiling + heavy + len(text) / 1000 * SECONDS["kilobyte"]
