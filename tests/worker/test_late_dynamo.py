"""torch's compiler is imported when it is used, in a process that only compiles ahead."""

import subprocess
import sys

import pytest

from tests.kit.workers import ROOT

pytestmark = pytest.mark.cpu
BEGIN = """
import sys
import torch
from flashinfer_bench.worker.jit.stand_in import prepare_stand_in, stand_in
GPU = {"torch": {"name": "a GPU", "major": 9, "minor": 0, "multi_processor_count": 132}, "triton": {}}
prepare_stand_in()
with stand_in(GPU, asks_driver=False):
    x = torch.empty(4, 8, device="cuda")
    assert (torch.softmax(x, -1) @ x.T).shape == (4, 4)
assert "torch._dynamo.symbolic_convert" not in sys.modules
late = sys.modules["torch._dynamo"]
"""
USES = {
    "torch.compile": "assert torch.compile(lambda a: a * 2 + 1, backend='eager')(torch.ones(3)).tolist() == [3.0] * 3",
    "an attribute": "torch._dynamo.reset()",
    "a name": "from torch._dynamo import allow_in_graph",
    "a part": "import torch._dynamo.utils as part; assert part is sys.modules[part.__name__] is torch._dynamo.utils",
    "what uses it": "import torch._inductor.utils",
    "the decorator": "off = torch._dynamo.disable; assert off(len) is off()(len) is off(fn=len) is len",
    "a setting": "assert torch._dynamo.config.fake_tensor_cache_enabled in (True, False)",
}
KEPT = {"the decorator", "a setting"}


@pytest.mark.parametrize("use", USES)
def test_what_is_used_of_it_is_there(use):
    end = f"assert (sys.modules['torch._dynamo'] is late) is {use in KEPT}"
    done = subprocess.run(
        [sys.executable, "-c", f"{BEGIN}\n{USES[use]}\n{end}"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
