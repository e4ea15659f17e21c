"""The languages that solutions may be written in. To add one, add a member here and, if it needs one, a builder.

Everything that differs between languages is read from these records: how sources are recognised, which builder takes
them (a module in `compile/builders/`), and what a machine needs to run them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


@dataclass(frozen=True)
class Language:
    """Metadata of one language."""

    suffixes: tuple[str, ...]
    """Suffixes of its own source files."""
    builder: str = "python"
    """Module of `compile/builders/` with its `make_recipe`."""
    is_compiled: bool = False
    """Compilers build its solutions before they run. Otherwise the worker imports the sources."""
    needs_gpu: bool = False
    package: str | None = None
    """Python package without which it cannot run. A Python source that imports it is of this language."""
    requires_cuda: bool = False
    """It is built with the CUDA toolkit."""


PYTHON: Final = Language((".py",))


class SupportedLanguages(str, Enum):
    """Languages that a solution may be written in."""

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
    CUDA = "cuda", Language((".cu",), builder="native", is_compiled=True, needs_gpu=True, requires_cuda=True)
    TILELANG = "tilelang", Language((".py",), package="tilelang", needs_gpu=True)
