"""The flags and the help of `compare`."""

from __future__ import annotations

import argparse
from typing import Final

from flashinfer_bench.cli.parser import (
    EXIT_CODES,
    PROGRAM,
    NameList,
    Parser,
    add_local,
    add_names,
    add_sandbox,
    number,
    share,
)
from flashinfer_bench.cli.settings import add_setting

BUDGET_S: Final = 60.0
"""Seconds of measuring where nobody says another number."""


def declare_compare(parser: Parser) -> None:
    """Add the help and the flags of the command."""
    parser.describe(
        "Say whether B is faster than A, by how much, and how sure that is. A and B are two solutions (names, files\n"
        "that you edit, folders, packed files), two authors, two sets, or with --recorded two files of traces. They\n"
        "are timed in turn, A B B A ..., each block in a worker of its own, until each ratio is decided or the budget\n"
        "is spent.\n"
        f"{EXIT_CODES} A solution that does not pass is a failure.",
        usage="%(prog)s A B [--local PATH] [flags]",
        example=f"{PROGRAM} compare plain_rmsnorm_h4096 torch_rmsnorm_h4096 --local flashinfer-trace",
        execute="compare:execute",
    )
    parser.add_argument("first", metavar="A", help="what there is, such as the present version")
    parser.add_argument("second", metavar="B", help="what is to be better, such as the new version")
    add_local(parser)
    how = parser.add_argument_group("how")
    how.add_argument("--recorded", action="store_true", help="compare recorded traces; measure nothing")
    text = "the smallest difference of interest: 2%% or 0.02 (default: 2%%)"
    how.add_argument("--threshold", type=share, metavar="X", help=text)
    text = f"seconds of measuring, beside the start (default: {BUDGET_S:g})"
    how.add_argument("--budget", type=number, metavar="S", help=text)
    text = "only these workloads: uuids, or their beginnings"
    how.add_argument("--workloads", "--workload", nargs="+", action=NameList, metavar="UUID", help=text)
    add_names(how, "--devices", "use the first of these devices: 0, cuda:1, a GPU's uuid, or cpu")
    how.add_argument("--config", metavar="FILE", help="a YAML file instead of the bundled eval_config.yaml")
    add_setting(how, "iterations")
    add_setting(how, "num_trials", "trials of a block, each with inputs of its own (default: 1)")
    add_sandbox(how, default=argparse.SUPPRESS)
    text = "a FILE.py, FILE.cu or FILE.cpp, or a folder of sources: what is not said is found out"
    drafts = parser.add_argument_group("sources that you edit", text)
    text = "its definition (default: that of the other side, or told by its parameters or name)"
    add_names(drafts, "--definitions", text)
    drafts.add_argument("--entry", metavar="NAME", help="its entry function, or FILE::FUNCTION (default: run)")
    drafts.add_argument("--language", metavar="L", help="its language (default: told by its ending and imports)")
    out = parser.add_argument_group("result")
    text = "exit with 1 where B is slower by more: on a workload, or over all; also the default of --threshold"
    out.add_argument("--fail-if-slower", type=share, metavar="X", help=text)
    text = "what goes to stdout (default: %(default)s)"
    out.add_argument("--format", choices=("table", "json", "md"), default="table", help=text)
    out.add_argument("--junit", metavar="FILE", help="write JUnit XML, too: a case for each workload")
    out.add_argument("--quiet", action="store_true", help="no progress; only errors and the result")
