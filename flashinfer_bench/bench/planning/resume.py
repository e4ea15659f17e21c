"""The jobs that a resumed run can skip: their fingerprints equal fingerprints of recorded traces.

The fingerprint of a trace is in `evaluation.extra["run"]["fingerprint"]`. A fingerprint has digests of the definition,
the solution, the workload and the eval config. It has the hardware's name, the evaluator's class with its revision, and
for a plug-in the digest of its source. A fingerprint also has unusual timing settings (quick, warm L2, CUDA events, no
graphs), whether workers had a sandbox, the user's seed, and full assurance. A trace without a fingerprint, such as
another engine's, does not count as recorded. Traces from the time before evaluators had revisions do not count either.

Verdicts of quick runs are never reused. A job that failed in a quick run is done again, even if a run that was not
quick has recorded a verdict.

Reports show the latest verdict of a job. So a recorded verdict stops counting when a later verdict on the same hardware
was made with a changed solution, definition, workload or evaluator. Later verdicts under other settings change nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from flashinfer_bench.data.evaluation import EvaluationStatus
from flashinfer_bench.data.measurement import RunRecord, read_measurement, read_reported
from flashinfer_bench.data.sets.results import JUDGED_KEYS, in_order_of_time
from flashinfer_bench.data.store.trace_lines import AnyEvaluation, AnyTrace

if TYPE_CHECKING:
    from flashinfer_bench.bench.config import BenchmarkConfig
    from flashinfer_bench.bench.planning.plan import Job

FINGERPRINT_KEYS: Final = (
    *("definition", "solution", "workload", "config", "hardware", "evaluator", "timing"),
    *("protocol", "sandbox", "seed", "assurance"),
)
PROTOCOL: Final = 15
"""Version of calling and timing solutions. It is raised when a verdict or its time may change: traces of an older
protocol are judged again. 2: each call has its own content, and batches confirm times. 3: calls that draw random
numbers are timed as replays of graphs, too. 4: stored probabilities change their order from call to call; more of the
timed calls are judged. 5: calls of more than a millisecond are timed while no context is made; normally distributed
inputs are redrawn for each call on a CPU, too. 6: calls that wait for the GPU inside are interleaved with their
references. 7: a GPU cools down longer before calls of more than 10 ms; bits of random bytes are flipped; more draws of
timed samplers are judged. 8: a GPU cools down twice as long before such calls; bits of stored narrow numbers are
flipped; states of mamba and gdn decay at all rates; draws of flat rows are tested separately. 9: batches of short calls
on a GPU are longer, and subtract less for values in the cache; on a CPU one thread copies results, and batches after
chains refuse less. 10: calls on a GPU are compared with gated chains. 11: random integers fit the reference's use of
them; bytes, bools and 8-bit floats have stress cases, too, and the reference's tests add some. 12: stress cases are
judged in the rows in which the reference is finite, and in a secret order. 13: secret parts of inputs differ in some
calls; calls that wait for the GPU inside alternate with their references every eight calls. 14: the process that makes
calls on a GPU moves away from slow cores. 15: a gated chain bounds every latency on a GPU, batches only at full
assurance, and no latency is below the physical floor; a CPU's latency has no bound; the definition and the workload
decide a job's stress cases; all trials are timed as one; the process that makes calls chooses no core any more."""
FULL: Final = "full"
"""Fingerprint value of full assurance. Verdicts at full assurance also count if standard assurance is requested.
Standard assurance has no key."""
HARDWARE_JOINT: Final = " + "
"""Joins the names of the devices of one run."""
QUICK_ONLY: Final = "it was a quick look"
"""Why a job is done again if its latest verdict comes from a quick run."""
OVER_MEMORY: Final = "more host memory than a worker may"
"""Words in the log of a worker that was ended because of its memory."""
JobKey = tuple[str, str, str]
"""Names of definition and solution, and the workload's uuid."""


def names_of(trace: AnyTrace) -> tuple[str, str | None, str]:
    """Return the names of a trace's job."""
    return trace.definition, trace.solution, trace.workload.uuid


def fingerprint(**keys: str | int | None) -> dict[str, str]:
    """Return the values of FINGERPRINT_KEYS as text; a key whose value is None is omitted."""
    return {key: str(keys[key]) for key in FINGERPRINT_KEYS if keys.get(key) is not None}


def is_same(recorded: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Return whether a recorded fingerprint equals the wanted fingerprint, or differs only by a higher assurance.

    If no seed is requested, any seed matches.
    """
    more = {"seed", "assurance"} - wanted.keys()
    return {key: value for key, value in recorded.items() if key not in more} == wanted


class Decision(NamedTuple):
    """The decision whether a resumed run judges a job. A job without a reason and without a trace is new."""

    reason: str = ""
    """Reason why a recorded job is done again: "solution changed", "timed out"."""
    trace: AnyTrace | None = None
    """The recorded trace of a skipped job: its latest trace with a baseline, else its latest trace."""


Record = tuple[AnyTrace, AnyEvaluation, RunRecord]


class RecordedJobs:
    """The jobs for which a trace set has verdicts.

    Args:
        traces: recorded traces; lines without an evaluation are skipped.
        retry_timeouts: whether to repeat a job with the verdict TIMEOUT.
    """

    def __init__(self, traces: Iterable[AnyTrace], *, retry_timeouts: bool = False) -> None:
        self._retries = retry_timeouts
        self._by_key: defaultdict[tuple[str, str | None, str], list[AnyTrace]] = defaultdict(list)
        """The verdicts on each job, the latest last. `decide` reads their records."""
        for trace in in_order_of_time(traces):
            self._by_key[names_of(trace)].append(trace)

    def decide(self, job: Job, config: BenchmarkConfig) -> Decision:
        """Return whether a job is recorded, has changed since, or is new."""
        traces = self._by_key.get((job.definition.name, job.solution.name, job.workload.uuid), [])
        return decide(job, config, traces, retry_timeouts=self._retries)


def decide(job: Job, config: BenchmarkConfig, traces: Sequence[AnyTrace], *, retry_timeouts: bool = False) -> Decision:
    """Decide whether traces with an evaluation, the latest last, record a job."""
    wanted = job.fingerprint
    devices = wanted.get("hardware", "").split(HARDWARE_JOINT)
    records = [(one, one.evaluation, read_reported(one.evaluation).run) for one in traces if one.evaluation is not None]
    if not records:
        return Decision()
    shown = _newest_alike([one for one in records if one[1].environment.hardware in devices], wanted)
    same = [one for one in shown if is_same(one[2].keys, wanted) and not one[2].quick]
    if not same:
        last = records[-1][2]
        return Decision(QUICK_ONLY if last.quick else _what_changed(last.keys, wanted))
    if shown[-1][2].quick and shown[-1][1].status is not EvaluationStatus.PASSED:
        return Decision("failed in a quick look")
    _, evaluation, run = same[-1]
    if reason := _which_limit(evaluation, run, config, retry_timeouts=retry_timeouts):
        return Decision(reason)
    timed = [one for one in same if _is_timed(one[1], config)]
    if config.profile_baseline and job.workload.timed and not timed:
        return Decision("baseline was not measured")
    return Decision(trace=(timed or same)[-1][0])


def _is_timed(evaluation: AnyEvaluation, config: BenchmarkConfig) -> bool:
    """Return whether a verdict has all times of the reference that a run requests, or no time at all."""
    performance, mode = evaluation.performance, config.compile_mode
    if performance is None:
        return True
    has_mode = not mode or read_reported(evaluation).baseline_compile.mode == mode
    return performance.reference_latency_ms > 0 and has_mode


def _which_limit(evaluation: AnyEvaluation, run: RunRecord, config: BenchmarkConfig, *, retry_timeouts: bool) -> str:
    """Return why a job is done again: the limit that ended the job is larger now, or only one of the runs refuses
    library calls. Empty if there is no such reason. A missing memory limit counts as larger than any limit."""
    if evaluation.status is EvaluationStatus.TIMEOUT:
        if retry_timeouts:
            return "timed out"
        is_longer = run.timeout_seconds is not None and config.timeout_seconds > run.timeout_seconds
        is_longer |= (config.call_timeout_seconds or inf) > (run.call_timeout_seconds or inf)
        return "timed out under a shorter limit" if is_longer else ""
    is_error, refuses = evaluation.status is EvaluationStatus.RUNTIME_ERROR, config.library_calls == "refuse"
    if refuses and evaluation.performance is not None and read_measurement(evaluation).library_kernels == "all":
        return "library calls are refused now"
    if is_error and not refuses and read_reported(evaluation).library_calls == "refused":
        return "library calls were refused"
    then_gb, now_gb = (inf if one is None else one for one in (run.worker_memory_gb, config.worker_memory_gb))
    is_over = is_error and OVER_MEMORY in evaluation.log
    return "ended under a smaller limit of memory" if is_over and now_gb > then_gb else ""


def _newest_alike(records: list[Record], wanted: Mapping[str, str]) -> list[Record]:
    """Return the records after the latest record whose solution, definition, workload or evaluator is not the wanted
    one."""
    judged = list(map(wanted.get, JUDGED_KEYS))
    for index in range(len(records), 0, -1):
        keys = records[index - 1][2].fingerprint
        if list(map(keys.get, JUDGED_KEYS)) != judged:
            return records[index:]
    return records


def _what_changed(recorded: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    if not recorded:
        return "recorded without a fingerprint"
    kept = [key for key in FINGERPRINT_KEYS if key in wanted or key not in ("seed", "assurance")]
    changed = [key for key in kept if recorded.get(key) != wanted.get(key)]
    return f"{' and '.join(changed)} changed" if changed else "fingerprint of another form"
