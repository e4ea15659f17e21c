"""Judging is rehearsed once for each evaluator and kind of outputs, and a rehearsal that fails changes nothing."""

from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.evaluator import JudgeContext
from flashinfer_bench.bench.runner.session import rehearsal
from flashinfer_bench.bench.runner.session.rehearsal import Rehearsals

pytestmark = pytest.mark.cpu


class Played:
    """Plays a reference, and notes its calls."""

    def __init__(self):
        self.called = []

    def spare(self, inputs):
        return [one.clone() for one in inputs]

    def __call__(self, inputs):
        self.called.append(inputs)
        inputs[0].zero_()  # as one that writes to its inputs
        return [torch.zeros(4)]


def make_job(evaluator, dtype="float32"):
    """Return a job whose definition has one output."""
    definition = SimpleNamespace(outputs={"y": SimpleNamespace(dtype=dtype)}, name="twice", op_type="twice")
    block = SimpleNamespace(evaluator=evaluator, definition=definition, reference=Played())
    return SimpleNamespace(block=block, config=None)


CONTEXT = JudgeContext(seed=0, blob_root=None, reference=None, profile_baseline=False, measure_reference=None, notes={})


def test_an_evaluator_is_rehearsed_once_for_each_kind_of_outputs(monkeypatch):
    judged = []

    class Ours(DefaultEvaluator):
        __module__ = "flashinfer_bench.bench.evaluators.ours"

        @classmethod
        def judge_reads(cls, definition, calls, cfg, context):
            judged.append(("reads", len(calls)))

        @classmethod
        def judge_call(cls, definition, trial, cfg, context):
            judged.append(("call", trial.inputs[0].tolist()))

    rehearsals, job, inputs = Rehearsals(), make_job(Ours), [torch.ones(2)]
    step = rehearsals.find(job, inputs, CONTEXT)
    assert judged == []
    step()
    assert judged == [("reads", rehearsal.CALLS), ("call", [1.0, 1.0])]
    assert rehearsals.find(job, inputs, CONTEXT) is None
    assert rehearsals.find(make_job(Ours, "bfloat16"), inputs, CONTEXT) is not None


def test_evaluators_of_others_and_large_calls_are_not_rehearsed(monkeypatch):
    class Theirs(DefaultEvaluator):
        __module__ = "plug_in"

    assert Rehearsals().find(make_job(Theirs), [torch.ones(2)], CONTEXT) is None
    monkeypatch.setattr(rehearsal, "MOST_BYTES", 4)
    assert Rehearsals().find(make_job(DefaultEvaluator), [torch.ones(2)], CONTEXT) is None


def test_what_fails_in_a_rehearsal_is_told_where_it_counts():
    job = make_job(DefaultEvaluator)
    job.block.reference.spare = lambda _inputs: 1 / 0
    Rehearsals().find(job, [torch.ones(2)], CONTEXT)()
