"""Whole runs of small sets: written, planned, judged without saving, and gathered by solution and workload."""

from types import SimpleNamespace

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.events import JobFaulted, JobFinished, Notice
from flashinfer_bench.bench.machine import Machine
from flashinfer_bench.data import TraceSet
from tests.kit.make import make_definition, make_solution, make_trace, make_workload, write_trace_set
from tests.kit.processes import marked

HONEST = "def run(x):\n    return x * 2\n"
QUICKLY = {"devices": ["cpu"], "warmup_runs": 1, "iterations": 2, "num_trials": 1}


def write_set(root, solutions, references=None, *, sizes=(8,), uuids="w{1}", **parts):
    """Write and read a set.

    Args:
        root: its folder.
        solutions: name → source, judged for each definition; a tuple (definition, source) for one definition.
        references: definition → source; `double` alone by default.
        sizes: `n` of the workloads w0, w1, …; keywords are other parts of the definitions.
        uuids: form of their names, of the definition's name and their number.
    """
    references = references or {"double": HONEST}
    pairs = [
        (name if len(references) == 1 or isinstance(it, tuple) else f"{name}_{definition}", definition, it)
        for definition in references
        for name, it in solutions.items()
        if not isinstance(it, tuple) or it[0] == definition
    ]
    write_trace_set(
        root,
        definitions=[make_definition(name, reference=source, **parts) for name, source in references.items()],
        solutions=[
            make_solution(name, definition=definition, source=it[1] if isinstance(it, tuple) else it)
            for name, definition, it in pairs
        ],
        workloads=[
            make_trace(
                definition=name, workload=make_workload(uuids.format(name, at), axes={"n": n}, inputs={}), solution=None
            )
            for name in references
            for at, n in enumerate(sizes)
        ],
    )
    return TraceSet.from_path(root)


def judge(trace_set, *, machine=(), between=lambda: None, note=lambda _: None, cache=None, **settings):
    """Run a set; no process is left.

    Args:
        trace_set: the set.
        machine: other devices than this machine's.
        between: called when the plan is made.
        note: called with each event.
        cache: folder of built files.

    Returns:
        `done`: (solution, workload) → evaluation; `statuses` of it; `faults`, `notices` and `finished`: events.
    """
    benchmark = Benchmark(trace_set, BenchmarkConfig.default(**{**QUICKLY, **settings}), cache=cache)
    if machine:
        benchmark.context.machine = Machine(machine, benchmark.machine.languages)
    plan = benchmark.plan()
    between()
    events = []
    with marked() as alive:
        for event in benchmark.run(plan, save_results=False):
            events.append(event)
            note(event)
        assert not alive()
    finished, faults, notices = (
        [event for event in events if isinstance(event, kind)] for kind in (JobFinished, JobFaulted, Notice)
    )
    assert faults == benchmark.faults
    done = {(one.job.solution.name, one.job.workload.uuid): one.trace.evaluation for one in finished}
    return SimpleNamespace(
        done=done,
        statuses={name: one.status.value for (name, _), one in done.items()},
        logs={name: one.log for (name, _), one in done.items()},
        finished=finished,
        faults=faults,
        notices=[one.message for one in notices],
    )
