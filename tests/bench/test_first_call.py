"""What a solution's first call compiles."""

import pytest

from flashinfer_bench.bench.planning.first_call import FirstCall, find_first_call
from tests.kit import make_solution


@pytest.mark.parametrize(
    ("language", "source", "first_call"),
    [
        ("triton", "def run(x): return x", FirstCall.TRITON),
        ("python", "import triton", FirstCall.TRITON),
        ("python", "import flashinfer\nimport triton", FirstCall.MODULES),
        ("python", "import torch", FirstCall.NOTHING),
        ("cpp", "#include <torch/extension.h>  // triton", FirstCall.NOTHING),
    ],
)
def test_language_and_sources_decide_what_a_first_call_compiles(language, source, first_call):
    assert find_first_call(make_solution(source=source, language=language)) is first_call
