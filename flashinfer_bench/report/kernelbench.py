"""The latest verdicts on KernelBench's tasks as its `eval_results.json`: problem → samples.

`runtime` is our median in ms, where KernelBench has a mean. A solution keeps its sample id if its file had a name in
KernelBench's form and the id is free.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from flashinfer_bench.data.sets.results import list_results
from flashinfer_bench.data.store.trace_lines import AnyTrace
from flashinfer_bench.errors import UsageError
from flashinfer_bench.report.verdict import reason_of

if TYPE_CHECKING:
    from flashinfer_bench.data.trace_set import TraceSet

KERNELBENCH: Final = "kernelbench"
TASK: Final = re.compile(r"(kernelbench(?:_l\d+)?)_(\d+)_.*")
SAMPLE: Final = re.compile(r"sample_(\d+)")
NO_TASK: Final = "no task of KernelBench"


def make_results_file(_form: str, trace_set: TraceSet, traces: Iterable[AnyTrace]) -> tuple[bytes, int, Counter[str]]:
    """Return the file, its number of samples, and reason → number of omitted verdicts.

    Raises:
        UsageError: there are several levels, whose problems have the same numbers.
    """
    problems: dict[str, dict[int, Any]] = {}
    levels, left_out = Counter[str](), Counter[str]()
    for item in list_results(trace_set, traces):
        task, named = TASK.fullmatch(item.definition), SAMPLE.search(item.solution)
        if task is None:
            left_out[NO_TASK] += 1
            continue
        levels[task[1]] += 1
        samples = problems.setdefault(str(int(task[2])), {})
        number = next(one for one in count(int(named[1]) if named else 0) if one not in samples)
        latency, is_compiled = item.latency_ms, item.status != "COMPILE_ERROR"
        problem = "correctness_issue" if item.evaluation.correctness else "runtime_error"
        reason = {problem if is_compiled else "compilation_error": reason_of(item.evaluation)}
        samples[number] = {
            "sample_id": number,
            "compiled": is_compiled,
            "correctness": item.is_passed,
            "metadata": {"hardware": item.hardware, "solution": item.solution, **({} if item.is_passed else reason)},
            "runtime": latency or -1.0,
            "runtime_stats": {"median": latency} if latency else {},
        }
    if len(levels) > 1:
        raise UsageError(f"several levels number their problems alike; choose: --op-types {' or '.join(levels)}")
    found = {name: list(samples.values()) for name, samples in problems.items()}
    return json.dumps(found, indent=1, allow_nan=False).encode() + b"\n", levels.total(), left_out
