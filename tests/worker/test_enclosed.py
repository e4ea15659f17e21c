"""A program in a worker's place: what it printed, how it ended, and that nothing of it is left."""

import os
import sys

import pytest

from flashinfer_bench.examine.inspect.enclosed import run_enclosed
from tests.kit.workers import running_template, worker_order

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(sys.platform != "linux", reason="workers are Linux's")]


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    with running_template(tmp_path_factory.mktemp("session") / "run") as socket:
        yield socket


def run(template, home, script, limit_s=100.0):
    return run_enclosed(template, worker_order(program=["/bin/sh", "-c", script]), home, limit_s)


@pytest.mark.parametrize(
    ("script", "text", "words"),
    [
        ("echo said; echo more >&2", "said\nmore\n", ""),
        ("echo said; exit 3", "said\n", "it ended with exit code 3"),
        ("kill -ABRT $$", "", "it was killed by SIGABRT"),
    ],
)
def test_what_a_program_printed_and_how_it_ended_is_told(template, tmp_path, script, text, words):
    ended = run(template, tmp_path / "home", script)
    assert (ended.text, ended.describe(100)) == (text, words)
    assert not (tmp_path / "home").exists()


def test_a_program_that_does_not_end_is_ended_with_all_that_it_started(template, tmp_path):
    ended = run(template, tmp_path / "home", "setsid sleep 60 & echo $!; sleep 60", limit_s=3.0)
    assert (ended.is_late, ended.describe(3.0)) == (True, "it did not end within 3 s")
    with pytest.raises(ProcessLookupError):
        os.kill(int(ended.text), 0)
