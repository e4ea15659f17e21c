"""The solution: an implementation of a definition as source files and a build spec. It never holds loaded code."""

from __future__ import annotations

import builtins
import re
from collections import Counter
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Annotated, Final

from pydantic import Field, field_validator, model_validator

from flashinfer_bench.data.digest import digest_of
from flashinfer_bench.data.languages import SupportedLanguages as SupportedLanguages
from flashinfer_bench.data.model import DataModel, NonEmpty
from flashinfer_bench.data.names import did_you_mean

MAX_PATH_PART: Final = 200
"""Longest name of a source's file or folder, in bytes."""
MAX_PATH_PARTS: Final = 32
"""Largest depth of a source's path, in folders."""
MAX_PATH: Final = 1000
"""Longest path of a source, in bytes. File systems allow some 4,000 bytes, including the folders above."""
MOST_SOURCES: Final = 4096
"""Largest number of sources of a solution."""
_UNIQUE_DIGITS: Final = 8
"""Hexadecimal digits of the digest in a unique name."""
_DRIVE: Final = re.compile(r"[A-Za-z]:")


class SupportedBindings(str, Enum):
    """The binding of a compiled solution to Python."""

    TVM_FFI = "tvm-ffi"
    TORCH = "torch"


def check_source_path(path: str) -> str:
    """Return the normalised path; raise ValueError if the path is absolute or leaves the folder.

    Backslashes, as Windows writes them, become slashes.
    """
    path = path.replace("\\", "/")
    parts = PurePosixPath(path).parts
    sizes = [len(part.encode("utf-8", "replace")) for part in parts]
    for is_wrong, reason in (
        (not parts or not path.isprintable() or path.endswith("/"), "is no path of a source file"),
        (path.startswith(("/", "~")) or _DRIVE.match(path), "is absolute; sources have relative paths"),
        (".." in parts, "has '..'; sources stay in their own folder"),
        (max(sizes, default=0) > MAX_PATH_PART, f"has a name longer than {MAX_PATH_PART} bytes"),
        (len(parts) > MAX_PATH_PARTS or sum(sizes) > MAX_PATH, f"lies more than {MAX_PATH_PARTS} folders deep"),
    ):
        if is_wrong:
            raise ValueError(f"{path[:200]!r} {reason}")
    return str(PurePosixPath(path))


class SourceFile(DataModel):
    """One file of a solution."""

    path: str
    """Relative, with forward slashes."""
    content: str
    """The whole text of the file."""

    @field_validator("path")
    @classmethod
    def _stays_inside(cls, path: str) -> str:
        return check_source_path(path)


class CompileOptions(DataModel):
    """Additional flags for compilers, as in public C++ and CUDA solutions."""

    cflags: list[str] = Field(default_factory=list)
    """For the C++ compiler."""
    cuda_cflags: list[str] = Field(default_factory=list)
    """For nvcc."""
    ld_flags: list[str] = Field(default_factory=list)
    """For the linker."""


class BuildSpec(DataModel):
    """How a solution is built and called."""

    always_written = ("dependencies",)

    language: SupportedLanguages
    """The language, which picks the builder."""
    target_hardware: Annotated[list[str], Field(min_length=1)]
    """Free text, such as NVIDIA H100 or cpu."""
    entry_point: str
    """file::function."""
    dependencies: list[str] = Field(default_factory=list)
    """Required packages."""
    destination_passing_style: bool = True
    """Whether the caller passes the outputs in, or the function returns them; see `declared_style`."""
    binding: SupportedBindings | None = None
    """Binding of a compiled solution. null means the binding that the sources use (`entry.find_binding`). Ignored for
    other languages."""
    compile_options: CompileOptions | None = None
    """For compiled languages."""

    @field_validator("entry_point")
    @classmethod
    def _has_two_parts(cls, entry_point: str) -> str:
        path, separator, symbol = entry_point.partition("::")
        if not (path and separator and symbol) or "::" in symbol:
            raise ValueError(f"{entry_point[:200]!r} should read file::function, for example main.py::run")
        return f"{check_source_path(path)}::{symbol}"

    @property
    def declared_style(self) -> bool | None:
        """`destination_passing_style` as given in the file; None if it is absent and must be detected."""
        return self.destination_passing_style if "destination_passing_style" in self.model_fields_set else None


class Solution(DataModel):
    """An implementation of a definition."""

    name: NonEmpty
    """Unique in a set."""
    definition: NonEmpty
    """Name of the definition."""
    author: NonEmpty
    """The author: a person or a model."""
    description: str | None = None
    """A description for people."""
    sources: list[SourceFile]
    """At least one file; paths are unique."""
    spec: BuildSpec
    """The build spec."""

    @field_validator("sources")
    @classmethod
    def _paths_are_unique(cls, sources: list[SourceFile]) -> list[SourceFile]:
        if not sources:
            raise ValueError("there is no source file")
        if len(sources) > MOST_SOURCES:
            raise ValueError(f"there are {len(sources)} sources; a solution has at most {MOST_SOURCES}")
        paths = {source.path for source in sources}
        if len(paths) < len(sources):
            raise ValueError(f"{Counter(source.path for source in sources).most_common(1)[0][0]!r} is listed twice")
        for path in paths:
            if above := {*map(str, PurePosixPath(path).parents)} & paths:
                raise ValueError(f"{above.pop()!r} is a file, and the folder of {path!r}")
        return sources

    @model_validator(mode="after")
    def _entry_is_a_source(self) -> Solution:
        path, paths = str(self.get_entry_path()), [source.path for source in self.sources]
        if path not in paths:
            hint = did_you_mean(path, paths)
            raise ValueError(f"entry point {path!r} is not among the sources ({', '.join(paths)}){hint}")
        return self

    def get_entry_path(self) -> Path:
        """Return the relative path of the file that the entry point names."""
        return Path(self.spec.entry_point.partition("::")[0])

    def get_entry_symbol(self) -> str:
        """Return the name of the function that the entry point names."""
        return self.spec.entry_point.partition("::")[2]

    def get_entry_source(self) -> SourceFile:
        """Return the file that the entry point names."""
        return next(source for source in self.sources if source.path == str(self.get_entry_path()))

    def digest(self) -> str:
        """Return the digest of the parts that decide a verdict: definition, sources and spec."""
        spec = self.spec
        return digest_of(
            {
                "definition": self.definition,
                "sources": {source.path: source.content for source in self.sources},
                "language": spec.language.value,
                "target_hardware": spec.target_hardware,
                "entry_point": spec.entry_point,
                "dependencies": spec.dependencies,
                "declared_style": spec.declared_style,
                "binding": spec.binding.value if spec.binding else None,
                "compile_options": spec.compile_options.model_dump() if spec.compile_options else None,
            }
        )

    def hash(self) -> str:
        """Return `digest()`; existing scripts use this name."""
        return self.digest()

    def with_unique_name(self) -> Solution:
        """Return a copy with the start of the digest at the end of the name, so different contents have different
        names."""
        return self.model_copy(update={"name": f"{self.name}_{self.digest()[:_UNIQUE_DIGITS]}"})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Solution):
            return NotImplemented
        if self is other:
            return True
        is_alike = self._names() == other._names() and self.__pydantic_extra__ == other.__pydantic_extra__
        return is_alike and self.digest() == other.digest()

    def __hash__(self) -> int:
        return builtins.hash((self._names(), self.digest()))

    def _names(self) -> tuple[str | None, ...]:
        return (self.name, self.author, self.description)
