"""The table of languages and their builders; and why this machine cannot build a solution, with what to install.

Adding a language is a module in `builders/`, a line in BUILDERS and, if it needs a Python package, one in PACKAGES.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Final

from flashinfer_bench.compile.architectures import chosen_targets, runs_on, why_too_old
from flashinfer_bench.compile.artifact import BuildFailure
from flashinfer_bench.compile.builders.native import native_recipe
from flashinfer_bench.compile.builders.python import python_recipe
from flashinfer_bench.compile.dependencies import find_missing
from flashinfer_bench.compile.flags import check_flags
from flashinfer_bench.compile.recipe import BuildRecipe, BuildTarget
from flashinfer_bench.compile.toolchain import CudaToolkit, Toolchain
from flashinfer_bench.compile.toolkit import find_missing_headers
from flashinfer_bench.data import Solution, SupportedBindings, SupportedLanguages
from flashinfer_bench.data.entry import find_binding

Builder = Callable[[Solution, Toolchain, BuildTarget], BuildRecipe]
IsInstalled = Callable[[str], bool]

BUILDERS: Final[dict[SupportedLanguages, Builder]] = {
    SupportedLanguages.PYTHON: python_recipe,
    SupportedLanguages.TRITON: python_recipe,
    SupportedLanguages.TILELANG: python_recipe,
    SupportedLanguages.CPP: native_recipe,
    SupportedLanguages.CUDA: native_recipe,
}
PACKAGES: Final = {SupportedLanguages.TRITON: "triton", SupportedLanguages.TILELANG: "tilelang"}


def is_installed(package: str) -> bool:
    """Tell whether a Python package is there, without importing it."""
    return importlib.util.find_spec(package) is not None


def _why_unavailable(language: SupportedLanguages, toolchain: Toolchain, installed: IsInstalled) -> str | None:
    package = PACKAGES.get(language)
    if package is not None and not installed(package):
        return f"{package} is not installed; try: pip install {package}"
    if language is SupportedLanguages.CUDA and toolchain.cuda is None:
        return "there is no nvcc; install the CUDA toolkit, or set CUDA_HOME to it"
    if BUILDERS[language] is native_recipe and toolchain.cxx is None:
        return "there is no C++ compiler; install g++ (apt-get install g++), or name one in CXX"
    return None


def find_unavailable_languages(toolchain: Toolchain, *, installed: IsInstalled = is_installed) -> dict[str, str | None]:
    """Return each language that solutions may name → why it cannot be built here, or None where it can."""
    return {language.value: _why_unavailable(language, toolchain, installed) for language in SupportedLanguages}


def why_not_buildable(
    solution: Solution,
    toolchain: Toolchain,
    target: BuildTarget,
    capabilities: Sequence[tuple[int, int]] = (),
) -> str | None:
    """Return what this machine lacks for a solution, with what to install; None where nothing is missing.

    Args:
        solution: what is to be built.
        toolchain: the compilers and libraries of this machine.
        target: the GPUs that it is built for.
        capabilities: the compute capabilities of the GPUs that are to run it; empty where it is only compiled.
    """
    language = solution.spec.language
    reason = _why_unavailable(language, toolchain, is_installed)
    if reason is not None:
        return reason
    missing = find_missing(solution.spec.dependencies, language.value, toolchain)
    if missing:
        return "; ".join(missing)
    if BUILDERS[language] is not native_recipe:
        return None
    reason = _lacks_binding(find_binding(solution).binding, toolchain)
    if reason is not None or language is SupportedLanguages.CPP or toolchain.cuda is None:
        return reason
    absent = find_missing_headers({source.path: source.content for source in solution.sources}, toolchain)
    return "; ".join(absent) or _why_wrong_architecture(solution, toolchain.cuda, target, capabilities)


def _lacks_binding(binding: SupportedBindings, toolchain: Toolchain) -> str | None:
    if binding is SupportedBindings.TVM_FFI:
        if toolchain.tvm_ffi is None:
            return "binding tvm-ffi: apache-tvm-ffi is not installed; try: pip install apache-tvm-ffi"
        return None
    if toolchain.torch is None:
        return "binding torch: the installed torch brings no C++ headers; install it from PyPI"
    if toolchain.python_include is None:
        return "binding torch: Python's own headers are missing; install them (apt-get install python3-dev)"
    return None


def _why_wrong_architecture(
    solution: Solution, cuda: CudaToolkit, target: BuildTarget, capabilities: Sequence[tuple[int, int]]
) -> str | None:
    options = solution.spec.compile_options
    try:
        chosen = chosen_targets(check_flags(options, [cuda.home]).nvcc)
    except BuildFailure:
        return None  # the build will say what is wrong with its flags
    if not chosen:
        return why_too_old(cuda.version, target.architectures)
    unfit = [one for one in capabilities if not any(runs_on(name, one) for name in chosen)]
    if unfit:
        there = " and ".join(f"sm_{major}{minor}" for major, minor in unfit)
        return f"it is compiled for {', '.join(chosen)} alone; the GPU here is {there}"
    return None


def make_recipe(solution: Solution, toolchain: Toolchain, target: BuildTarget) -> BuildRecipe:
    """Return how a solution is built.

    Raises:
        BuildFailure: the solution is at fault.
    """
    return BUILDERS[solution.spec.language](solution, toolchain, target)
