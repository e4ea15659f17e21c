"""Commands of contest guides, as they are typed, and the door that scripts import."""

from __future__ import annotations

import logging

import pytest

from flashinfer_bench.cli.main import cli
from flashinfer_bench.data import TraceSet
from tests.cli.helps import ALL_COMMANDS
from tests.kit import make_definition, make_solution, make_trace, write_trace_set

FEW = "--warmup-runs 1 --iterations 3 --num-trials 1 --devices cpu"


@pytest.fixture(autouse=True)
def _quiet_again():
    logger = logging.getLogger("flashinfer_bench")
    before = (logger.level, list(logger.handlers))
    yield
    logger.level, logger.handlers = before[0], list(before[1])


@pytest.mark.cpu
@pytest.mark.slow
def test_a_line_of_an_evaluation_guide_runs_and_saves(tmp_path, capsys):
    root = write_trace_set(
        tmp_path,
        definitions=[make_definition()],
        solutions=[make_solution()],
        workloads=[make_trace(solution=None)],
    )
    line = f"run --local {root} --definitions double --save-results --use-isolated-runner --log-level INFO --resume"
    assert cli([*line.split(), "--timeout", "300", *FEW.split()]) == 0
    assert [trace.is_successful() for trace in TraceSet.from_path(root).traces["double"]] == [True]
    assert "double_python" in capsys.readouterr().out


def test_saving_and_not_saving_exclude_each_other(capsys):
    assert cli(["run", "--save-results", "--no-save-results"]) == 2
    assert "--save-results" in capsys.readouterr().err


@pytest.mark.parametrize("command", [*ALL_COMMANDS, "perf"])
def test_every_command_takes_a_log_level(command, capsys):
    try:
        code = cli([*command.split(), "--help"])
    except SystemExit as end:
        code = end.code
    assert not code
    assert "--log-level" in capsys.readouterr().out
    assert cli([*command.split(), "--log-level", "loud"]) == 2
    told = capsys.readouterr().err
    assert all(level in told for level in ("DEBUG", "INFO", "WARNING"))


@pytest.mark.parametrize(("level", "is_shown"), [("debug", True), ("INFO", False)])
def test_a_traceback_is_shown_at_debug_alone(tmp_path, capfd, level, is_shown):
    assert cli(["list", "--local", str(tmp_path / "none"), f"--log-level={level}"]) == 2
    errors = capfd.readouterr().err
    assert ("Traceback" in errors) == is_shown
    assert "does not exist" in errors
