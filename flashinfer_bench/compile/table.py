"""Which builder takes a language, and why this machine cannot build a solution, with what to install.

A language is a record in `data/languages.py`. Its builder is the module in `builders/` that the record names, with
`make_recipe(solution, toolchain, target)`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence

from flashinfer_bench.compile.architectures import chosen_targets, runs_on, why_too_old
from flashinfer_bench.compile.artifact import BuildFailure
from flashinfer_bench.compile.dependencies import find_missing
from flashinfer_bench.compile.flags import check_flags
from flashinfer_bench.compile.recipe import BuildRecipe, BuildTarget
from flashinfer_bench.compile.toolchain import CudaToolkit, Toolchain
from flashinfer_bench.data import Solution, SupportedBindings, SupportedLanguages
from flashinfer_bench.data.entry import find_binding

IsInstalled = Callable[[str], bool]


def make_recipe(solution: Solution, toolchain: Toolchain, target: BuildTarget) -> BuildRecipe:
    """Return how a solution is built.

    Raises:
        BuildFailure: the solution is at fault.
    """
    name = f"{__package__}.builders.{solution.spec.language.record.builder}"
    recipe: BuildRecipe = importlib.import_module(name).make_recipe(solution, toolchain, target)
    return recipe


def is_installed(package: str) -> bool:
    """Tell whether a Python package is there, without importing it."""
    return importlib.util.find_spec(package) is not None


def _why_unavailable(language: SupportedLanguages, toolchain: Toolchain, installed: IsInstalled) -> str | None:
    record = language.record
    if record.package is not None and not installed(record.package):
        return f"{record.package} is not installed; try: pip install {record.package}"
    if record.requires_cuda and toolchain.cuda is None:
        return "there is no nvcc; install the CUDA toolkit, or set CUDA_HOME to it"
    if record.is_compiled and toolchain.cxx is None:
        return "there is no C++ compiler; install g++ (apt-get install g++), or name one in CXX"
    return None


def find_unavailable_languages(toolchain: Toolchain, *, installed: IsInstalled = is_installed) -> dict[str, str | None]:
    """Return each language that solutions may name → why it cannot be built here, or None if it can."""
    return {language.value: _why_unavailable(language, toolchain, installed) for language in SupportedLanguages}


def why_not_buildable(
    solution: Solution,
    toolchain: Toolchain,
    target: BuildTarget,
    capabilities: Sequence[tuple[int, int]] = (),
) -> str | None:
    """Return what this machine lacks for a solution, with what to install; None if nothing is missing.

    Args:
        solution: what is to be built.
        toolchain: the compilers and libraries of this machine.
        target: the GPUs that it is built for.
        capabilities: the compute capabilities of the GPUs that are to run it; empty if it is only compiled.
    """
    language = solution.spec.language
    reason = _why_unavailable(language, toolchain, is_installed)
    if reason is not None:
        return reason
    missing = find_missing(solution.spec.dependencies, toolchain, is_compiled=language.record.is_compiled)
    if missing or not language.record.is_compiled:
        return "; ".join(missing) or None
    reason = _lacks_binding(find_binding(solution).binding, toolchain)
    if reason is None and language.record.requires_cuda and toolchain.cuda is not None:
        return _why_wrong_architecture(solution, toolchain.cuda, target, capabilities)
    return reason


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
    try:
        chosen = chosen_targets(check_flags(solution.spec.compile_options, [cuda.home]).nvcc)
    except BuildFailure:
        return None  # the build will say what is wrong with its flags
    if not chosen:
        return why_too_old(cuda.version, target.architectures)
    unfit = [one for one in capabilities if not any(runs_on(name, one) for name in chosen)]
    there = " and ".join(f"sm_{major}{minor}" for major, minor in unfit)
    return f"it is compiled for {', '.join(chosen)} alone; the GPU here is {there}" if unfit else None
