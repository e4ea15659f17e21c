"""A run without processes: an engine that plays prepared events, jobs to play with, and a small set on disk."""

from unittest.mock import patch

from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.events import JobFaulted, JobFinished, JobStarted, RunStarted
from flashinfer_bench.bench.machine import Device, Machine
from flashinfer_bench.bench.planning.plan import make_plan
from flashinfer_bench.bench.planning.resume import RecordedJobs
from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.store.jsonl import append_lines
from flashinfer_bench.data.store.layout import traces_path
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set

CPU = Device("cpu", 0, "test device", "cpu")
MACHINE = Machine((CPU,), {"python": None, "cuda": "there is no nvcc"})


def write_small_set(root, *, workloads=2, **parts):
    """Write `double` with two Python solutions and one in CUDA."""
    in_cuda = make_solution("in_cuda", language="cuda", source="TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run_it);\n")
    solutions = [make_solution(), make_solution("other"), in_cuda]
    lines = [make_trace(solution=None, workload=make_workload(f"w{index}")) for index in range(workloads)]
    return write_trace_set(root, definitions=[make_definition()], solutions=solutions, workloads=lines, **parts)


def make_jobs(root, **parts):
    """Write the small set and return the jobs of its plan."""
    trace_set = TraceSet.from_path(write_small_set(root, **parts))
    return make_plan(trace_set, BenchmarkConfig(), MACHINE).jobs


def finished(job, **parts):
    """Return the event of a job's verdict; keywords are the evaluation's."""
    run = {"fingerprint": dict(job.fingerprint)}
    extra = {**parts.pop("extra", {}), "run": run}
    trace = make_trace(
        definition=job.definition.name, solution=job.solution.name, workload=job.workload, extra=extra, **parts
    )
    return JobFinished(job, trace, CPU, 0.5)


def play_run(words, verdict_of=lambda job: {}):
    """Type `run` with a FakeEngine; return the exit code and the last engine, None where it came to none."""
    engines = []

    def make_engine(trace_set, config, **_):
        engines.append(FakeEngine(trace_set, config, verdict_of))
        return engines[-1]

    with patch("flashinfer_bench.bench.benchmark.Benchmark", make_engine):
        return main(["run", *words]), engines[-1] if engines else None


class FakeEngine:
    """Plans like the real engine and gives each job the verdict that `verdict_of` says.

    Args:
        verdict_of: job → keywords of its evaluation, a text for a fault, its event, or an exception to raise.
    """

    machine = MACHINE

    def __init__(self, trace_set, config, verdict_of=lambda job: {}):
        self.trace_set = trace_set
        self.config = config
        self.verdict_of = verdict_of
        self.saved = None
        self.replayed = []
        self.is_closed = self.is_ended = False

    def get_trace_set(self):
        return self.trace_set

    def plan(self, *, resume=False, retry_timeouts=False, drafts=False):
        traces = [trace for traces in self.trace_set.traces.values() for trace in traces]
        recorded = RecordedJobs(traces, retry_timeouts=retry_timeouts) if resume else None
        return make_plan(self.trace_set, self.config, self.machine, recorded=recorded, drafts=drafts)

    def reserve(self, plan):
        return plan

    def find_resumed(self, plan):
        return [trace for _, trace in plan.done]

    def replay(self, traces):
        self.replayed = list(traces)

    def run(self, plan, *, save_results=True):
        self.saved = save_results
        try:
            yield RunStarted(self.machine.devices, len(plan.jobs))
            for job in plan.jobs:
                verdict = self.verdict_of(job)
                yield JobStarted(job, CPU)
                if isinstance(verdict, BaseException):
                    raise verdict
                if isinstance(verdict, JobFaulted):
                    yield verdict
                    continue
                event = JobFaulted(job, verdict) if isinstance(verdict, str) else finished(job, **verdict)
                if save_results and isinstance(event, JobFinished) and self.trace_set.root is not None:
                    names = {"author": job.solution.author, "op_type": job.definition.op_type}
                    file = traces_path(self.trace_set.root, definition=job.definition.name, **names)
                    append_lines(file, [event.trace.to_json()])
                yield event
        finally:
            self.is_ended = True

    def close(self):
        self.is_closed = True
