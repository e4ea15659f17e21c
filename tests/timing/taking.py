"""Trials on a fake GPU, and what is flagged of them."""

from flashinfer_bench.timing.procedure import Procedure, take_trial
from flashinfer_bench.timing.summary import summarise
from tests.kit.fake_gpu import fake_cupti_clock

RECIPE = Procedure(warmup_runs=10, iterations=50, budget_s=10.0)
SECOND_NS = 10**9


def take(gpu, call, recipe=RECIPE, **faults):
    clock, _ = fake_cupti_clock(gpu, **faults)
    return take_trial(lambda _index: call, clock, recipe, now=gpu.seconds)


def flags_of(trial):
    return summarise([trial]).record.get("flags", [])
