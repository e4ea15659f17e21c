"""Commands for one solution or one set: exit codes, new, run FILE, pack and unpack, convert, compare, repro, build.

Spec: spec/engine.md ("Commands and Python"), spec/compat.md (2: SOL-ExecBench and dumps; 4: command line); README.md
("Exit codes"), docs/editing.md ("The loop", "Why is it wrong?", "Exit codes"), docs/tutorial.md (2 to 6),
docs/solutions.md ("The file"), docs/formats.md, docs/compare.md, docs/building.md, docs/faq.md.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.golden.face import (
    BUNDLED,
    QUICK,
    Face,
    assert_has,
    is_noise,
    make_solution,
    read_traces,
    write_json,
    write_lines,
)

pytestmark = [pytest.mark.cpu, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def here(tmp_path_factory, shared_cache):
    return Face(shared_cache, tmp_path_factory.mktemp("commands"))


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("", ("usage",)),
        ("frobnicate", ("frobnicate",)),
        ("run", ("--local", "FIB_DATASET_PATH")),
        ("run --local nowhere", ("nowhere",)),
        ("run --lokal x", ("--lokal", "--local")),
        ("run --local SET --definitions rmsnorm_h4095", ("rmsnorm_h4095", "rmsnorm_h4096")),
        ("run --local SET --solutions nobody", ("nobody",)),
        ("run --local SET --workloads ffff", ("ffff",)),
        ("run --local SET --op-types nothing", ("nothing",)),
        ("run --local SET --iterations 0", ("iterations",)),
        ("run --local SET --rtol -1", ("rtol",)),
        ("run --local SET --required-matched-ratio 2", ("required",)),
        ("run --local SET --config nowhere.yaml", ("nowhere.yaml",)),
        ("run --local SET --devices cuda:77", ("77",)),
        ("run --local SET --resume --replay x.jsonl", ("--replay", "--resume")),
        ("run --local SET --format xml", ("xml",)),
        ("report", ("summary", "best")),
        ("report history --local SET", ("--definition",)),
        ("report best --by nothing --local SET", ("nothing",)),
        ("compare a --local SET", ("B",)),
        ("compare plain_rmsnorm_h4096 nobody --local SET", ("nobody",)),
        ("pack nowhere", ("nowhere",)),
        ("unpack nowhere.json", ("nowhere.json",)),
        ("convert nowhere --output out", ("nowhere",)),
        ("repro nowhere.jsonl:1 --local SET", ("nowhere",)),
        ("config show --definition nothing --local SET", ("nothing",)),
        ("inspect ncu --local SET --solution plain_rmsnorm_h4096 --workload d01172", ()),
        ("new solution SET --definition nothing", ("nothing",)),
    ],
)
def test_misuse_ends_with_2_and_says_what_was_meant(here, words, parts):
    done = here(*(str(BUNDLED) if word == "SET" else word for word in words.split()))
    assert done.code == 2, done
    assert [part for part in parts if part not in done.text] == [], done
    assert "Traceback" not in done.told


def test_help_and_version_end_with_0(here):
    version = here("--version")
    assert (version.code, version.out.split()[0]) == (0, "flashinfer-bench")
    commands = (
        "run list new validate validate-render config report compare cache build pack unpack convert repro inspect "
        "doctor completion serve submit top perf"
    ).split()
    listed = here("--help")
    assert (listed.code, [name for name in commands if name not in listed.out.split()]) == (0, [])
    assert here("run", "--help").code == 0


def test_the_function_behind_the_command_returns_the_exit_code(here):
    script = here.folder / "call.py"
    script.write_text("import sys\nfrom flashinfer_bench.cli.main import cli\nsys.exit(cli(sys.argv[1:]))\n")
    assert here(script, "--version", program=[sys.executable]).code == 0
    assert here(script, "list", "--local", "nowhere", program=[sys.executable]).code == 2


def test_every_command_takes_a_log_level(here):
    done = here("list", "--local", BUNDLED, "--log-level", "ERROR")
    assert (done.code, "rmsnorm_h4096" in done.out) == (0, True)
    assert here("list", "--local", BUNDLED, "--log-level", "LOUD").code == 2


def test_a_default_set_comes_of_the_environment(here):
    assert here("list", "--format", "json", FIB_DATASET_PATH=str(BUNDLED)).json["roots"] == [str(BUNDLED)]


@pytest.fixture(scope="module")
def own(here):
    """The set of the tutorial: `new definition`, its skeleton of a solution, and a wrong one."""
    done = here("new", "definition", "gated", "--local", "my-set")
    assert done.code == 0, done
    root = here.folder / "my-set"
    assert here("validate", root).code == 0
    done = here("new", "solution", root, "--definition", "gated", "-o", "mine.py")
    assert done.code == 0, done
    return root


def test_a_skeleton_of_a_definition_runs_as_it_is(own):
    assert list((own / "definitions").rglob("gated.json"))
    (path,) = (own / "workloads").rglob("gated.jsonl")
    assert len(path.read_text().splitlines()) == 2


@pytest.fixture(scope="module")
def mine(here, own):
    """The run that keeps the source file as a solution, and the traces behind it."""
    done = here("run", own, "--solution", "mine.py", *QUICK, "--format", "json")
    assert done.code == 0, done
    return done, read_traces(own)


def test_a_source_file_is_judged_and_kept_as_a_solution_of_me(own, mine):
    done, traces = mine
    assert "mine.py: python, mine.py::run, of gated" in " ".join(done.told.split())
    assert len(done.json["jobs"]) == 2
    assert all(job["status"] == "PASSED" or is_noise(job) for job in done.json["jobs"])
    assert {job["solution"] for job in done.json["jobs"]} == {"mine"}
    assert [path.name for path in (own / "solutions" / "me").rglob("*.json")] == ["mine.json"]
    assert {trace["solution"] for trace in traces} == {"mine"}
    packed = json.loads(next((own / "solutions" / "me").rglob("mine.json")).read_text())
    assert (packed["author"], packed["definition"], packed["spec"]["language"]) == ("me", "gated", "python")


@pytest.mark.usefixtures("mine")
def test_a_quick_look_is_marked_and_judged_again_by_resume(here, own):
    """docs/configuration.md ("Quick looks"); with --seed a trace says `seeded`."""
    words = ("run", own, "--solution", "mine.py", "--quick", "--seed", "5", "--format", "json")
    done = here(*words)
    assert done.code == 0, done
    assert all(job["quick"] for job in done.json["jobs"])
    quick = read_traces(own)[-2:]
    assert [trace["evaluation"]["extra"]["run"]["quick"] for trace in quick] == [True, True]
    assert [trace["evaluation"]["extra"]["run"]["seeded"] for trace in quick] == [True, True]
    counts = here(*words, "--resume", "--dry-run").json["counts"]
    assert (counts["jobs"], counts["resumed"]) == (2, 0)


@pytest.mark.usefixtures("mine")
def test_repeated_workers_give_an_interval_of_their_own(here, own):
    """docs/compare.md ("Recorded traces"): --repeat N."""
    words = ("run", own, "--solutions", "mine", *QUICK, "--repeat", "2", "--no-save-results", "--format", "json")
    done = here(*words)
    assert done.code == 0, done
    assert {job["interval"] for job in done.json["jobs"] if not is_noise(job)} <= {"workers"}


def test_a_source_file_that_does_not_parse_is_misuse(here, own):
    (here.folder / "torn.py").write_text("def run(:\n")
    done = here("run", own, "--solution", "torn.py", "--definition", "gated")
    assert (done.code, "torn.py" in done.text) == (2, True), done


@pytest.fixture(scope="module")
def unpacked(here):
    """A solution of the bundled set, which is unpacked to the folder `unpacked`."""
    path = BUNDLED / "solutions/torch/rmsnorm/rmsnorm_h4096/torch_rmsnorm_h4096.json"
    done = here("unpack", path, "-d", "unpacked")
    assert done.code == 0, done
    return path


def test_a_folder_is_packed_and_unpacked_to_the_same(here, unpacked):
    assert (here.folder / "unpacked" / "solution.yaml").is_file()
    done = here("pack", "unpacked", "-o", "packed.json", "--local", BUNDLED)
    assert done.code == 0, done
    before, after = json.loads(unpacked.read_text()), json.loads((here.folder / "packed.json").read_text())
    assert {key: after[key] for key in ("name", "definition", "author", "sources")} == {
        key: before[key] for key in ("name", "definition", "author", "sources")
    }
    assert after["spec"]["entry_point"] == before["spec"]["entry_point"]
    assert here("unpack", unpacked, "-d", "unpacked").code == 2  # the folder is not empty


@pytest.mark.usefixtures("unpacked")
def test_a_manifest_whose_entry_does_not_fit_is_told(here):
    shutil.copytree(here.folder / "unpacked", here.folder / "wrong_entry")
    manifest = here.folder / "wrong_entry" / "solution.yaml"
    manifest.write_text(manifest.read_text().replace("::run", "::walk"))
    done = here("pack", "wrong_entry", "-o", "never.json")
    assert (done.code, "walk" in done.text, (here.folder / "never.json").exists()) == (2, True, False), done


PROBLEM = {
    "name": "scaled_softmax",
    "axes": {
        "rows": {"type": "var"},
        "half": {"type": "const", "value": 8},
        "wide": {"type": "expr", "expression": "half * 2"},
    },
    "custom_inputs_entrypoint": "get_inputs",
    "inputs": {"x": {"shape": ["rows", "wide"], "dtype": "float32"}, "scale": {"shape": None, "dtype": "float32"}},
    "outputs": {"y": {"shape": ["rows", "wide"], "dtype": "float32"}},
    "reference": (
        "import torch\n\ndef get_inputs(axes_and_scalars, device):\n"
        "    return {'x': torch.randn(axes_and_scalars['rows'], axes_and_scalars['wide'], device=device)}\n\n"
        "def run(x, scale):\n    return torch.softmax(x * scale, dim=-1)\n"
    ),
}


def test_a_problem_of_another_engine_is_run_as_it_is_and_converted(here):
    folder = here.folder / "problems" / "softmaxes" / "scaled_softmax"
    write_json(folder / "definition.json", PROBLEM)
    inputs = {"x": {"type": "custom"}, "scale": {"type": "scalar", "value": 0.5}}
    tolerance = {"max_atol": 1e-9, "max_rtol": 1e-6, "max_error_cap": 0.1}
    write_lines(
        folder / "workload.jsonl", [{"uuid": "w1", "axes": {"rows": 8}, "inputs": inputs, "tolerance": tolerance}]
    )
    form = {
        "languages": ["pytorch"],
        "target_hardware": ["LOCAL"],
        "entry_point": "kernel.py::run",
        "destination_passing_style": False,
    }
    for name, factor in {"mine": "", "half_off": " * 1.005"}.items():
        (folder / f"{name}.py").write_text(
            f"import torch\n\ndef run(x, scale):\n    return torch.softmax(x * scale, dim=-1){factor}\n"
        )
        content = {"name": name, "definition": "scaled_softmax", "author": "me", "sources": [{"path": f"{name}.py"}]}
        write_json(folder / f"{name}.json", content | {"spec": form | {"entry_point": f"{name}.py::run"}})
    done = here("convert", here.folder / "problems", "--output", "converted", "--format", "json")
    assert done.code == 0, done
    root = here.folder / "converted"
    definition = json.loads((root / "definitions" / "softmaxes" / "scaled_softmax.json").read_text())
    assert definition["op_type"] == "softmaxes"
    assert here("validate", root).code == 0
    for source in (here.folder / "problems", root):
        done = here("run", "--local", source, *QUICK, "--no-save-results", "--format", "json")
        assert done.code == 0, done
        found = {job["solution"]: job["status"] for job in done.json["jobs"] if not is_noise(job)}
        assert found.get("half_off") == "INCORRECT_NUMERICAL"  # half a percent off, where 1e-6 is asked for
        assert found.get("mine", "PASSED") == "PASSED"
    assert here("convert", here.folder / "problems", "--output", "converted").code == 2  # the folder is not empty


def test_compare_measures_two_versions_in_turn(here, own, tmp_path):
    slow = (here.folder / "mine.py").read_text().replace("def run(", "import time\n\n\ndef run(", 1)
    name = next(line for line in slow.splitlines() if line.startswith("def run("))
    (here.folder / "slow.py").write_text(slow.replace(name, name + "\n    time.sleep(0.02)", 1))
    words = (
        "compare",
        "mine.py",
        "slow.py",
        "--local",
        own,
        "--budget",
        "300",
        "--threshold",
        "5%",
        "--iterations",
        "3",
    )
    done = here(*words, "--format", "json", "--fail-if-slower", "5%", "--junit", tmp_path / "out.xml")
    document = done.json
    assert_has(document, "a b rows overall hardware threshold")
    assert document["how"] != "recorded"
    for row in document["rows"]:
        assert_has(row, "definition workload axes a_ms b_ms ratio interval95 decision")
    decisions = {row["decision"] for row in document["rows"]}
    assert done.code == 1, done
    assert "slower" in decisions
    assert "faster" not in decisions
    assert "<testcase" in (tmp_path / "out.xml").read_text()


def test_a_failure_is_shown_by_files_and_a_script(here, own):
    (here.folder / "last.py").write_text(
        (here.folder / "mine.py").read_text()
        + "\n\nright = run\n\n\ndef run(*inputs):\n    y = right(*inputs).clone()\n    y[..., -1] = 9\n    return y\n"
    )
    (uuid, *_) = [
        json.loads(line)["workload"]["uuid"]
        for line in next((own / "workloads").rglob("gated.jsonl")).read_text().splitlines()
    ]
    done = here("repro", "last.py", uuid, "--local", own, "--definition", "gated", "--dump", "why", *QUICK)
    assert done.code == 0, done
    names = {path.name for path in (here.folder / "why").iterdir()}
    assert names >= {"inputs.safetensors", "expected.safetensors", "got.safetensors", "map.txt", "repro.py", "solution"}
    shown = here(Path("why") / "repro.py", program=[sys.executable])
    assert shown.code == 1, shown


def test_build_compiles_without_running_and_tells_the_compilers_error(here, tmp_path):
    if shutil.which("g++") is None:
        pytest.skip("no g++ here")
    broken = make_solution(
        "gemm_n128_k4096", "torn_cpp", "int run( { return 0; }\n", language="cpp", entry="main.cpp::run"
    )
    done = here("build", write_json(tmp_path / "torn.json", broken), "--format", "json")
    assert done.code == 1, done
    assert "main.cpp" in done.out + done.told


def test_the_cache_is_shown_verified_and_cleared(here, tmp_path):
    for words in ("show", "verify", "baselines", "clear"):
        assert here("cache", words, FIB_CACHE_PATH=str(tmp_path)).code == 0


def test_shells_get_a_script_that_completes(here):
    done = here("completion", "bash")
    assert (done.code, "flashinfer-bench" in done.out) == (0, True)
