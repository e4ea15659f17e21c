"""What the host knows of the built-in evaluators is what their classes say; a raised revision is judged again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench import context as context_module
from flashinfer_bench.bench.evaluators.built_in import DEFAULT, IN_ORDER, mark_built_in
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.evaluator import Evaluator
from flashinfer_bench.bench.evaluators.registry import _EVALUATORS, choose_evaluator
from flashinfer_bench.bench.events import JobFinished
from flashinfer_bench.data import TraceSet
from tests.cli.fake_engine import finished, write_small_set
from tests.kit import make_definition

pytestmark = pytest.mark.cpu
BUNDLED = Path(__file__).parents[3] / "flashinfer-trace"
EXTRA = make_definition(op_type="top_k", inputs={"scores": "float32[n]"}, outputs={"indices": "int32[n]"})


def test_the_host_knows_the_classes_their_order_and_their_revisions():
    classes = [*_EVALUATORS, DefaultEvaluator]
    assert [(item.name, item.revision) for item in IN_ORDER] == [(each.__name__, each.revision) for each in classes]
    assert all(each.revision > Evaluator.revision == 0 for each in classes)


def test_host_and_judge_find_the_same_evaluator():
    definitions = [*TraceSet.from_path(BUNDLED).definitions.values(), EXTRA]
    marks = {mark_built_in(definition) for definition in definitions}
    assert all(mark_built_in(each) == choose_evaluator(each).fingerprint for each in definitions)
    assert len(marks) >= 5


def test_a_raised_revision_is_judged_again(tmp_path, monkeypatch):
    config = BenchmarkConfig.default(devices=["cpu"])
    trace_set = TraceSet.from_path(write_small_set(tmp_path))
    jobs = Benchmark(trace_set, config).plan().jobs
    events = [finished(job, environment={"hardware": job.fingerprint["hardware"], "libs": {}}) for job in jobs]
    trace_set.keep_traces([event.trace for event in events if isinstance(event, JobFinished)])
    assert Benchmark(trace_set, config).plan(resume=True).resumed == len(jobs) > 0
    raised = (replace(DEFAULT, revision=DEFAULT.revision + 1),)
    monkeypatch.setattr(context_module, "mark_built_in", lambda definition: mark_built_in(definition, raised))
    assert Benchmark(trace_set, config).plan(resume=True).redone_reasons == {"evaluator changed": len(jobs)}
