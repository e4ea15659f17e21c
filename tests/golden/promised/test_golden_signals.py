"""A run that is interrupted: its exit code, its traces, its processes, and what it says about going on.

Spec: design of engine.md ("the nearest relative's known failures": traces written only at the end); README.md ("Exit
codes", "Ctrl-C loses nothing"), docs/faq.md ("How do I stop a run, and go on later?"), docs/editing.md ("Exit codes").
"""

from __future__ import annotations

import os
import signal
from uuid import uuid4

import pytest

from tests.golden.face import MARK, QUICK, Face, SmallSet, marked_processes, read_traces, spec, wait_until

pytestmark = [pytest.mark.cpu, pytest.mark.slow, pytest.mark.timeout(600)]
ENDLESS = "import time\n\n\ndef run(x):\n    time.sleep(3600)\n"


@pytest.fixture(params=[(signal.SIGINT, "group"), (signal.SIGTERM, "process")], ids=["SIGINT", "SIGTERM"])
def interrupted(request, tmp_path, shared_cache):
    """A run of three solutions, of which the second never ends, interrupted while that one is judged."""
    number, whom = request.param
    small = SmallSet(tmp_path / "set")
    tensor = spec(["n"], "float32")
    small.definition("double", "def run(x):\n    return x * 2\n", {"x": tensor}, {"y": tensor})
    small.workload("double", "w1")
    for name, source in {
        "a_right": "def run(x):\n    return x * 2\n",
        "b_endless": ENDLESS,
        "c_right": "def run(x):\n    return x + x\n",
    }.items():
        small.solution("double", name, source)
    mark = uuid4().hex
    here = Face(shared_cache, tmp_path, **{MARK: mark})
    process = here.start("run", "--local", small.root, *QUICK)
    wait_until(lambda: any(file.read_text().endswith("\n") for file in small.root.glob("traces/**/*.jsonl")))
    if whom == "group":
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    out, told = process.communicate(timeout=120)
    return small, here, process.returncode, " ".join((out + told).split()), mark


def test_what_was_judged_is_whole_and_resume_does_the_rest(interrupted):
    small, here, code, text, mark = interrupted
    assert code == 130, text
    assert "--resume" in text
    wait_until(lambda: not marked_processes(mark), 30)
    assert [trace["solution"] for trace in read_traces(small.root)] == ["a_right"]
    words = ("--solutions", "a_right", "c_right", "--resume", "--format", "json")
    again = here("run", "--local", small.root, *QUICK, *words)
    assert again.code == 0, again
    assert [job["solution"] for job in again.json["jobs"]] == ["c_right"]
    assert [entry["solution"] for entry in again.json["resumed"]] == ["a_right"]
