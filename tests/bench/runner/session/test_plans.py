"""How references are measured."""

from types import SimpleNamespace

import pytest

from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.runner.session.plans import plan_reference
from flashinfer_bench.timing.settings import TimingSettings
from tests.kit.make import make_definition

pytestmark = pytest.mark.cpu


def test_a_reference_is_measured_alike_at_each_assurance_so_a_kept_time_holds_for_both():
    config = BenchmarkConfig().resolve_eval_config(make_definition())
    plans = [
        plan_reference(
            SimpleNamespace(device="cuda", baseline_budget_s=2.0, timing=TimingSettings("warm", assurance=assurance)),
            config,
        )
        for assurance in ("standard", "full")
    ]
    assert plans[0] == plans[1]
    assert plans[0].timing.l2_cache == "warm"
