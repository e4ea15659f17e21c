"""The languages of solutions. To add a language, add a member here and, if needed, a builder.

These records hold all differences between languages: how sources are recognised, which module in `compile/builders/`
builds them, and what a machine needs to run them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final


@dataclass(frozen=True)
class Language:
    """The properties of one language."""

    suffixes: tuple[str, ...]
    """Suffixes of source files in the language."""
    builder: str = "python"
    """Module of `compile/builders/` that has `make_recipe` for the language."""
    is_compiled: bool = False
    """Whether compilers build solutions before they run. Otherwise the worker imports the sources."""
    needs_gpu: bool = False
    package: str | None = None
    """Python module that solutions in the language require. A Python source that imports the module is of this
    language."""
    headers: tuple[str, ...] = ()
    """Folders of the language's headers. A CUDA source that includes a header from these folders is of this
    language."""
    dependencies: tuple[str, ...] = ()
    """Dependencies of all solutions in the language."""
    program: str | None = None
    """Name of the compiler that the Python module `package` starts."""
    requires_cuda: bool = False
    """Whether solutions are built with the CUDA toolkit."""


PYTHON: Final = Language((".py",))
CUDA: Final = Language((".cu",), builder="native", is_compiled=True, needs_gpu=True, requires_cuda=True)


class SupportedLanguages(str, Enum):
    """Languages of solutions. If Python sources fit several languages, the first member counts. For other sources, the
    last member counts."""

    record: Language

    def __new__(cls, name: str, record: Language = PYTHON) -> SupportedLanguages:
        """Make a member whose value is the language's name."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.record = record
        return member

    PYTHON = "python", PYTHON
    TRITON = "triton", Language((".py",), package="triton")
    CPP = "cpp", Language((".cpp", ".cc", ".cxx"), builder="native", is_compiled=True)
    CUTLASS = "cutlass", replace(CUDA, headers=("cutlass", "cute"), dependencies=("cutlass",))
    CUDA = "cuda", CUDA
    CUTEDSL = "cutedsl", Language((".py",), package="cutlass", needs_gpu=True, dependencies=("nvidia-cutlass-dsl",))
    CUTILE = (
        "cutile",
        Language((".py",), package="cuda.tile", needs_gpu=True, dependencies=("cuda-tile",), program="tileiras"),
    )
    TILELANG = "tilelang", Language((".py",), package="tilelang", needs_gpu=True)
