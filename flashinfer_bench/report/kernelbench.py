"""The latest verdicts on KernelBench's tasks in the form of KernelBench's `eval_results.json`: problem → samples.

`runtime` is a median in ms here, and a mean in KernelBench. A solution becomes one sample: a failure on the hardware of
the newest verdict, else the newest verdict. A solution from a file with KernelBench's form of name keeps the sample id
of the file, if the id is free.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import count
from operator import attrgetter
from typing import Any, Final

from flashinfer_bench.data.adapted import SOLUTION_FILE
from flashinfer_bench.data.sets.results import Result, group, moment_of
from flashinfer_bench.errors import UsageError
from flashinfer_bench.report.verdict import reason_of

KERNELBENCH: Final = "kernelbench"
TASK: Final = re.compile(r"(kernelbench(?:_l\d+)?)_(\d+)_.*")
NO_TASK: Final = "no task of KernelBench"
OTHER_JOB: Final = "the same solution on other hardware or another workload"


def make_eval_results(results: Sequence[Result]) -> tuple[dict[str, Any], int, Counter[str]]:
    """Return the document, the number of samples, and reason → number of omitted verdicts.

    Raises:
        UsageError: the tasks have more than one level. Problem numbers would repeat, because each level starts at 1.
    """
    problems: dict[str, dict[int, Any]] = {}
    levels, left_out = Counter[str](), Counter[str]()
    for items in group(results, attrgetter("definition", "solution")).values():
        item = _choose(items)
        task, named = TASK.fullmatch(item.definition), SOLUTION_FILE.search(item.solution)
        if task is None:
            left_out[NO_TASK] += len(items)
            continue
        left_out += Counter({OTHER_JOB: len(items) - 1})
        levels[task[1]] += 1
        samples = problems.setdefault(str(int(task[2])), {})
        wanted = int(named[3] or 0) if named and int(named[2]) == int(task[2]) else 0
        number = next(one for one in count(wanted) if one not in samples)
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
    return {name: list(samples.values()) for name, samples in problems.items()}, levels.total(), left_out


def _choose(items: Sequence[Result]) -> Result:
    """Choose the result that becomes the sample of a solution."""
    newest = max(reversed(items), key=lambda item: moment_of(item.evaluation))
    failed = (item for item in items if item.hardware == newest.hardware and not item.is_passed)
    return next(failed, newest)
