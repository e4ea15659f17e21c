"""Each block of code of README and docs/: commands are typed as our parsers want them, and other languages are read.

`tests/documents/test_walks.py` runs those of the tutorial and the how-tos; other tests run those of other pages.
"""

import ast
import contextlib
import io
import json
import re

import pytest
import yaml

from flashinfer_bench.cli.entry import PERF, parse_command_line
from flashinfer_bench.cli.perf.cases import expand_sweeps
from flashinfer_bench.cli.perf.flags import check_outer, parse_case, split_session
from flashinfer_bench.errors import UsageError
from tests.kit.documents import CHECKOUT, PAGES, PROGRAM, SHELLS, read_blocks, read_commands

BLOCKS = [block for page in PAGES for block in read_blocks(page)]
CODE = [block for block in BLOCKS if block.language in ("python", "json", "yaml", "toml")]
COMMANDS = [
    block for block in BLOCKS if block.language in SHELLS or (not block.language and f"{PROGRAM} " in block.text)
]
OTHERS = ("cd", "curl", "docker", "jq", "mkdir", "pip", "ray", "source", "xdg-open", "head")
"""Programs that are not ours."""
TARGETS = set(re.findall(r"^(\w+):", (CHECKOUT / "Makefile").read_text(), re.MULTILINE))


def read_json(text):
    try:
        return json.loads(text)
    except json.JSONDecodeError:  # a file with one object on each line
        return [json.loads(line) for line in text.splitlines()]


def read_toml(text):
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 reads TOML")
    return tomllib.loads(text)


READERS = {"python": ast.parse, "json": read_json, "yaml": yaml.safe_load, "toml": read_toml}


def check_command(words):
    """Refuse a command that could not be typed so in a checkout; `perf` parses its cases before it opens anything."""
    program, *rest = words
    if program == PROGRAM and rest[0] == PERF and not {"-h", "--help"} & {*rest}:
        session, others = split_session(rest[1:])
        if session.testlist:
            check_outer(others)
        for case, _ in () if session.testlist else expand_sweeps(others):
            parse_case(case)
    elif program == PROGRAM:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):  # a help ends so
            parse_command_line(rest)
    elif program == "make":
        assert {*rest} <= TARGETS
    elif program == "python":
        file = rest[1].replace(".", "/") + ".py" if rest[0] == "-m" else rest[0]
        assert (CHECKOUT / file).is_file() or file.startswith("why/")
    else:
        assert program in OTHERS


@pytest.mark.parametrize("block", COMMANDS, ids=str)
def test_commands_are_typed_as_the_parsers_want_them(block):
    for words in read_commands(block.text):
        check_command(words)


@pytest.mark.parametrize("block", CODE, ids=str)
def test_code_is_of_its_language(block):
    assert READERS[block.language](block.text)


@pytest.mark.parametrize(
    "line",
    [
        "flashinfer-bench rnu --local x",
        "true && flashinfer-bench run x --itera 5",
        "PYTHONPATH=. flashinfer-bench report bset",
        "flashinfer-bench perf --routine rmsnrom",
        "flashinfer-bench perf --testlist x --no_such_flag 5",
    ],
)
def test_a_wrong_command_is_found(line):
    with pytest.raises((UsageError, AssertionError)):
        for words in read_commands(line):
            check_command(words)


def test_every_mark_has_a_reason_and_is_of_the_block_below_it_alone():
    assert [str(block) for block in BLOCKS if block.mark and not block.reason] == []
    marks = [(block.mark, block.reason) for block in BLOCKS if block.page.name == "tutorial.md" and block.mark]
    assert marks == [("not run", "the tests have an environment"), ("exits with", "1")]
