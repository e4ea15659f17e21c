"""Programs that take the place of ncu and compute-sanitizer: they start what they are given, and print as those do."""

from collections.abc import Mapping
from pathlib import Path

NCU = """#!/bin/sh
case "$*" in
--query-metrics) printf 'Device X\\ngpu__time_duration  Nanoseconds\\ndram__bytes  Bytes\\n';;
--list-sets) echo 'Identifier Sections'; echo 'basic LaunchStats';;
--list-sections) echo 'LaunchStats no wish';;
*--export*) flags="$*"
  while [ "$1" != --export ]; do shift; done
  report="$2"; shift 2
  %SCRIPT%
  "$@" || exit $?
  echo "$flags" > "$report";;
*--csv*) test -s "$2" || exit 1
  cat <<'CSV'
%CSV%
CSV
  ;;
*) cat "$2"; echo "page of"; echo the report;;
esac
"""
STALLS = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
CELLS = (
    ("ID", "", "0", "1"),
    ("Process Name", "", "python", "python"),
    ("Kernel Name", "", "twice(float *, int)", 'void f<4, ""x"">(int)'),
    ("Block Size", "", "(128, 1, 1)", "(32, 1, 1)"),
    ("Grid Size", "", "(2, 1, 1)", "(1, 1, 1)"),
    ("gpu__time_duration.sum", "us", "1,234.5", "0.5"),
    ("dram__bytes.sum.per_second", "byte/s", "2,000,000,000,000", "n/a"),
    ("dram__bytes_read.sum", "Kbyte", "2", ""),
    ("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active", "%", "10", ""),
    ("sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active", "%", "30", ""),
    (STALLS.format("long_scoreboard"), "inst", "3", ""),
    (STALLS.format("barrier"), "inst", "1", ""),
    (STALLS.format("selected"), "inst", "9", ""),
)
"""Column of a raw page → its unit, and the cells of two kernels."""
CSV = "\n".join(
    ["==PROF== Disconnected", *(",".join(f'"{cell}"' for cell in row) for row in zip(*CELLS, strict=True)), "printed"]
)
SANITIZER = """#!/bin/sh
said="$(dirname "$0")/said.$2"
[ -e "$said" ] && exec cat "$said"
while [ "$1" != -m ]; do program="$1"; shift; done
[ "$PYTORCH_NO_CUDA_MEMORY_CACHING" = 1 ] || exit 1  # else writes beyond a tensor are in its allocator's memory
"$program" "$@" && echo "========= ERROR SUMMARY: 0 errors"
"""


def write_tools(folder: Path, *, csv: str = CSV, script: str = "", said: Mapping[str, str] | None = None) -> Path:
    """Write both programs into a folder, and return it.

    Args:
        csv: the raw page of ncu's report.
        script: lines of shell that ncu runs before the call.
        said: a check of compute-sanitizer → its output, without a call; the others call, and find nothing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ncu = NCU.replace("%CSV%", csv).replace("%SCRIPT%", script)
    for name, text in (("ncu", ncu), ("compute-sanitizer", SANITIZER)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    for check, text in (said or {}).items():
        (folder / f"said.{check}").write_text(text)
    return folder
