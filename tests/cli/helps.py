"""The helps of the commands, as they are printed."""

import pytest

from flashinfer_bench.cli.entry import COMMANDS, PERF, make_parser
from flashinfer_bench.cli.main import cli as main

ALL_COMMANDS = [
    f"{word} {child}".strip()
    for word in COMMANDS
    if word != PERF
    for child in make_parser([word]).children()[word].children() or ("",)
]
"""Every command with its sub-command, apart from `perf`."""


def example_of(command, capsys):
    """Return the words of a help's example, without the program's name."""
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    program, *words = capsys.readouterr().out.split("example:")[1].split()
    assert program == "flashinfer-bench"
    return words
