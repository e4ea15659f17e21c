"""What a solution's first call compiles."""

import pytest

from flashinfer_bench.bench.planning.first_call import FirstCall, find_first_call
from flashinfer_bench.bench.runner.requests import describe_solution
from flashinfer_bench.compile.artifact import Built
from flashinfer_bench.errors import BuildFault
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


def test_a_solution_that_was_not_built_compiles_nothing():
    built = Built(make_solution(source="import triton"), None, BuildFault("main.py is missing"), 0.0, was_cached=False)
    assert describe_solution(built).first_call is FirstCall.NOTHING
