"""Predicts from a solution's language and sources what its first call compiles."""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, Final

from flashinfer_bench.data.languages import SupportedLanguages

if TYPE_CHECKING:  # sessions start sooner without the models
    from flashinfer_bench.data.solution import Solution

MODULES: Final = re.compile(r"^[ \t]*(?:from|import)[ \t]+flashinfer\b|\bcpp_extension\b", re.MULTILINE)
OTHERS: Final = re.compile(r"\b(?:torch\.compile|tvm|tvm_ffi|helion|cuda\.tile|cutlass\.cute)\b")


class FirstCall(str, Enum):
    """The compilation in a solution's first call."""

    NOTHING = "nothing"
    TRITON = "Triton's kernels"
    """Triton kernels compile in 0.3 to about ten seconds."""
    MODULES = "FlashInfer's modules, or extensions of torch's"
    """Ninja builds a module in tens of seconds or in minutes, and continues after an interruption. The solution may
    also compile Triton kernels."""
    OTHERS = "what other compilers make"
    """Other compilers take tens of seconds or minutes, and need a GPU."""

    @property
    def is_long(self) -> bool:
        """Whether it may take minutes."""
        return self in (FirstCall.MODULES, FirstCall.OTHERS)


def find_first_call(solution: Solution) -> FirstCall:
    """Return what a solution's first call compiles, by its language and its sources."""
    language, texts = solution.spec.language, [source.content for source in solution.sources]
    record = SupportedLanguages(language).record
    if record.is_compiled:
        return FirstCall.NOTHING
    if record.needs_gpu or any(OTHERS.search(text) for text in texts):
        return FirstCall.OTHERS
    if any(MODULES.search(text) for text in texts):
        return FirstCall.MODULES
    return FirstCall.TRITON if language == "triton" or any("triton" in text for text in texts) else FirstCall.NOTHING
