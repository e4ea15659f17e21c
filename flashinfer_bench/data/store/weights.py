"""The file `weights.yaml` in a root: weights of the root's workloads, by definition.

    rmsnorm_h4096:
      batch_size=7: 3.0
      5d3a9f1c: 0.5

A key is a uuid, the beginning of a uuid, or sizes. If several keys name a workload, the last key counts. The file
overrides the weights in the lines of workloads. A file with an error has no effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from flashinfer_bench.data.issue import LoadIssue
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.store.yaml_file import read_yaml_file
from flashinfer_bench.data.trace import Trace
from flashinfer_bench.data.workload import Weight, find_named
from flashinfer_bench.errors import ConfigError

_SECTIONS: Final = TypeAdapter(dict[str, dict[str, Weight]])


def apply_weights(file: Path, workloads: Mapping[str, list[Trace]]) -> Iterator[LoadIssue]:
    """Give workloads the weights in a file. Yield the problems of the file."""
    lines_of: Mapping[tuple[str, ...], int] = {}
    try:
        content = read_yaml_file(file)
        lines_of = content.lines
        sections = _SECTIONS.validate_python(content.values)
    except ConfigError as error:
        for reason in str(error).splitlines():
            yield LoadIssue("error", file, None, None, reason.removeprefix(f"{file}: "))
        return
    except ValidationError as error:
        for item in error.errors(include_url=False):
            keys = tuple(map(str, item["loc"][:2]))
            yield LoadIssue("error", file, lines_of.get(keys), ".".join(keys), item["msg"])
        return
    for name, section in sections.items():
        lines = workloads.get(name, [])
        if not lines:
            reason = f"there are no workloads of this definition{did_you_mean(name, workloads)}"
            yield LoadIssue("warning", file, lines_of.get((name,)), name, reason)
            continue
        for key, weight in section.items():
            named = find_named(key, enumerate(lines), lambda pair: pair[1].workload)
            for index, line in named:
                workload = line.workload.model_copy(update={"weight": weight})
                lines[index] = line.model_copy(update={"workload": workload})
            if not named:
                sizes = [f"{axis}={size}" for line in lines for axis, size in line.workload.axes.items()]
                known = [*(line.workload.uuid for line in lines), *sizes]
                reason = f"no workload has this name{did_you_mean(key, known)}"
                yield LoadIssue("warning", file, lines_of.get((name, key)), f"{name}.{key}", reason)
