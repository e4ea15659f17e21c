"""Judging is rehearsed once for each evaluator and kind of outputs, and a rehearsal that fails changes nothing."""

from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.evaluator import JudgeContext
from flashinfer_bench.bench.evaluators.inputs.stress import StressPlan
from flashinfer_bench.bench.runner.session import rehearsal
from flashinfer_bench.bench.runner.session.rehearsal import Rehearsals, is_small
from flashinfer_bench.bench.runner.workers.claims import OutputSpec
from tests.kit import make_definition
from tests.kit.make import make_workload

pytestmark = pytest.mark.cpu


def make_job(evaluator, dtype="float32"):
    """Return a job whose definition has one output."""
    definition = SimpleNamespace(outputs={"y": SimpleNamespace(dtype=dtype)}, name="twice", op_type="twice")
    return SimpleNamespace(block=SimpleNamespace(evaluator=evaluator, definition=definition), config=None)


CONTEXT = JudgeContext(seed=0, blob_root=None, reference=None, profile_baseline=False, measure_reference=None, notes={})


def test_an_evaluator_is_rehearsed_once_for_each_kind_of_outputs():
    judged = []

    class Ours(DefaultEvaluator):
        __module__ = "flashinfer_bench.bench.evaluators.ours"

        @classmethod
        def judge_reads(cls, definition, calls, cfg, context):
            judged.append(("reads", len(calls)))

        @classmethod
        def judge_call(cls, definition, trial, cfg, context):
            judged.append(("call", trial.inputs, trial.got, trial.expected))

    rehearsals, job = Rehearsals(), make_job(Ours)
    steps = rehearsals.find(job, CONTEXT)
    assert judged == []
    for step in steps:
        step(["inputs"], ["outputs"])
    assert judged == [("reads", 2), ("call", ["inputs"], ["outputs"], ["outputs"])]
    assert rehearsals.find(job, CONTEXT) == ()
    assert len(rehearsals.find(make_job(Ours, "bfloat16"), CONTEXT)) == 6


def test_evaluators_of_others_are_not_rehearsed():
    class Theirs(DefaultEvaluator):
        __module__ = "plug_in"

    assert Rehearsals().find(make_job(Theirs), CONTEXT) == ()


def test_nothing_is_done_beside_a_large_call(monkeypatch):
    monkeypatch.setattr(rehearsal, "MOST_BYTES", 12)
    output = OutputSpec("y", (2,), torch.float16)
    assert is_small([torch.ones(2), 3], [output])
    assert not is_small([torch.ones(2), 3, torch.ones(1)], [output])
    assert not is_small([torch.ones(2), 3], [output, output])


def test_what_fails_in_a_rehearsal_is_told_where_it_counts():
    for step in Rehearsals().find(make_job(DefaultEvaluator), CONTEXT):
        step([], [])


def test_inputs_of_calls_are_made_and_the_job_s_own_stay_as_they_are(monkeypatch):
    definition = make_definition(inputs={"x": "float32[n]", "k": "int32"}, outputs={"y": "float32[n]"})
    workload = make_workload(axes={"n": 64}, inputs={"x": {"type": "random"}, "k": {"type": "scalar", "value": 3}})
    config = BenchmarkConfig().resolve_eval_config(definition)
    block = SimpleNamespace(evaluator=DefaultEvaluator, definition=definition)
    job = SimpleNamespace(block=block, workload=workload, config=config, order=SimpleNamespace(seed=1))
    changed, change = [], StressPlan.change
    monkeypatch.setattr(
        StressPlan, "change", lambda plan, name, *given: changed.append(name) or change(plan, name, *given)
    )
    x = torch.randn(64)
    before = x.clone()
    for step in Rehearsals().find(job, CONTEXT):
        step([x, 3], [x])
    assert len(changed) == len(set(changed)) == 8
    assert torch.equal(x, before)
