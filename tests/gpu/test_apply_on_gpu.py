"""FlashInfer serves what `export apply` writes: an unchanged and a wrapped solution, in a process of its own."""

import json
import os
import subprocess
import sys

import pytest

from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.trace_apply.check import check_folder
from tests.conftest import CHECKOUT
from tests.kit import make_trace

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(300)]
SOLUTIONS = ("triton_rmsnorm_h4096", "triton_rope_with_cos_sin_cache_neox_style_d128_rd128")
SERVED = """
import json
import flashinfer, torch
from flashinfer import trace_apply

x, weight = torch.randn(7, 4096, device="cuda").bfloat16(), torch.randn(4096, device="cuda").bfloat16()
expected = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-5) * weight.float()
norm = (flashinfer.rmsnorm(x, weight, eps=1e-5).float() - expected).abs().max().item()
rows, positions = torch.randn(5, 640, device="cuda").bfloat16(), torch.arange(5, device="cuda", dtype=torch.int32)
cache = torch.cat([torch.zeros(8, 64), torch.ones(8, 64)], 1).cuda()
query, key = flashinfer.apply_rope_with_cos_sin_cache(positions, rows[:, :512], rows[:, 512:], 128, cache)
first, second = key.chunk(2, 1)
turned = torch.equal(torch.cat([second, -first], 1), rows[:, 512:])
print(json.dumps({"norm": norm, "turned": turned, "stats": trace_apply.stats()}))
"""


def test_an_unchanged_and_a_wrapped_solution_are_served(tmp_path):
    pytest.importorskip("flashinfer.trace_apply")
    trace_set = TraceSet.from_path(CHECKOUT / "flashinfer-trace")
    for name in SOLUTIONS:
        definition = trace_set.get_solution(name).definition
        trace_set.traces[definition] = [make_trace(definition=definition, solution=name)]
    done = trace_set.export_apply(tmp_path / "applied", solutions=SOLUTIONS, unconfirmed=True)
    assert sorted(one.form for one in done.written) == ["unchanged", "wrapped"]
    assert check_folder(tmp_path / "applied")["problems"] == []
    switches = {"FLASHINFER_TRACE_APPLY": "1", "FLASHINFER_TRACE_APPLY_PATH": str(tmp_path / "applied")}
    command = [sys.executable, "-c", SERVED]
    ran = subprocess.run(command, env={**os.environ, **switches}, capture_output=True, text=True, check=True)
    said = json.loads(ran.stdout.splitlines()[-1])
    hits = {api.rpartition(".")[2]: counts for api, counts in said["stats"].items()}
    assert hits == {"rmsnorm": {"hit": 1}, "apply_rope_with_cos_sin_cache": {"hit": 1}}
    assert said["norm"] < 0.1
    assert said["turned"]
