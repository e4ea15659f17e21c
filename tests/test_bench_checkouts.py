"""The pure parts of benchmarks/bench_checkouts.py: its lines, its sums, and what it refuses."""

import sys

import pytest

from benchmarks import bench_checkouts
from benchmarks.bench_checkouts import Turn, render, summarise

pytestmark = pytest.mark.cpu


def turn(checkout, wall_s, *, last_s=None, odd=()):
    return Turn("gemm", checkout, 3.0, wall_s, last_s, last_s, list(odd))


def test_a_turn_has_a_line_that_tells_what_is_odd():
    assert render(turn("this", 7.0, last_s=6.5)).split() == ["gemm", "this", "3.00", "7.00", "6.50", "6.50"]
    line = render(turn("other", 7.0, odd=["it ended with 1", "no verdict"]))
    assert line.split()[4:6] == ["-", "-"]
    assert line.endswith("it ended with 1; no verdict")


def test_the_medians_of_both_are_told_as_a_ratio():
    turns = [turn("other", 8.0), turn("this", 6.0), turn("other", 10.0), turn("this", 7.5)]
    assert summarise("gemm", turns) == "gemm: 9.00 s and 6.75 s, 0.750 times as long"
    turns.append(turn("this", 900.0, odd=["not done after 900 s"]))
    assert summarise("gemm", turns) == "gemm: 9.00 s and 6.75 s, 0.750 times as long"
    assert summarise("gemm", turns[-1:] + turns[:1]) == "gemm: no command of this checkout did well"


def test_a_folder_that_is_no_checkout_is_misuse(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench_checkouts.py", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        bench_checkouts.main()
    assert ended.value.code == 2
    assert "is no checkout of this project" in capsys.readouterr().err
