"""Whose kernel ran, told by the names in CUPTI's records: torch's product, an own kernel, and both; also in graphs."""

import pytest

from tests.gpu.runs import judge, write_set
from tests.kit import make_definition

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
GEMM = make_definition(
    name="gemm",
    axes={"m": {"type": "var"}, "n": {"type": "const", "value": 512}},
    inputs={"a": {"shape": ["m", "n"], "dtype": "bfloat16"}, "b": {"shape": ["n", "n"], "dtype": "bfloat16"}},
    outputs={"c": {"shape": ["m", "n"], "dtype": "bfloat16"}},
    reference="import torch\n\ndef run(a, b):\n    return torch.matmul(a, b)\n",
)
TRITON = """
import torch, triton
import triton.language as tl

@triton.jit
def product(a, b, c, m, n, block: tl.constexpr):
    rows = tl.program_id(0) * block + tl.arange(0, block)
    columns, steps = tl.program_id(1) * block + tl.arange(0, block), tl.arange(0, block)
    total = tl.zeros((block, block), tl.float32)
    for k in range(0, n, block):
        left = tl.load(a + rows[:, None] * n + k + steps[None, :], mask=rows[:, None] < m, other=0.0)
        total += tl.dot(left, tl.load(b + (k + steps)[:, None] * n + columns[None, :]))
    tl.store(c + rows[:, None] * n + columns[None, :], total.to(tl.bfloat16), mask=rows[:, None] < m)

def mine(a, b):
    c = torch.zeros_like(a)
    product[(triton.cdiv(a.shape[0], 64), a.shape[1] // 64)](a, b, c, a.shape[0], a.shape[1], 64)
    return c
"""
SOLUTIONS = {
    "torch": "import torch\ndef run(a, b):\n    return torch.matmul(a, b)",
    "cast": "import torch\ndef run(a, b):\n    return torch.matmul(a.float(), b.float()).to(a.dtype)",
    "own": f"{TRITON}\ndef run(a, b):\n    return mine(a, b)",
    "mixed": f"{TRITON}\ndef run(a, b):\n    return mine(a, b) + torch.matmul(a, b) * 0",
}
WHOSE = {"torch": "all", "cast": "all", "own": "none", "mixed": "some"}


@pytest.fixture(scope="module")
def trace_set(tmp_path_factory):
    return write_set(tmp_path_factory.mktemp("set"), SOLUTIONS, definition=GEMM, axes=[{"m": 256}])


def test_library_calls_are_flagged_and_named(trace_set):
    for (name, _), evaluation in judge(trace_set, confirm=False).items():
        record = evaluation.extra["measurement"]
        assert evaluation.status.value == "PASSED", evaluation.log
        assert record["library_kernels"] == WHOSE[name], record["kernels"]
        assert ("library_calls" in record.get("flags", [])) is (WHOSE[name] == "all")
        assert any("product" in one for one in record["kernels"]) is (name in ("own", "mixed"))
        assert sum(record["kernels"].values()) == record["operations"] * record["samples"]


def test_library_calls_are_refused_by_name_and_nothing_is_refused_without_records(trace_set):
    refused = {}
    for (name, _), evaluation in judge(trace_set, confirm=False, library_calls="refuse").items():
        refused[name] = evaluation.status.value == "RUNTIME_ERROR" and "library calls are refused" in evaluation.log
    assert refused == {name: whose == "all" for name, whose in WHOSE.items()}
    for evaluation in judge(trace_set, confirm=False, library_calls="refuse", clock="cuda_events").values():
        assert evaluation.status.value == "PASSED", evaluation.log
        assert evaluation.extra["measurement"]["library_kernels"] == "unknown"
        assert "unknown_kernels" in evaluation.extra["measurement"]["flags"]
