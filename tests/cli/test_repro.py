"""`repro`: a wrong call in files, and the script that shows it."""

import json
import os
import re
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from flashinfer_bench.bench.evaluators.compare.tolerance import Tolerance
from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.errors import Fault
from flashinfer_bench.examine.repro import standalone
from flashinfer_bench.examine.repro.capture import draw_map
from tests.cli.fake_engine import FakeEngine, write_small_set
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set

EVALUATOR = """
from flashinfer_bench.bench.evaluators.sampling.evaluator import SamplingEvaluator


class Mine(SamplingEvaluator):
    @classmethod
    def can_evaluate(cls, definition):
        return definition.op_type == "sampling"


EVALUATORS = [Mine]
"""


def start_script(folder, source, *flags):
    """Return the exit code of a script whose solution has this source; its words tell the same."""
    (folder / "solution" / "main.py").write_text(source)
    command = [sys.executable, str(folder / "repro.py"), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ("the failure shows" in done.stdout) == (done.returncode == 1), done.stdout + done.stderr
    return done.returncode


@pytest.mark.parametrize("what", ["a", "a b c"])
def test_what_is_named_is_a_recorded_job_or_a_solution_and_a_workload(what, capsys):
    assert main(["repro", *what.split()]) == 2
    assert "give a recorded job" in capsys.readouterr().err


def test_a_job_whose_solution_is_not_in_the_set_needs_the_submitted_file(tmp_path, capsys):
    root = write_small_set(tmp_path, traces=[make_trace(solution="gone", status="TIMEOUT", log="late")])
    (file,) = (root / "traces").rglob("*.jsonl")
    assert main(["repro", f"{file}:1", "--devices", "cpu"]) == 2
    way = f"`flashinfer-bench repro FILE w0 --definition double --local {root}`"
    assert f"has no solution 'gone'; give the submitted file: {way}" in capsys.readouterr().err


def test_sizes_that_name_several_workloads_are_refused(tmp_path, capsys):
    assert main(["repro", "other", "n=8", "--local", str(write_small_set(tmp_path)), "--devices", "cpu"]) == 2
    assert "'n=8' names several workloads: w0, w1; give one of them" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "dump", "code"),
    [
        ("true", "why", 0),
        ("true", ".", 0),
        ("true", "link", 0),
        ("mkdir why/solution/__pycache__; touch why/solution/__pycache__/main.pyc", "why", 0),
        ("echo >> why/map.txt", "why", 2),
        ("printf 'pass\n' > why/solution/main.py", "why", 2),  # as text, its lines are the same
        ("touch why/solution/notes", "why", 2),
        ("mkdir why/notes", "why", 2),
        ("ln -s .. why/notes", "link", 2),
        ("rm why/map.txt", "why", 2),
        ("echo [ > why/digests.json", "why", 2),
        ("rm why/digests.json", "why", 2),
        ("rm -r why; echo > why", "why", 2),
        ("true", "fails", 1),
        ("true", "edits", 2),
    ],
)
def test_only_an_unchanged_dump_is_replaced_and_only_by_a_whole_one(command, dump, code, tmp_path, monkeypatch, capsys):
    def write_dump(_engine, _job, folder, *_, **__):
        (folder / "solution").mkdir()
        (folder / "solution" / "main.py").write_bytes(b"pass\r\n")
        (folder / "map.txt").write_text(call)
        if call == "fails":
            raise Fault("not judged")
        if call == "edits":
            (why / "map.txt").write_text("mine")
        return make_trace().evaluation

    def start(dump):
        return main(["repro", "other", "w0", "--local", str(root), "--devices", "cpu", "--dump", dump])

    def read_files():
        return {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}

    root, why, call = write_small_set(tmp_path / "set"), tmp_path / "why", "first"
    monkeypatch.setattr("flashinfer_bench.bench.benchmark.Benchmark", FakeEngine)
    monkeypatch.setattr("flashinfer_bench.examine.repro.start.reproduce", write_dump)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(why)
    assert start("why") == 0
    subprocess.run(command, shell=True, check=True)
    before, call = read_files(), dump
    if dump == ".":
        monkeypatch.chdir(why)
    assert start("why" if dump in ("fails", "edits") else dump) == code, capsys.readouterr().err
    changed = {path.name for path, _ in before.items() ^ read_files().items() if "__pycache__" not in path.parts}
    mine = {"map.txt"} if dump == "edits" else set()
    assert changed == (mine if code else {"map.txt", "digests.json"})


@pytest.mark.cpu
def test_the_script_knows_the_check_of_samplers_and_the_flags(tmp_path, monkeypatch):
    """The user's own evaluator judges, so the judge refuses the job without the flag that names it."""
    (tmp_path / "mine.py").write_text(EVALUATOR)
    (tmp_path / "mine.yaml").write_text("extra: {sampling_false_alarm_rate: 1.0e-9}\n")  # else once in 10,000 runs
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([".", *filter(None, [os.environ.get("PYTHONPATH")])]))
    monkeypatch.syspath_prepend(tmp_path)
    source = "import torch\n\n\ndef run(probs):\n    return {}.int()\n"
    right, wrong = (source.format(draws) for draws in ("torch.multinomial(probs, 1)[:, 0]", "probs.argmax(1)"))
    sampler = make_definition(
        "sampler",
        op_type="sampling",
        axes={"rows": None, "vocab": 64},
        inputs={"probs": "float32[rows, vocab]"},
        outputs={"samples": "int32[rows]"},
        reference=right,
    )
    workload = make_workload("w0", axes={"rows": 4}, inputs={"probs": {"type": "random"}})
    root = write_trace_set(
        tmp_path / "set",
        definitions=[sampler],
        solutions=[make_solution("draws", definition="sampler", source=wrong)],
        workloads=[make_trace(definition="sampler", solution=None, workload=workload)],
    )
    folder = tmp_path / "why"
    words = ["--local", str(root), "--dump", str(folder), "--devices", "cpu"]
    words += ["--evaluator-modules", "mine", "--config", str(tmp_path / "mine.yaml")]
    assert main(["repro", "draws", "w0", *words]) == 0
    assert load_file(folder / "inputs.safetensors")["probs"].shape == (4, 64)
    assert start_script(folder, right) == 0
    imported = set(re.findall(r"^(?:import|from) (\w+)", (folder / "repro.py").read_text(), re.M))
    assert imported - sys.stdlib_module_names <= {"torch", "judge"}  # the latter is of samplers, and in the folder
    assert main(["repro", "draws", "w0", *words]) == 2  # the repaired solution is not overwritten
    (folder / "solution" / "main.py").write_text(wrong)
    assert main(["repro", "draws", "w0", *words]) == 0


@pytest.mark.parametrize(
    ("changes", "wrong", "reason"),
    [
        ({}, [1.0, 2.0, 3.0, 9.0], "1 of 4 elements differ"),
        ({}, [1.5, 3.0, 4.5, 6.0], "(got is expected times 1.5)"),
        ({"required_matched_ratio": 0.5}, [1.0, 2.0, 3.0, 99.0], "the largest error, 95, is over"),
        ({"atol": 99.0}, [0.0] * 32 + [1.0] * 32, "the error of row 0 has 1 times the norm"),
        ({}, [[1.0]], "[1, 1] torch.float32, expected [4] torch.float32"),
        ({"atol": 99.0}, [0.9] * 64, None),
    ],
)
def test_the_script_knows_the_rules(changes, wrong, reason):
    right = torch.tensor([1.0, 2.0, 3.0, 4.0]) if "atol" not in changes else torch.ones(64)
    right, got = (one.reshape(-1, 32) if one.numel() == 64 else one for one in (right, torch.tensor(wrong)))
    evidence = {"output": "y", "limit": 0.5, "row": 0} if "atol" in changes else {}
    reasons = standalone.find_reasons(
        "y", right, got, {"tolerance": {"rtol": 0.01, "atol": 0.01, **changes}, "evidence": evidence}
    )
    assert (reasons == []) if reason is None else reason in reasons[-1]


def test_a_map_of_one_long_row_shows_where_along_it_the_output_fails():
    right = torch.zeros(1, 100_000)
    wrong = right.clone()
    wrong[0, 50_000:60_000] = 1
    drawn = draw_map("y", right, wrong, Tolerance(0.1, 0.1)).splitlines()
    assert drawn[1].endswith("; a sign stands for 1 x 66 elements")
    signs = "".join(line[9:] for line in drawn[2:])
    assert (len(signs), signs.index("#"), signs.rindex("#")) == (24 * 64, 768, 920)


SAME = "def run(x):\n    return x + 1\n"
HANGS = "def run(x):\n    while True: pass\n"


def write_call(folder, *, source=SAME, got=None, **call):
    """Write the files of a call whose expected output is x + 1, and a solution with this source."""
    x = torch.ones(4)
    for name, tensors in {
        "inputs": {"x": x},
        "expected": {"y": x + 1},
        "got": {} if got is None else {"y": got},
    }.items():
        save_file(tensors, folder / f"{name}.safetensors")
        call.setdefault("dtypes", {})[name] = dict.fromkeys(tensors, "float32")
    call |= {"title": "", "status": "", "message": "", "inputs": ["x"], "scalars": {}, "style": "value", "evidence": {}}
    call |= {"tolerance": {"rtol": 0, "atol": 0}, "device": "cpu", "entry": "called.py::run", "compares": True}
    call |= {"limit_s": 1.0, "sources": {"called.py": SAME}, "command": []}
    (folder / "call.json").write_text(json.dumps(call))
    (folder / "solution").mkdir()
    (folder / "solution" / "called.py").write_text(source)


@pytest.mark.parametrize(
    ("is_python", "got", "source", "flags", "code"),
    [
        (False, None, SAME, [], "judged"),  # it raised, crashed or hung
        (False, torch.ones(4), SAME, [], 1),
        (False, torch.ones(4), f"{SAME}# repaired", [], "judged"),
        (False, torch.ones(4), f"{SAME}# repaired", ["--recorded"], 1),
        (True, None, SAME, [], "judged"),  # a later call failed
        (True, None, f"{SAME}# repaired", [], 0),
        (True, torch.ones(4), SAME, [], 1),
    ],
)
def test_no_failure_shows_only_after_a_right_call_or_a_run(is_python, got, source, flags, code, tmp_path, monkeypatch):
    write_call(tmp_path, source=source, got=got, is_python=is_python)
    monkeypatch.setattr(standalone, "HERE", tmp_path)
    monkeypatch.setattr(standalone, "ask_judge", lambda _: "judged")
    monkeypatch.setattr(sys, "argv", ["repro.py", *flags])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "called", raising=False)
    assert standalone.main() == code


def test_a_call_that_hangs_ends_the_script_at_its_limit(tmp_path):
    write_call(tmp_path, source=HANGS, is_python=True)
    source = "import pathlib, sys\nfrom flashinfer_bench.examine.repro import standalone\n"
    source += f"standalone.HERE = pathlib.Path({str(tmp_path)!r})\nsys.exit(standalone.main())"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False, timeout=200)
    assert (done.returncode, "line 2 in run" in done.stderr) == (1, True), done.stderr
