"""The compiler flags that a solution may ask for: a closed list, so that none reads or writes outside the build.

A flag that is not in the list is refused, and the message says where it stands. nvcc hands its arguments to a shell, so
the values of macros are limited too. A word that begins with `@` makes any tool read more arguments from a file, and
nvcc and `-Wl,` split words at commas. So no word, and nothing after a comma, may begin with `@`. docs/building.md has
the list in words.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from flashinfer_bench.compile.artifact import BuildFailure
from flashinfer_bench.data.solution import CompileOptions

MACRO: Final = re.compile(r"[A-Za-z_]\w*(\([\w, ]*\))?(=[^$`\\'\n\r]*)?")
FILE_AFTER_COMMA: Final = re.compile(r",.*@", re.DOTALL)
LIBRARY: Final = re.compile(r":?[\w+.\-]+")

CXX_FLAGS: Final = (
    r"-O([0-3sg]|fast)?",
    r"-g[0-3]?",
    r"--?std=(c|gnu)\+\+\w+",
    r"-W[A-Za-z0-9+=\-]*",  # not -Wl, -Wa, -Wp: a comma is no part of it
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
NVCC_NAMES: Final = {
    "-gencode": "-gencode",
    "--generate-code": "-gencode",
    "-arch": "-arch",
    "--gpu-architecture": "-arch",
    "-code": "-code",
    "--gpu-code": "-code",
    "-std": "-std",
    "--std": "-std",
    **{
        f"{dashes}{name}": f"--{name}"
        for dashes in ("-", "--")
        for name in ("maxrregcount", "threads", "split-compile", "diag-suppress", "default-stream", "rdc")
    },
    "-t": "--threads",
}
"""Flags of nvcc whose value may be the next word → their spelling with `=`."""

THREADS: Final = re.compile(r"(-flto=|-flto-jobs=|--?(?:threads|split-compile|t)=?)(\d+|auto|jobserver)")
"""Flags by which one compiler takes several cores: the flag, and how many. 0 and words leave that to the compiler."""


@dataclass(frozen=True)
class Flags:
    """A solution's flags, checked and split into words."""

    cxx: tuple[str, ...] = ()
    nvcc: tuple[str, ...] = ()
    link: tuple[str, ...] = ()


def check_flags(options: CompileOptions | None, readable: Sequence[Path]) -> Flags:
    """Return a solution's flags as words for the compilers.

    Args:
        options: the flags that the solution asks for.
        readable: folders outside the sources that a flag may name: the toolkit's, a package's.

    Raises:
        BuildFailure: flags are not allowed. The message names the first of each list, with its place.
    """
    if options is None:
        return Flags()
    refused: list[str] = []
    checked: list[tuple[str, ...]] = []
    lists = (
        ("cflags", options.cflags, _cxx),
        ("cuda_cflags", options.cuda_cflags, _nvcc),
        ("ld_flags", options.ld_flags, _link),
    )
    for name, entries, check in lists:
        try:
            words = [word for entry in entries for word in shlex.split(entry)]
            checked.append(tuple(check(_Words(words, readable))))
        except (_Refused, ValueError) as error:
            refused.append(f"compile_options.{name}: {error}\n")
    if refused:
        told = "".join(refused)
        raise BuildFailure(f"{told}Flags that may read or write outside the build are refused; see docs/building.md")
    return Flags(*checked)


def count_threads(argv: Iterable[str], most: int) -> int:
    """Return on how many cores a command asks to compile, `most` at most."""
    found = [match[2] for word in argv if (match := THREADS.fullmatch(word))]
    return max([1, *(min(most, int(text) if text.isdigit() else 0) or most for text in found)])


def limit_threads(argv: Iterable[str], most: int) -> list[str]:
    """Return a command whose flags ask for no more cores than this."""
    matches = [(word, THREADS.fullmatch(word)) for word in argv]
    return [f"{match[1]}{count_threads([word], most)}" if match else word for word, match in matches]


class _Refused(Exception):
    """A flag is not allowed."""


@dataclass
class _Words:
    """The words of one list, read from the front."""

    words: list[str]
    readable: Sequence[Path]

    def __iter__(self) -> Iterator[str]:
        while self.words:
            yield self.words.pop(0)

    def value(self, flag: str) -> str:
        if not self.words:
            raise _Refused(f"{flag!r} has no value")
        return self.words.pop(0)

    def path(self, flag: str, text: str) -> str:
        """Return the path of a folder that may be read: one among the sources as "./…", or one of the toolkit."""
        path = PurePosixPath(text)
        if not text or ".." in path.parts or re.search(r"^[@\-]|[$`\\'\"\s,]", text):
            raise _Refused(f"{flag} {text!r} leaves the sources")
        if path.is_absolute() and not any(_is_below(path, folder) for folder in self.readable):
            raise _Refused(f"{flag} {text!r} is outside the sources; the toolkit's own folders are searched anyway")
        return text if path.is_absolute() else f"./{path}"


def _is_below(path: PurePosixPath, folder: Path) -> bool:
    return any(path.is_relative_to(root) for root in (folder, folder.resolve()))


def _matches(word: str, patterns: Iterable[str]) -> bool:
    return any(re.fullmatch(pattern, word) for pattern in patterns)


def _allowed(word: str, patterns: Iterable[str]) -> str:
    if not _matches(word, patterns):
        raise _Refused(f"{word!r} is not allowed")
    return word


def _shared(word: str, words: _Words) -> list[str]:
    """Return the words for -D, -U, -I or -isystem, written as one word or two; none for any other flag."""
    for flag in ("-isystem", "-D", "-U", "-I"):
        if word.startswith(flag):
            text = word.removeprefix(flag) or words.value(flag)
            if flag in ("-I", "-isystem"):
                path = words.path(flag, text)
                return [f"-I{path}"] if flag == "-I" else [flag, path]
            if not MACRO.fullmatch(text) or FILE_AFTER_COMMA.search(text):
                raise _Refused(f"{flag} {text!r} is no plain macro")
            return [f"{flag}{text}"]
    return []


def _cxx(words: _Words) -> Iterator[str]:
    for word in words:
        yield from _shared(word, words) or [_allowed(word, CXX_FLAGS)]


FORWARDED: Final = {
    "-Xcompiler": ("-Xcompiler", CXX_FLAGS),
    "--compiler-options": ("-Xcompiler", CXX_FLAGS),
    "-Xptxas": ("-Xptxas", PTXAS_FLAGS),
    "--ptxas-options": ("-Xptxas", PTXAS_FLAGS),
    "-Xcudafe": ("-Xcudafe", CUDAFE_FLAGS),
}
"""Flag of nvcc that hands flags on to another tool → its usual spelling, and patterns of these flags."""


def _nvcc(words: _Words) -> Iterator[str]:
    for word in words:
        name, separator, text = word.partition("=")
        if name in FORWARDED:
            flag, patterns = FORWARDED[name]
            value = text if separator else words.value(name)
            flags = [item for item in re.split(r",(?=-)|\s+", value) if item]
            refused = [item for item in flags if not _matches(item, patterns)]
            if refused or not flags:
                raise _Refused(f"{name} {', '.join(map(repr, refused)) or repr(value)} is not allowed")
            yield from (part for item in flags for part in (flag, item))
        else:
            whole = f"{NVCC_NAMES[word]}={words.value(word)}" if word in NVCC_NAMES else word
            yield from _shared(word, words) or [_allowed(whole, NVCC_FLAGS)]


def _link(words: _Words) -> Iterator[str]:
    for word in words:
        rpath = re.fullmatch(r"-Wl,(?:-rpath|-rpath-link)[,=](.+)", word)
        if word.startswith("-l"):
            library = word.removeprefix("-l") or words.value("-l")
            if not LIBRARY.fullmatch(library):
                raise _Refused(f"-l {library!r} is no name of a library")
            yield f"-l{library}"
        elif word.startswith("-L"):
            yield "-L" + words.path("-L", word.removeprefix("-L") or words.value("-L"))
        elif rpath:
            words.path("-rpath", rpath[1])
            yield word
        else:
            yield _allowed(word, LINK_FLAGS)
