"""How a shared library is reached from Python: what each binding adds to compiling and linking."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from flashinfer_bench.compile.toolchain import Toolchain

MODULE: Final = "solution"
"""The name of the library and, with torch's binding, of the extension module."""
DEFAULT_STANDARD: Final = 17
"""The C++ standard for tvm-ffi where the solution's flags name none."""
TORCH_NVCC_MACROS: Final = (
    "-D__CUDA_NO_HALF_OPERATORS__",
    "-D__CUDA_NO_HALF_CONVERSIONS__",
    "-D__CUDA_NO_BFLOAT16_CONVERSIONS__",
    "-D__CUDA_NO_HALF2_OPERATORS__",
)
"""What torch's own extension builder defines for nvcc; solutions that were written against it expect it."""

TORCH_GCC_FLAGS: Final = ("-fno-devirtualize",)
"""To find out what virtual calls may lead to, g++ optimises all virtual functions of torch's headers, and then drops
them."""


@dataclass(frozen=True)
class Binding:
    """One way to make a library callable from Python."""

    kind: Literal["tvm-ffi", "torch"]
    standard: int
    """C++ standard where the solution's flags name none."""
    includes: tuple[Path, ...]
    macros: tuple[str, ...]
    nvcc_macros: tuple[str, ...]
    link: tuple[str, ...]
    """Flags of the linker, for a host-only library."""
    cuda_link: tuple[str, ...]
    """Further flags of the linker, for a library with CUDA code."""
    exports: Callable[[str], str]
    """The symbol that the library exports for an entry function."""
    links_whole: bool
    """Linking fails where a symbol stays undefined: all that the library uses is linked to it."""
    versions: Mapping[str, str]
    """Package to its version. A new version gives the artifact another digest."""
    main_header: str
    """The header that solutions with this binding include."""
    gcc_flags: tuple[str, ...] = ()
    """Flags that g++ alone knows, by which it takes less time."""
    header: Path | None = None
    """The header that is worth precompiling, as solutions include it; None where all are read quickly."""


def tvm_ffi_binding(toolchain: Toolchain) -> Binding:
    """Return the binding of apache-tvm-ffi; why_not_buildable has said that it is there."""
    files = toolchain.tvm_ffi
    assert files is not None  # asked before
    return Binding(
        kind="tvm-ffi",
        standard=DEFAULT_STANDARD,
        includes=tuple(files.includes()),
        macros=("-DTVM_FFI_DLL_EXPORT_INCLUDE_METADATA=1",),  # tells the worker how many arguments the entry takes
        nvcc_macros=(),
        link=(f"-L{files.lib}", "-ltvm_ffi"),
        cuda_link=(),
        exports=lambda symbol: f"__tvm_ffi_{symbol}",
        links_whole=True,
        versions={"tvm_ffi": files.version},
        main_header="tvm/ffi/tvm_ffi.h",
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
        nvcc_macros=TORCH_NVCC_MACROS,
        link=(f"-L{files.lib}", "-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"),
        cuda_link=("-lc10_cuda", "-ltorch_cuda") if files.has_cuda else (),
        exports=lambda _symbol: f"PyInit_{MODULE}",
        links_whole=False,  # Python's own symbols come from the interpreter
        versions={"torch": files.version},
        main_header="torch/extension.h",
        gcc_flags=TORCH_GCC_FLAGS,
        header=Path("torch/extension.h"),
    )


BINDINGS: Final[dict[str, Callable[[Toolchain], Binding]]] = {"tvm-ffi": tvm_ffi_binding, "torch": torch_binding}
