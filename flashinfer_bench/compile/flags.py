"""The compiler flags that a solution may request: a closed list, without reads or writes outside the build.

A flag outside the list is refused, with its location in the message. nvcc hands its arguments to a shell, so the values
of macros are limited too. A word that begins with `@` makes any tool read more arguments from a file, and nvcc and
`-Wl,` split words at commas. So no word, and nothing after a comma, may begin with `@`. docs/building.md has the list
in words.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from flashinfer_bench.compile.artifact import BuildFailure
from flashinfer_bench.data.solution import CompileOptions

MACRO: Final = re.compile(r"[A-Za-z_]\w*(\([\w, ]*\))?(=[^$`\\'\n\r]*)?")
FILE_AFTER_COMMA: Final = re.compile(r",.*@", re.DOTALL)
LIBRARY: Final = re.compile(r":?[\w+.\-]+")
RPATH: Final = re.compile(r"-Wl,(?:-rpath|-rpath-link)[,=](.+)")
SHARED: Final = ("-isystem", "-D", "-U", "-I")
LINKED: Final = ("-l", "-L")
"""Flags of compilers (SHARED) and of the linker (LINKED) whose value is in the same word or in the next word."""

CXX_FLAGS: Final = (
    r"-O([0-3sg]|fast)?",
    r"-g[0-3]?",
    r"--?std=(c|gnu)\+\+\w+",
    r"-W[A-Za-z0-9+=\-]*",  # not -Wl, -Wa, -Wp: the pattern takes no comma
    r"-w",
    r"-pedantic(-errors)?",
    r"-pthread",
    r"-m[\w+.=\-]+",
    r"-f(?!plugin|profile|auto-profile|branch-prob|dump|save-opt|callgraph|stack-usage|test-coverage|module|pch|pre|"
    r"compilation|opt-info|record-gcc|include|embed|ltrans|wpa|resolution|use-linker|offload)[\w+=\-]+",
)
PTXAS_FLAGS: Final = (
    r"--?(v|verbose|w|disable-warnings|O[0-4]|lineinfo|g|warn-[a-z\-]+|warning-as-error|suppress-[a-z\-]+)",
    r"--?(dlcm|dscm|def-load-cache|def-store-cache|fmad|allow-expensive-optimizations|register-usage-level)=\w+",
    r"--?(maxrregcount|opt-level|split-compile|return-at-end|preserve-relocs|position-independent-code)(=\w+)?",
)
ARCHITECTURE: Final = r"(sm|compute|lto)_\d+[af]?"
GENCODE: Final = rf"arch={ARCHITECTURE},code=(\[?{ARCHITECTURE}(,{ARCHITECTURE})*\]?)"
NVCC_FLAGS: Final = (
    r"-O[0-3]",
    r"-g|-G|-w|-ewp|-m64|-restrict|--restrict|-dlto",
    r"--?(lineinfo|generate-line-info|use_fast_math|extra-device-vectorization|disable-warnings|res-usage)",
    r"--?(resource-usage|extended-lambda|expt-extended-lambda|expt-relaxed-constexpr|allow-unsupported-compiler)",
    r"--?std=c\+\+\w+",
    r"--?(ftz|fmad|prec-div|prec-sqrt|rdc|relocatable-device-code)=(true|false)",
    r"--?(maxrregcount|threads|split-compile|t)=?\d+",
    r"--?(diag-suppress|diag-warn|diag-error|default-stream|Werror|W)=[\w,\-]+",
    r"-W[a-z\-]+",
    rf"(-arch|--gpu-architecture)=({ARCHITECTURE}|native|all|all-major)",
    rf"(-code|--gpu-code)=({ARCHITECTURE}(,{ARCHITECTURE})*)",
    rf"(-gencode|--generate-code)={GENCODE}",
)
CUDAFE_FLAGS: Final = (r"--(diag_suppress|diag_warning|diag_error|error_limit)=[\w,]+", r"--display_error_number")
LINK_FLAGS: Final = (
    r"-O[0-3]|-s|-g|-shared|-fPIC|-pthread|-fopenmp|-static-libgcc|-static-libstdc\+\+|-flto(=\w+)?",
    r"-Wl,(--as-needed|--no-as-needed|--gc-sections|--no-undefined|-s|-O[0-3]|-Bsymbolic(-functions)?)",
    r"-Wl,(-z,[a-z\-]+|--exclude-libs,[\w.][\w.:\-]*|--allow-shlib-undefined)",
)
TWO_WORDS: Final = re.compile(
    r"-gencode|--generate-code|-arch|--gpu-architecture|-code|--gpu-code|-t|"
    r"--?(std|maxrregcount|threads|split-compile|diag-suppress|default-stream|rdc)"
)
"""Flags of nvcc whose value may be the next word."""
ALLOWED: Final = {"cflags": CXX_FLAGS, "cuda_cflags": NVCC_FLAGS, "ld_flags": LINK_FLAGS}
"""Field of a solution's options → patterns of the allowed flags."""
FORWARDED: Final = {
    "-Xcompiler": ("-Xcompiler", CXX_FLAGS),
    "--compiler-options": ("-Xcompiler", CXX_FLAGS),
    "-Xptxas": ("-Xptxas", PTXAS_FLAGS),
    "--ptxas-options": ("-Xptxas", PTXAS_FLAGS),
    "-Xcudafe": ("-Xcudafe", CUDAFE_FLAGS),
}
"""Flag of nvcc that passes flags to another tool → its usual spelling, and patterns of the allowed flags."""
THREADS: Final = re.compile(r"(-flto=|-flto-jobs=|--?(?:threads|split-compile|t)=?)(\d+|auto|jobserver)")
"""Flags by which one compiler uses several cores: a flag, and the number of cores. The number is set to one."""


def check_flags(options: CompileOptions | None, readable: Sequence[Path]) -> CompileOptions:
    """Return a solution's flags as words for the compilers, one word an entry.

    Args:
        readable: folders outside the sources that a flag may name: the toolkit's, a package's.

    Raises:
        BuildFailure: flags are not allowed. The message names the first refused flag of each list, with its location.
    """
    refused, checked = "", dict[str, list[str]]()
    for name, patterns in ALLOWED.items() if options is not None else ():
        try:
            words = [word for entry in getattr(options, name) for word in shlex.split(entry)]
            checked[name] = list(_check(name, patterns, iter(words), readable))
        except (_Refused, ValueError) as error:
            refused += f"compile_options.{name}: {error}\n"
    if refused:
        raise BuildFailure(f"{refused}Flags that may read or write outside the build are refused; see docs/building.md")
    return CompileOptions.model_validate(checked)


class _Refused(Exception):
    """A flag is not allowed."""


def _check(field: str, patterns: Sequence[str], words: Iterator[str], readable: Sequence[Path]) -> Iterator[str]:
    """Yield the words of one list for its tool, each flag in its usual spelling."""
    for word in words:
        name, separator, text = word.partition("=")
        flag = next((flag for flag in (LINKED if field == "ld_flags" else SHARED) if word.startswith(flag)), "")
        if flag:
            text = word.removeprefix(flag) or _value(flag, words)
            if flag in ("-D", "-U") and (not MACRO.fullmatch(text) or FILE_AFTER_COMMA.search(text)):
                raise _Refused(f"{flag} {text!r} is no plain macro")
            if flag == "-l" and not LIBRARY.fullmatch(text):
                raise _Refused(f"-l {text!r} is no name of a library")
            text = _path(flag, text, readable) if flag in ("-I", "-isystem", "-L") else text
            yield from [flag, text] if flag == "-isystem" else [f"{flag}{text}"]
        elif field == "cuda_cflags" and name in FORWARDED:
            flag, allowed = FORWARDED[name]
            value = text if separator else _value(name, words)
            items = [item for item in re.split(r",(?=-)|\s+", value) if item]
            wrong = [item for item in items if not _matches(item, allowed)]
            if wrong or not items:
                raise _Refused(f"{name} {', '.join(map(repr, wrong)) or repr(value)} is not allowed")
            yield from (part for item in items for part in (flag, _on_one_core(item)))
        elif field == "ld_flags" and (result := RPATH.fullmatch(word)):
            _path("-rpath", result[1], readable)
            yield word
        else:
            whole = f"{word}={_value(word, words)}" if field == "cuda_cflags" and TWO_WORDS.fullmatch(word) else word
            if not _matches(whole, patterns):
                raise _Refused(f"{whole!r} is not allowed")
            yield _on_one_core(whole)


def _value(flag: str, words: Iterator[str]) -> str:
    """Return the next word, the value of a flag."""
    for word in words:
        return word
    raise _Refused(f"{flag!r} has no value")


def _path(flag: str, text: str, readable: Sequence[Path]) -> str:
    """Return the path of a folder that compilers may read. A folder of the sources begins with "./"."""
    path = PurePosixPath(text)
    if not text or ".." in path.parts or re.search(r"^[@\-]|[$`\\'\"\s,]", text):
        raise _Refused(f"{flag} {text!r} leaves the sources")
    if not path.is_absolute():
        return f"./{path}"
    if not any(path.is_relative_to(root) for folder in readable for root in (folder, folder.resolve())):
        raise _Refused(f"{flag} {text!r} is outside the sources; the toolkit's own folders are searched anyway")
    return text


def _matches(word: str, patterns: Iterable[str]) -> bool:
    return any(re.fullmatch(pattern, word) for pattern in patterns)


def _on_one_core(word: str) -> str:
    result = THREADS.fullmatch(word)
    return f"{result[1]}1" if result else word
