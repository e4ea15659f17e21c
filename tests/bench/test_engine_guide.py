"""docs/engine.md: its programs work as printed, on the bundled set."""

import re
import shutil

import pytest

from tests.conftest import CHECKOUT

pytestmark = [pytest.mark.cpu, pytest.mark.slow]
PROGRAMS = re.findall(r"```python\n(.*?)```", (CHECKOUT / "docs" / "engine.md").read_text(), re.DOTALL)


@pytest.fixture
def bundled(tmp_path, monkeypatch):
    """A folder with the bundled set, of which one workload is left."""
    some = shutil.ignore_patterns("cpp", "cuda", "triton", "flashinfer", "wrong", "traces")
    shutil.copytree(CHECKOUT / "flashinfer-trace", tmp_path / "flashinfer-trace", ignore=some)
    workloads = tmp_path / "flashinfer-trace" / "workloads" / "rmsnorm" / "rmsnorm_h4096.jsonl"
    workloads.write_text(workloads.read_text().splitlines(keepends=True)[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))


def test_the_program_with_asyncio_tells_verdicts_as_they_come(bundled, capsys):
    exec(PROGRAMS[0], {"__name__": "__main__"})
    lines = capsys.readouterr().out.splitlines()
    assert [(line.split()[0], line.split()[2]) for line in lines] == [
        ("plain_rmsnorm_h4096", "PASSED"),
        ("torch_rmsnorm_h4096", "PASSED"),
    ]


def test_the_loop_of_reinforcement_learning_gets_a_reward_for_each_candidate(bundled, capsys):
    exec(PROGRAMS[1], {"__name__": "__main__"})
    *rewards, counts = capsys.readouterr().out.splitlines()
    for line in rewards:
        right, wrong, broken = eval(line.removeprefix("rewards: "))
        assert right > 0
        assert (wrong, broken) == (0.0, 0.0)
    assert eval(counts) == {"PASSED": 2, "INCORRECT_NUMERICAL": 2, "RUNTIME_ERROR": 2}
