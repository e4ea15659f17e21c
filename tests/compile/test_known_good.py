"""Which of our own programs are tried after a solution has failed."""

from __future__ import annotations

import pytest

from flashinfer_bench.compile.known_good import programs_like

LOADS = "Python that loads a library"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import torch", [LOADS]),
        ("from flashinfer_bench.data import TraceSet", [LOADS]),
        ("from flashinfer.norm import rmsnorm", [LOADS, "torch.utils.cpp_extension"]),
        ("from torch.utils.cpp_extension import load_inline", [LOADS, "torch.utils.cpp_extension"]),
        ("@torch.compile", [LOADS, "torch.compile"]),
        ("import triton", [LOADS, "Triton"]),
    ],
)
def test_only_programs_that_are_compiled_as_a_solution_are_tried(text, expected):
    assert [program.what for program in programs_like("python", "", [text])] == expected
