"""Decides how a solution is written for Trace Apply: unchanged, with a wrapper, or not at all. No source is run.

Trace Apply imports one Python file, or compiles C++ with fixed flags and libraries. A solution that calls the replaced
API would call itself without end. One unreadable file turns Trace Apply off.
"""

from __future__ import annotations

import ast
import re
from pathlib import PurePosixPath
from typing import Final

from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.entry import COMMENT, COMPILED, SETUP, TORCH_HEADER, check_entry, find_binding
from flashinfer_bench.data.reference import parse_source, read_module
from flashinfer_bench.data.solution import Solution, SourceFile, SupportedBindings, SupportedLanguages
from flashinfer_bench.data.trace_apply.families import Family
from flashinfer_bench.data.trace_apply.origin import WRAPPER_FILE
from flashinfer_bench.data.trace_apply.wrappers import write_wrapper

LIBRARY: Final = "flashinfer"
LANGUAGES: Final = frozenset({"python", "triton", "cutedsl", "tilelang", "cutile", "cpp", "cuda", "cutlass"})
"""The languages that Trace Apply reads."""
LINKED: Final = re.compile(r'#[ \t]*include[ \t]*[<"](?:cublas|cudnn|cufft|curand|cusolver|cusparse|nccl|nvshmem)')
"""Headers of libraries that Trace Apply does not link."""
RETURNS_DICT: Final = re.compile(r"\breturn\s*(?:\{|dict\()")
"""Code that returns a dict. Trace Apply does not read results by name."""


class CallsLibrary(ValueError):
    """The solution calls FlashInfer, and would call itself without end."""


def adapt(solution: Solution, definition: Definition, family: Family) -> Solution:
    """Return a solution for Trace Apply: with FlashInfer's name for the definition, and with a wrapper if the calls
    differ.

    Raises:
        CallsLibrary: the solution calls FlashInfer.
        ValueError: Trace Apply cannot load or correctly call the solution; the text is the reason.
    """
    _refuse(solution)
    spec, sources = solution.spec, solution.sources
    writes = _find_style(solution, definition)
    updated: dict[str, object] = {}
    if spec.language in COMPILED:
        _refuse_compiled(solution, definition, family, writes=writes)
    else:
        if not _takes_the_names(solution, definition, family, writes=writes):
            text = write_wrapper(family.wrapper, solution, definition, family.sizes, writes=writes)
            sources = [*sources, SourceFile(path=WRAPPER_FILE, content=text)]
            updated["entry_point"], writes = f"{WRAPPER_FILE}::run", False
        updated["destination_passing_style"] = writes
        if spec.language.value not in LANGUAGES:
            updated["language"] = SupportedLanguages.PYTHON
    spec = spec.model_copy(update=updated)
    return solution.model_copy(update={"definition": family.name, "sources": sources, "spec": spec})


def _refuse(solution: Solution) -> None:
    """Raise ValueError if Trace Apply cannot import or call a solution, whatever its language."""
    python = {source.path: source.content for source in solution.sources if source.path.endswith(".py")}
    siblings = {PurePosixPath(path).with_suffix("").parts[0] for path in python}
    for path, text in python.items():
        module, nodes = read_module(text), ast.walk(parse_source(text))
        if LIBRARY in {*module.packages, *solution.spec.dependencies}:
            raise CallsLibrary(f"it uses {LIBRARY}, so it would call itself; no slower solution takes its place")
        if module.packages & siblings or any(isinstance(one, ast.ImportFrom) and one.level for one in nodes):
            raise ValueError(f"{path} imports another of its files, which Trace Apply does not find")
        if SETUP in module.names:
            raise ValueError(f"Trace Apply does not call its function {SETUP!r}")
    if WRAPPER_FILE in {source.path for source in solution.sources}:
        raise ValueError(f"its file {WRAPPER_FILE} has the name of the wrapper")


def _refuse_compiled(solution: Solution, definition: Definition, family: Family, *, writes: bool) -> None:
    """Raise ValueError if Trace Apply cannot build a compiled solution, or calls it differently from this package."""
    spec = solution.spec
    text = "\n".join(COMMENT.sub(" ", source.content) for source in solution.sources)
    for is_wrong, reason in (
        (spec.language.value not in LANGUAGES, f"Trace Apply does not know the language {spec.language.value}"),
        (
            find_binding(solution).binding is SupportedBindings.TORCH or TORCH_HEADER.search(text),
            "it is bound by torch; Trace Apply builds tvm-ffi bindings, without torch's headers",
        ),
        (spec.compile_options or LINKED.search(text), "it needs flags or libraries that Trace Apply does not pass"),
        (family.wrapper or len(definition.outputs) > 1, "the call differs, and only Python solutions have a wrapper"),
        (writes and not family.writes_alike, "Trace Apply cannot allocate its outputs; it should return them"),
    ):
        if is_wrong:
            raise ValueError(reason)


def _find_style(solution: Solution, definition: Definition) -> bool:
    """Return whether the caller passes the outputs to the entry function."""
    spec, fitting = solution.spec, list[bool]()
    for style in (True, False) if spec.declared_style is None else (spec.declared_style,):
        changed = spec.model_copy(update={"destination_passing_style": style})
        if not check_entry(solution.model_copy(update={"spec": changed}), definition):
            fitting.append(style)
    if len(fitting) != 1:
        raise ValueError("its entry function does not fit the definition, or its style is not declared")
    return fitting[0]


def _takes_the_names(solution: Solution, definition: Definition, family: Family, *, writes: bool) -> bool:
    """Return whether FlashInfer can call the entry function without a wrapper, with the inputs as keywords."""
    text = solution.get_entry_source().content
    signature = read_module(text).signatures.get(solution.get_entry_symbol())
    if family.wrapper or signature is None or (not family.writes_alike if writes else RETURNS_DICT.search(text)):
        return False
    try:
        signature.bind(**dict.fromkeys([*definition.inputs, *(definition.outputs if writes else ())]))
    except TypeError:
        return False
    return True
