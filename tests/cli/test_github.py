"""`--github`: annotations, the step summary and the output of a step, as a runner would read them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from flashinfer_bench.base.markdown import escape_markdown
from flashinfer_bench.cli.github import MOST_BYTES, Annotation, GitHubReport, find_source
from flashinfer_bench.cli.main import cli as main
from tests.cli.fake_engine import play_run, write_small_set
from tests.conftest import CHECKOUT
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set
from tests.report.made import on

GOLDEN = Path(__file__).with_name("github_output.txt")
"""What the commands below print and write. `FIB_GOLDEN_WRITE=1` writes it anew."""
HOSTILE = "ValueError in the call: ::error::50%, a|b\x1b[1m "
HOSTILE += "##[warning]x #12 @you &lt; ~~a~~ $x$ https://a.b, at mine.py:2, in run\nTraceback"


@pytest.fixture
def runner(tmp_path, monkeypatch):
    """Work in a repository with a set, as a step of a workflow does."""
    for variable, name in {"GITHUB_STEP_SUMMARY": "summary.md", "GITHUB_OUTPUT": "output"}.items():
        (tmp_path / name).touch()
        monkeypatch.setenv(variable, str(tmp_path / name))
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    times = [
        on("w0", "double_python", latency=1.0, half=0.01),
        on("w0", "other", latency=1.5, half=0.01),
        on("w1", "double_python", latency=1.0, half=0.2),
        on("w1", "other", latency=1.01, half=0.2),
        on("w2", "double_python"),
        on("w2", "other", status="RUNTIME_ERROR", log="RuntimeError in the call: no, at main.py:3, in run"),
    ]
    write_small_set(tmp_path / "set", workloads=3, traces=times)
    (tmp_path / "mine.py").write_text("def run(x):\n    raise ValueError\n")
    return tmp_path


def shown(capsys):
    """Return the lines of a log without those between the tokens, where GitHub reads no command."""
    lines = capsys.readouterr().out.splitlines()
    token = lines[0].removeprefix("::stop-commands::")
    assert re.fullmatch(r"[0-9a-f]{32}", token), lines[0]
    return lines[lines.index(f"::{token}::") + 1 :]


def verdict_of(job):
    if job.solution.name == "other":
        return "the reference failed:\nno memory"
    return {"status": "RUNTIME_ERROR", "log": HOSTILE} if job.solution.name == "mine" else {}


def test_the_commands_write_what_the_golden_file_has(runner, capsys):
    chosen = ["--solution", "mine.py", "other", "double_python", "--definition", "double", "--no-save-results"]
    code, _ = play_run(["set", *chosen, "--require-passed", "--github"], verdict_of)
    parts = [("run", code, shown(capsys))]
    words = ["compare", "double_python", "other", "--recorded", "--local", "set", "--fail-if-slower", "3%"]
    parts.append(("compare", main([*words, "--github"]), shown(capsys)))
    broken = runner / "set" / "definitions" / "test" / "double.json"
    broken.write_text(broken.read_text().replace('"axes"', '\n"axis"', 1))
    parts.append(("validate", main(["validate", "set", "--github"]), shown(capsys)))
    parts.append(("nothing", main(["validate", "nowhere", "--github"]), shown(capsys)))
    found = "".join(f"--- {name}: {code}\n" + "".join(f"{line}\n" for line in lines) for name, code, lines in parts)
    found += f"--- summary\n{(runner / 'summary.md').read_text()}--- output\n{(runner / 'output').read_text()}"
    found = found.replace(str(runner), "ROOT")
    if os.environ.get("FIB_GOLDEN_WRITE"):
        GOLDEN.write_text(found)
    assert found == GOLDEN.read_text()


@pytest.mark.parametrize("form", ["json", "md"])
def test_a_document_on_stdout_stays_whole(form, runner, capsys):
    words = ["compare", "double_python", "other", "--recorded", "--local", "set", "--format", form]
    assert main(words) == 1
    document = capsys.readouterr().out
    assert main([*words, "--github"]) == 1
    captured = capsys.readouterr()
    assert captured.out == document
    assert "\n::notice title=flashinfer-bench compare::" in captured.err


def test_the_worst_is_first_and_what_github_drops_is_counted():
    report = GitHubReport([Annotation("warning", "late" * 2000, "t" * 300)], "12 jobs")
    report.annotations += [Annotation("error", str(weight), weight=weight) for weight in range(12)]
    lines, summary = report.render("run", Path())
    assert lines[:2] == ["::error::11", "::error::10"]
    assert lines[10] == f"::warning title={'t' * 255}::{'late' * 1000}"
    assert lines[11:] == ["::notice title=run::12 jobs; 2 more in the step summary"]
    assert "| error |  |  | 0 |" in summary


def test_a_summary_above_the_limit_is_cut_at_a_line(runner, capsys):
    file = runner / "summary.md"
    file.write_text("x" * (MOST_BYTES - 300) + "\n")
    assert main(["validate", "set", "--definitions", "double", "--github"]) == 0
    assert file.stat().st_size < 1 << 20
    for size in (MOST_BYTES - 100, MOST_BYTES):
        file.write_text("x" * size)
        assert main(["validate", "set", "--github"]) == 0
        assert file.stat().st_size <= MOST_BYTES
    assert "::notice" in capsys.readouterr().out


def test_a_summary_that_cannot_be_written_is_no_failure(runner, capsys, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(runner / "no" / "summary.md"))
    assert main(["validate", "set", "--github"]) == 0
    assert "GITHUB_STEP_SUMMARY: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a|b *c* _d_ `e` [f](g) \\", "a\\|b \\*c\\* \\_d\\_ \\`e\\` \\[f](g) \\\\"),
        ("<b>&lt;&#64;", "&lt;b&gt;&amp;lt;&amp;#\u200b64;"),
        ("~~no~~ $x^2$", "\\~\\~no\\~\\~ &#36;x^2&#36;"),
        ("@you @a/team me@a.b x @ y", "@\u200byou @\u200ba/team me@\u200ba.b x @ y"),
        ("#123 a/b#4 GH-5 # 6", "#\u200b123 a/b#\u200b4 GH-\u200b5 # 6"),
        ("http://a HTTPS://b www.c", "http:\u200b//a HTTPS:\u200b//b www\u200b.c"),
        ("a\n\nb\x1b", "a b\\\\x1b"),
    ],
)
def test_untrusted_text_is_no_markdown(text, shown):
    assert escape_markdown(text) == shown


@pytest.mark.parametrize(
    ("path", "reason", "file", "line"),
    [
        ("main.py", "main.py:7 is no number, at main.py:3, in run", "main.py", 3),
        ("folder", "E in the call: no, at part.py:12, in helper", "folder/part.py", 12),
        ("folder", "wrong", "folder/main.py", None),
        ("folder", "no, at other_part.py:12", "folder/main.py", None),
        ("set/x.json", "no, at main.py:3, in run", "set/x.json", None),
        ("main.py", "no, at part.py:3, in run", "main.py", None),
        ("main.py", "at main.py:3; no, at /usr/lib/x/main.py:7, in f", "main.py", 3),
        ("folder", "no, at gone.py:3, in run", "folder/main.py", None),
        ("draft", "no, at kernelbench_task.py:3, in run", "draft/model.py", None),
        ("draft", "no, at model.py:3, in run", "draft/model.py", 3),
        ("draft/model.py", "no, at kernelbench_entry.py:3, in run", "draft/model.py", None),
        ("draft/model.py", "no, at model.py:4, in run", "draft/model.py", 4),
    ],
)
def test_the_line_is_that_of_the_solutions_source(path, reason, file, line, tmp_path):
    for there in ("folder/main.py", "folder/part.py", "draft/model.py"):
        (tmp_path / there).parent.mkdir(exist_ok=True)
        (tmp_path / there).touch()
    own = ("model.py", "kernelbench_task.py", "kernelbench_entry.py")
    names = own if path.startswith("draft") else ("main.py", "part.py", "gone.py")
    sources = dict.fromkeys(names, "def run(x): ...\n")
    solution = make_solution(sources=sources, entry_point=f"{names[0] if 'main.py' in names else names[-1]}::run")
    assert find_source(solution, tmp_path / path, reason) == (tmp_path / file, line)


def test_it_cannot_be_joined_with_watch(runner, capsys):
    assert main(["run", "set", "--solution", "mine.py", "--watch", "--github"]) == 2
    assert "no --resume, --dry-run or --github" in capsys.readouterr().out


@pytest.mark.cpu
@pytest.mark.parametrize(("loops", "code", "verdict"), [(200, 1, "slower"), (None, 1, "failed")])
def test_the_steps_of_the_action_decide(loops, code, verdict, tmp_path):
    """The runner replaces the expressions, and runs each step by bash with its environment."""
    action = yaml.safe_load((CHECKOUT / "action.yml").read_text())
    source = "def run(x):\n    return x * 2\n"
    slow = f"def run(x):\n    for _ in range({loops}):\n        x * 3\n    return x * 2\n"
    (tmp_path / "old $(touch bad).py").write_text(source)
    (tmp_path / "new.py").write_text(slow)
    lines = [make_trace(solution=None, workload=make_workload(axes={"n": 4096}))]
    write_trace_set(tmp_path / "set", definitions=[make_definition()], workloads=lines)
    setup = tmp_path / "action" / "scripts" / "setup.sh"  # in place of the installation
    setup.parent.mkdir(parents=True)
    program = f'PYTHONPATH={CHECKOUT} exec {sys.executable} -m flashinfer_bench "$@"'
    setup.write_text(f"mkdir -p $1/bin; echo '{program}' > $1/bin/flashinfer-bench; chmod +x $1/bin/flashinfer-bench\n")
    setup.chmod(0o755)
    given = {"before": "old $(touch bad).py", "after": "new.py", "local": "set", "fail-if-slower": "300%"}
    given |= {"budget": "120", "devices": "cpu", "definition": "double"}
    inputs = {name: given.get(name, one.get("default")) for name, one in action["inputs"].items()}
    assert None not in inputs.values()
    files = {name: tmp_path / name for name in ("GITHUB_PATH", "GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    own = {"GITHUB_ACTION_PATH": "action", "RUNNER_TEMP": "temp", "FIB_CACHE_PATH": "cache"}
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "GITHUB_WORKSPACE": str(tmp_path)}
    environment |= {name: str(file) for name, file in files.items()}
    environment |= {name: str(tmp_path / folder) for name, folder in own.items()}
    for number, step in enumerate(action["runs"]["steps"]):
        assert "${{" not in step["run"]
        script = tmp_path / f"{number}.sh"
        script.write_text(step["run"])
        values = {
            name: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: inputs[found[1]], text)
            for name, text in step.get("env", {}).items()
        }
        shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", script]
        done = subprocess.run(
            shell, cwd=tmp_path, env=environment | values, check=False, timeout=200, capture_output=True, text=True
        )
        if files["GITHUB_PATH"].exists():
            environment["PATH"] = f"{files['GITHUB_PATH'].read_text().strip()}:{environment['PATH']}"
    assert (done.returncode, files["GITHUB_OUTPUT"].read_text()) == (code, f"verdict={verdict}\n"), done.stdout
    assert re.search(r"^::error file=new.py,", done.stdout, re.MULTILINE)
    assert re.search(r"^::notice .*: (not compared|.* slower( \(unsteady times\))?)$", done.stdout, re.MULTILINE)
    assert ": : " not in done.stdout
    assert "#### CPU: indicative" in files["GITHUB_STEP_SUMMARY"].read_text()
    assert not (tmp_path / "bad").exists()
