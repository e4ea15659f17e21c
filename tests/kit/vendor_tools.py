"""Programs that take the place of ncu and compute-sanitizer: they start what they are given, and print as those do."""

from pathlib import Path

NCU = """#!/bin/sh
case "$*" in
--query-metrics) printf 'Device X\\ngpu__time_duration  Nanoseconds\\ndram__bytes  Bytes\\n';;
--list-sets) echo 'Identifier Sections'; echo 'basic LaunchStats';;
--list-sections) echo 'LaunchStats no wish';;
*--export*) flags="$*"
  while [ "$1" != --export ]; do shift; done
  report="$2"; shift 2
  "$@" || exit $?
  echo "$flags" > "$report";;
*--csv*) test -s "$2" || exit 1
  cat <<'CSV'
%CSV%
CSV
  ;;
*) echo "page of"; cat "$2";;
esac
"""
CSV = """==PROF== Disconnected
"ID","Process Name","Kernel Name","Block Size","Grid Size","gpu__time_duration.sum","dram__bytes.sum.per_second"
"","","","","","ns","byte/s"
"0","python","twice(float *, int)","(128, 1, 1)","(2, 1, 1)","1,500","2,000,000,000,000"
"1","python","void f<4, ""x"">(int)","(32, 1, 1)","(1, 1, 1)","500","n/a\""""
SANITIZER = """#!/bin/sh
checks="$2"
echo "========= COMPUTE-SANITIZER"
while [ "$1" != -m ]; do program="$1"; shift; done
"$program" "$@"
code=$?
[ "$checks" = memcheck ] && cat <<'SAID'
%SAID%
SAID
echo "========= ERROR SUMMARY: told above"
exit $code
"""


def write_tools(folder: Path, *, csv: str = CSV, said: str = "=========") -> Path:
    """Write both programs into a folder, and return it.

    Args:
        csv: the raw page of ncu's report.
        said: what memcheck prints; the other checks find nothing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("ncu", NCU.replace("%CSV%", csv)), ("compute-sanitizer", SANITIZER.replace("%SAID%", said))):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder
