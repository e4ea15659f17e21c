"""What tables say of how times came about."""

import json

from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.cli.render import UNLIMITED
from flashinfer_bench.cli.verdicts import render_best, render_summary
from flashinfer_bench.report.best import best_by_workload
from flashinfer_bench.report.summary import summarise
from tests.cli.fake_engine import write_small_set
from tests.kit import make_trace, make_workload

REASON = "another subscriber of CUPTI is attached"


def on(uuid, solution, *flags, method="cupti", fallback=None):
    record = {"method": method, "cache_state": "cold", "launch": "stream", "flags": list(flags)}
    record["assurance"] = "full"
    record |= {"fallback": fallback} if fallback else {}
    return make_trace(workload=make_workload(uuid), solution=solution, extra={"measurement": record})


TRACES = [
    on("w0", "double_python", "noisy", "host_bound"),
    on("w1", "double_python", method="cuda_events", fallback=REASON),
    on("w0", "other"),
]
SUMMARY = f"""\
Definition  Solution       Passed  Latency  Speed-up  Flags
───────────────────────────────────────────────────────────
double      double_python     2/2  1.00 ms     2.00x  a b
double      other             1/1  1.00 ms     2.00x

latency: median over the passed workloads; speed-up over the reference: geometric mean
timed 2 of 3 by CUPTI, cold L2; 1 of 3 by CUDA events, cold L2 ({REASON})
a host_bound, 1 of 3: the host takes longer to launch the call than the GPU to run it
b noisy, 1 of 3: the readings leave more open than the difference between two workers would
"""


def test_the_summary_says_how_it_was_timed_and_what_is_flagged():
    assert render_summary(summarise(TRACES), UNLIMITED) == SUMMARY


def test_the_best_say_so_too():
    text = render_best(best_by_workload(TRACES), UNLIMITED)
    assert text.splitlines()[0].endswith("Speed-up  Flags")
    assert "timed 1 of 2 by CUPTI" in text


def test_more_flags_than_letters_are_no_error():
    trace = on("w0", "double_python", *(f"flag_{number}" for number in range(40)))
    assert "z flag_" in render_summary(summarise([trace]), UNLIMITED)


def test_the_report_as_json_has_methods_and_flags(tmp_path, capsys):
    root = write_small_set(tmp_path, traces=TRACES)
    assert main(["report", "summary", "--local", str(root), "--format", "json"]) == 0
    first = json.loads(capsys.readouterr().out)["rows"][0]["timing"]
    assert first["flags"] == {"host_bound": 1, "noisy": 1}
    assert {way["method"]: way["workloads"] for way in first["ways"]} == {"cupti": 1, "cuda_events": 1}
