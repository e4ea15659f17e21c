"""Text of strangers steers no terminal, wherever it comes from."""

import io
from pathlib import Path

from flashinfer_bench.cli.output import write_err, write_out, write_problems
from flashinfer_bench.data.issue import LoadIssue

HOSTILE = "f\x1b]0;title\x07\x1b[2J\u202e\r"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_what_is_written_to_a_terminal_has_lines_and_no_other_control_characters(monkeypatch):
    streams = Terminal(), Terminal()
    monkeypatch.setattr("sys.stdout", streams[0])
    monkeypatch.setattr("sys.stderr", streams[1])
    write_out(f"one {HOSTILE}\ntwo\n")
    write_err(f"{HOSTILE}\n  more")
    write_problems(f"it is {HOSTILE}0 errors\n  at {HOSTILE}")
    out, err = (stream.getvalue() for stream in streams)
    assert all(line.isprintable() for text in (out, err) for line in text.split("\n"))
    assert (out.count("\n"), err.count("\n")) == (2, 4)
    assert "error: it is f\\x1b]0;title" in err


def test_a_result_that_goes_to_a_file_stays_as_it_is(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr("sys.stdout", stream)
    write_out(f"{HOSTILE}\n")
    assert stream.getvalue() == f"{HOSTILE}\n"


def test_the_name_of_a_file_is_one_line():
    issue = LoadIssue("warning", Path(f"set/{HOSTILE}\nerror: all is well.json"), None, None, "it is no JSON")
    assert str(issue).isprintable()
