"""What chance decides where inputs are changed: by its seed alone, and without a wait for a device."""

from __future__ import annotations

import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs.stress.cases import STRESS_CASES
from flashinfer_bench.bench.evaluators.inputs.stress.chance import Chance
from flashinfer_bench.bench.evaluators.inputs.stress.plan import StressPlan
from tests.kit.make import make_definition, make_workload
from tests.kit.operations import WAITS, counting_operations

pytestmark = pytest.mark.cpu


def draw(seed):
    chance = Chance(seed, torch.device("cpu"))
    numbers = [chance.between((2.0, 3.0)), chance.below(1000), chance.is_so(), chance.sign()]
    return numbers, chance.some(5, 100).tolist(), torch.rand(4, generator=chance.many).tolist()


def test_a_seed_decides_all_that_a_chance_gives():
    assert draw(7) == draw(7)
    (between, below, is_so, sign), some, _ = draw(7)
    assert 2 <= between <= 3
    assert 0 <= below < 1000
    assert is_so in (True, False)
    assert sign in (1.0, -1.0)
    assert len(set(some)) == 5
    assert all(0 <= one < 100 for one in some)
    assert all(one != other for one, other in zip(draw(7)[1:], draw(8)[1:], strict=True))


@pytest.mark.parametrize("dtype", ["float32", "float16", "float8_e4m3fn", "uint8", "int8", "bool"])
def test_nobody_waits_for_a_device_while_inputs_are_changed(dtype):
    definition = make_definition(
        axes={"n": None, "m": None},
        inputs={"x": f"{dtype}[n, m]", "gate": f"{dtype}[n, m]"},
        outputs={"y": "float32[n]"},
        reference="def run(x, gate):\n    return gate.float().sigmoid() * x.float()\n",
    )
    regimes = StressPlan(definition, make_workload(axes={"n": 40, "m": 64}, inputs={}), seed=3)
    values = [torch.ones(40, 64).to(getattr(torch, dtype)) for _ in range(2)]
    with counting_operations() as counted:
        for name in STRESS_CASES:
            regimes.change(name, 0, values)
    assert counted.launches() > 0
    assert counted.counts.keys() & (WAITS - {"_to_copy"}) == set()  # it makes another dtype of what is there
