"""docs/engine.md: its programs work as printed, on the bundled set."""

import re
import shutil
from pathlib import Path

import pytest

from tests.conftest import CHECKOUT

pytestmark = [pytest.mark.cpu, pytest.mark.slow]
PROGRAMS = re.findall(r"```python\n(.*?)```", (CHECKOUT / "docs" / "engine.md").read_text(), re.DOTALL)


@pytest.fixture
def bundled(tmp_path, monkeypatch):
    """A folder with the bundled set, reduced to one workload."""
    some = shutil.ignore_patterns("cpp", "cuda", "triton", "flashinfer", "wrong", "traces")
    shutil.copytree(CHECKOUT / "flashinfer-trace", tmp_path / "flashinfer-trace", ignore=some)
    workloads = tmp_path / "flashinfer-trace" / "workloads" / "rmsnorm" / "rmsnorm_h4096.jsonl"
    workloads.write_text(workloads.read_text().splitlines(keepends=True)[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))


def test_the_programs_tell_verdicts_as_they_come_and_a_reward_for_each_candidate(bundled, capsys):
    for program in PROGRAMS[:2]:
        exec(program, {"__name__": "__main__"})
    first, second, *rewards, counts = capsys.readouterr().out.splitlines()
    reported = [tuple(line.split()[:3:2]) for line in (first, second)]
    assert reported == [("plain_rmsnorm_h4096", "PASSED"), ("torch_rmsnorm_h4096", "PASSED")]
    for line in rewards:
        right, *others = eval(line.removeprefix("rewards: "))
        assert (right > 0, others) == (True, [0.0, 0.0, 0.0])
    assert eval(counts) == {"PASSED": 2, "INCORRECT_NUMERICAL": 2, "RUNTIME_ERROR": 2, "TIMEOUT": 2}


def test_a_file_becomes_a_solution(bundled):
    source = Path("my_rmsnorm_h4096.py")
    source.write_text("def run(hidden_states, weight):\n    return hidden_states\n")
    names = {}
    exec(PROGRAMS[2], names)
    solution = names["solution"]
    assert (solution.definition, solution.spec.entry_point) == ("rmsnorm_h4096", f"{source}::run")
