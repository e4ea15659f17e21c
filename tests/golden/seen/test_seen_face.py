"""What today's face shows beside its promises: messages, the last lines of a run, and further keys of documents.

`expected.json` holds it; README.md says how it is written anew. Numbers are `#`, folders of this run are `DIR`. A line
or a key that is expected has to be there; what comes beside it never fails.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.golden.face import BUNDLED, QUICK, Face, SmallSet, spec
from tests.golden.recorded import write_recorded

pytestmark = [pytest.mark.cpu, pytest.mark.slow, pytest.mark.timeout(600)]
FILE = Path(__file__).with_name("expected.json")
WRITES = bool(os.environ.get("FIB_GOLDEN_WRITE"))
EXPECTED = json.loads(FILE.read_text()) if FILE.exists() else {}
MISUSE = (
    "frobnicate",
    "run",
    "run --local nowhere",
    "run --lokal x",
    "run --local SET --definitions rmsnorm_h4095",
    "run --local SET --solutions torch_rmsnorm_h4095",
    "run --local SET --iterations 0",
    "run --local SET --required-matched-ratio 2",
    "run --local SET --resume --replay x.jsonl",
    "perf --routine rmsnormm",
    "perf --routine rmsnorm --hidden_size 8",
    "compare plain_rmsnorm_h4096 nobody --local SET",
    "unpack nowhere.json",
)
DOUBLE = "def run(x):\n    return x * 2\n"


@pytest.fixture(scope="module")
def here(tmp_path_factory, shared_cache):
    return Face(shared_cache, tmp_path_factory.mktemp("seen"))


@pytest.fixture(scope="module")
def root(here):
    return write_recorded(here.folder / "recorded").root


@pytest.fixture(scope="module")
def ran(here):
    """A run with a right and a wrong solution, one that is skipped, and a reference that fails."""
    small = SmallSet(here.folder / "set")
    tensor = spec(["n"], "float32")
    small.definition("double", DOUBLE, {"x": tensor}, {"y": tensor})
    small.definition("fails", "def run(x):\n    raise ValueError('a broken reference')\n", {"x": tensor}, {"y": tensor})
    for name in ("double", "fails"):
        small.workload(name, "w1")
        small.solution(name, f"right_{name}", DOUBLE)
    small.solution("double", "wrong", "def run(x):\n    y = x * 2\n    y[-1] = 9\n    return y\n")
    needs = {
        "language": "python",
        "target_hardware": ["cpu"],
        "entry_point": "main.py::run",
        "dependencies": ["no_such_package"],
    }
    small.solution("double", "skipped", DOUBLE, spec=needs)
    words = ("run", "--local", small.root, *QUICK, "--no-save-results")
    return {"json": here(*words, "--format", "json").json, "table": here(*words)}


def tidy(here, text):
    """Return the lines of a text without what differs from run to run."""
    text = text.replace(str(here.folder), "DIR").replace(str(BUNDLED), "SET")
    text = re.sub(r"(?<!\w)-(?=\d)|\d+(\.\d+)?", lambda found: "#" if found[0] != "-" else "", text)
    return [" ".join(line.partition("; worst at")[0].split()) for line in text.splitlines() if line.strip()]


def check(name, found):
    """Hold what was found against the file, or write it there."""
    if WRITES:
        kept = json.loads(FILE.read_text()) if FILE.exists() else {}
        FILE.write_text(json.dumps(kept | {name: found}, indent=1, sort_keys=True) + "\n")
    else:
        assert [entry for entry in EXPECTED[name] if entry not in found] == [], found


@pytest.mark.parametrize("words", MISUSE)
def test_a_message_says_what_it_said(here, words):
    done = here(*(str(BUNDLED) if word == "SET" else word for word in words.split()))
    check(
        f"told by: {words}",
        [line.partition("; it has ")[0].partition("; known:")[0] for line in tidy(here, done.told)][:1],
    )


def test_a_run_ends_with_its_failures_and_counts(here, ran):
    lines = tidy(here, ran["table"].out)
    kept = [
        line for line in lines if not line.startswith(("latency", "timed by", "a ", "b ", "c ")) and "──" not in line
    ]
    check("table of a run", [line for line in kept if not re.search("right_double|ValueError|PASSED", line)])


def test_documents_have_these_keys_beside_the_promised_ones(here, root, ran):
    for name, entry in {
        "run": ran["json"],
        "run: plan": ran["json"]["plan"],
        "run: a job": ran["json"]["jobs"][0],
        "run: a fault": ran["json"]["faults"][0],
        "run: skipped": ran["json"]["skipped"][0],
    }.items():
        check(f"keys of {name}", sorted(set(entry) - {"burst"}))


@pytest.mark.parametrize(
    "words", ["best", "summary", "summary --by author", "summary --by op_type", "history --definition double"]
)
def test_rows_of_reports_have_these_keys(here, root, words):
    row = here("report", *words.split(), "--local", root, "--format", "json").json["rows"][0]
    check(f"keys of report {words}", sorted(set(row) - {"burst", "bursts"}))


def test_other_documents_have_these_keys(here, root):
    for words in ("validate", "list", "list --solutions", "config show"):
        check(f"keys of {words}", sorted(here(*words.split(), "--local", root, "--format", "json").json))
    row = here("report", "diff", root, root, "--all", "--format", "json").json["rows"][0]
    check("keys of report diff", sorted(row))
    document = here("compare", "base", "alice_2", "--recorded", "--local", root, "--format", "json").json
    check("keys of compare", sorted(document))
    check("keys of compare: a row", sorted(document["rows"][0]))
