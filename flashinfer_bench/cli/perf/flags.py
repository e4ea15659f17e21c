"""The flags of `perf`: those of a session, those of every case, and those of the routine that a case names.

They are spelt with underscores, as in the documents of FlashInfer's own benchmark.
"""

from __future__ import annotations

import argparse
import difflib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from flashinfer_bench.cli.output import write_out
from flashinfer_bench.cli.parser import (
    NameList,
    Parser,
    add_log_level,
    add_sandbox,
    describe_unknown_arguments,
    number,
    whole_number,
)
from flashinfer_bench.errors import Misuse
from flashinfer_bench.routines.case.spec import Flag, Routine
from flashinfer_bench.routines.table import ROUTINES, find_routine

PROGRAM: Final = "flashinfer-bench perf"
EXAMPLE: Final = f"{PROGRAM} --routine rmsnorm --batch_size 32 --hidden_size 4096 --refcheck -vv"
USAGE: Final = "%(prog)s --routine NAME [flags]  |  %(prog)s --testlist FILE [flags]"
JIT_HELP: Final = "modules compiled ahead at once; 0: none (default: one a core, 4 to 32; 0 on a CPU)"
MOST_TIMEOUT_S: Final = 1_000_000
"""Longest --timeout, in seconds. The waits of the system take no more than 2^31 ms."""
LARGEST_WHOLE: Final = 2**53
"""Whole numbers from this size on become floats, because torch has no integers beyond 64 bits."""
CASE_FLAGS: Final = (
    Flag("num_iters", "int", "timed calls", 30),
    Flag("dry_run_iters", "int", "calls before timing", 5),
    Flag("no_cuda_graph", "switch", "never launch from a CUDA graph", False),
    Flag("use_cupti", "switch", "deprecated: CUPTI is used where it is there", False),
    Flag("use_cuda_events", "switch", "time with CUDA events even where CUPTI is there", False),
    Flag("refcheck", "switch", "a wrong output is an error, and is not timed", False),
    Flag("allow_output_mismatch", "switch", "time wrong outputs too, and go on", False),
    Flag("random_seed", "int", "seed of all inputs", 42),
    Flag("case_tag", "text", "free text for the table"),
    Flag("generate_repro_command", "switch", "print the command of this case and store it", False),
    Flag("repro_command", "text", "filled in by --generate_repro_command", ""),
)
"""Flags that every case has, beside --routine, --backends and -v."""


def finite_number(text: str) -> float:
    """Parse the value of a flag that measures. Refuse nan and infinite values. Huge whole numbers become floats."""
    value = number(text)
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"needs a finite number, not {text!r}")
    return value if abs(value) < LARGEST_WHOLE else float(value)


KINDS: Final[dict[str, Callable[[str], Any]]] = {"int": whole_number, "float": finite_number, "text": str}


def make_session_parser() -> Parser:
    """Make the parser of the flags of the whole call."""
    parser = Parser(prog=PROGRAM, add_help=False)
    _add_session_flags(parser)
    return parser


def make_case_parser(routine: Routine | None) -> Parser:
    """Make the parser of one case. Without a routine, it has the flags of every case."""
    parser = Parser(prog=PROGRAM, add_help=False)
    _add_case_flags(parser, routine)
    return parser


def declare_perf(parser: Parser) -> None:
    """Add all flags that no routine of its own has, for a shell that completes them, and names of routines."""
    _add_session_flags(parser)
    _add_case_flags(parser, None)
    action = next(one for one in parser._actions if "--routine" in one.option_strings)
    action.completer = lambda **_: list(ROUTINES)  # type: ignore[attr-defined]


def check_outer(rest: Sequence[str]) -> None:
    """Check the flags beside a testlist: some routine has each flag, and each value is of its flag's kind.

    Raises:
        Misuse: a flag is unknown or a value is wrong. One error names all unknown flags.
    """
    parser = _make_whole_parser(None, add_help=False)
    group = parser.add_argument_group("any routine")
    own = {flag.name: flag for routine in ROUTINES.values() for flag in routine.flags}
    for flag in [flag for flag in own.values() if f"--{flag.name}" not in parser.flags()]:
        _add_flag(group, replace(flag, choices=()))
    unknown = parser.parse_known_args(list(rest))[1]
    if unknown:
        raise Misuse("\n".join(describe_unknown_arguments(unknown, parser)))


def find_session_flags(words: Sequence[str]) -> list[str]:
    """Return the session's flags that are among the words, in the session's order."""
    given = {word.split("=", 1)[0] for word in words}
    return [flag for flag in make_session_parser().flags() if flag in given]


def split_session(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the session's flags, and the arguments that are left for the cases.

    Raises:
        Misuse: a value is out of range.
    """
    session, rest = make_session_parser().parse_known_args(list(argv))
    if session.timeout <= 0:
        raise Misuse(f"--timeout {session.timeout}: must be above 0 s")
    if session.timeout > MOST_TIMEOUT_S:
        raise Misuse(f"--timeout {session.timeout}: must be at most {MOST_TIMEOUT_S} s")
    if session.jit_jobs is not None and session.jit_jobs < 0:
        raise Misuse(f"--jit_jobs {session.jit_jobs}: must be at least 0, which compiles nothing ahead")
    return session, rest


def parse_case(argv: Sequence[str]) -> tuple[Routine, argparse.Namespace]:
    """Return the routine that the arguments name, and its flags.

    Raises:
        Misuse: there is no routine, it is unknown, or it does not have a flag. One error names all unknown flags.
    """
    routine = _named_routine(argv)
    if routine is None:
        raise Misuse(f"{_find_misspelt(argv)}--routine is missing; known: {', '.join(ROUTINES)}")
    parser = make_case_parser(routine)
    args, rest = parser.parse_known_args(list(argv))
    problems = describe_unknown_arguments(rest, _make_whole_parser(routine)) if rest else []
    missing = [f"--{flag.name}" for flag in routine.flags if flag.required and getattr(args, flag.name) is None]
    problems += [f"routine {routine.name} needs {', '.join(missing)}"] if missing else []
    problems += _find_outside(args, routine.flags)
    if problems:
        raise Misuse("\n".join(problems))
    args.backends = [routine.aliases.get(name, name) for name in args.backends]
    unknown = [name for name in args.backends if name not in routine.backends]
    if unknown:
        known = ", ".join(routine.backends)
        raise Misuse(f"--backends {' '.join(unknown)}: routine {routine.name} has {known}")
    for flag in ("num_iters", "dry_run_iters", "random_seed"):
        if getattr(args, flag) < (1 if flag == "num_iters" else 0):
            raise Misuse(f"--{flag} {getattr(args, flag)}: too small")
    return routine, args


def read_names(argv: Sequence[str]) -> argparse.Namespace:
    """Return the routine and the tag as typed, even if other arguments are wrong; None where one is missing."""
    probe = Parser(prog=PROGRAM, add_help=False)
    probe.add_argument("--routine", "-R", nargs="?")
    probe.add_argument("--case_tag", nargs="?")
    return probe.parse_known_args(list(argv))[0]


def find_renamed(routine: Routine, argv: Sequence[str]) -> dict[str, str]:
    """Return the backends that were typed in another spelling: as typed, to the routine's name."""
    probe = Parser(prog=PROGRAM, add_help=False)
    probe.add_argument("--backends", nargs="+", default=[])
    typed = probe.parse_known_args(list(argv))[0].backends
    return {name: routine.aliases[name] for name in typed if name in routine.aliases}


def print_help(argv: Sequence[str]) -> None:
    """Print the flags of the named routine, or a list of the routines where none is named."""
    routine = _named_routine(argv)
    if routine is None:
        parser = _make_whole_parser(None)
        parser.describe("Time FlashInfer's kernels.", usage=USAGE, example=EXAMPLE)
        write_out(parser.format_help() + _list_routines())
        return
    parser = _make_whole_parser(routine)
    parser.describe(routine.summary, usage=f"%(prog)s --routine {routine.name} [flags]")
    write_out(parser.format_help() + _list_support(routine))


def _make_whole_parser(routine: Routine | None, *, add_help: bool = True) -> Parser:
    """Make the parser of all flags, for the help and for hints at the nearest flag."""
    parser = Parser(prog=PROGRAM, add_help=add_help)
    _add_session_flags(parser)
    sweep = "a case for each value of a number: m=1,16,256 or m=1:4096:x2; may be repeated, as --m 1,16,256 may"
    parser.add_argument("--sweep", action="append", metavar="FLAG=VALUES", help=sweep)
    _add_case_flags(parser, routine)
    return parser


def _named_routine(argv: Sequence[str]) -> Routine | None:
    probe = Parser(prog=PROGRAM, add_help=False)
    probe.add_argument("--routine", "-R")
    name = probe.parse_known_args(list(argv))[0].routine
    return None if name is None else find_routine(name)


def _find_outside(args: argparse.Namespace, flags: Iterable[Flag]) -> list[str]:
    """Return a line for each number that is outside the range of its flag."""
    given = [(flag, getattr(args, flag.name)) for flag in flags]
    return [reason for flag, value in given if value is not None and (reason := flag.why_not(value)) is not None]


def _find_misspelt(argv: Sequence[str]) -> str:
    """Return a hint for a misspelt --routine or --testlist, as the beginning of a message, or ""."""
    flags = [word.split("=", 1)[0] for word in argv]
    for wanted in ("--routine", "--testlist"):
        for near in difflib.get_close_matches(wanted, flags, n=1, cutoff=0.8):
            return f"unknown flag {near}; did you mean {wanted}? "
    return ""


def _add_session_flags(parser: Parser) -> None:
    group = parser.add_argument_group("session", "of the whole call")
    group.add_argument("--testlist", metavar="FILE", help="a case a line; other flags given here hold for every line")
    group.add_argument("--output_path", metavar="FILE", help="CSV, a row for each case and backend; .jsonl: JSON lines")
    compact = "in the end, leave the columns that no row fills out of the CSV"
    group.add_argument("--no_empty_columns", action="store_true", help=compact)
    group.add_argument("--json_path", metavar="FILE", help="JSON lines with everything that was measured")
    group.add_argument("--save_trace_set", metavar="DIR", help="keep the cases as a trace set that `run` can replay")
    group.add_argument("--resume", action="store_true", help="with --save_trace_set: leave out what it records already")
    group.add_argument("--retry_timeouts", action="store_true", help="with --resume: run recorded TIMEOUTs again")
    group.add_argument("--devices", nargs="+", action=NameList, default=(), metavar="NAME", help="0, cuda:1, cpu, …")
    add_sandbox(group, default="auto")
    group.add_argument("--jit_jobs", type=whole_number, metavar="N", help=JIT_HELP)
    group.add_argument(
        "--timeout", type=finite_number, default=300, metavar="S", help="seconds for a backend of a case"
    )
    add_log_level(group, "--log_level")


def _add_case_flags(parser: Parser, routine: Routine | None) -> None:
    group = parser.add_argument_group("case", "of every routine")
    group.add_argument("--routine", "-R", metavar="NAME", help="what is timed")
    default = list(routine.default_backends) if routine is not None else []
    words = f"one or more of {', '.join(routine.backends)}" if routine is not None else "one or more"
    group.add_argument("--backends", nargs="+", default=default, metavar="NAME", help=words)
    own = () if routine is None else routine.flags
    names = {flag.name for flag in own}
    for flag in CASE_FLAGS:
        _add_flag(group, flag)
    if "autotune" not in names:
        _add_flag(group, Flag("autotune", "switch", "accepted; this routine has nothing to tune", False))
    if "enable_pdl" not in names:
        _add_flag(group, Flag("enable_pdl", "switch", "accepted; this routine has no use for it", False))
    for short in (("-n", "num_iters"), ("-d", "dry_run_iters")):
        group.add_argument(short[0], dest=short[1], type=whole_number, default=argparse.SUPPRESS, help=f"--{short[1]}")
    group.add_argument("--verbose", "-v", action="count", default=0, help="-v shows what is run, -vv inputs too")
    if routine is not None:
        section = parser.add_argument_group(routine.family, f"of {routine.name}")
        for flag in own:
            _add_flag(section, flag)


def _add_flag(group: argparse._ActionsContainer, flag: Flag) -> None:
    spelling = f"--{flag.name}"
    if flag.kind == "switch":
        group.add_argument(spelling, action="store_true", default=flag.default, help=flag.help)
        return
    shown = flag.help if flag.default in (None, "") else f"{flag.help} (default: {flag.default})"
    shown += "; required" if flag.required else ""
    extra: dict[str, Any] = {"choices": flag.choices} if flag.choices else {"metavar": flag.kind[0].upper()}
    kind = KINDS[flag.kind]
    group.add_argument(spelling, type=kind, default=flag.default, help=shown.replace("%", "%%"), **extra)


def _list_routines() -> str:
    lines = ["", "routines (--routine NAME --help shows the flags of one):"]
    for family in dict.fromkeys(routine.family for routine in ROUTINES.values()):
        lines.append(f"  {family}")
        lines += [f"    {item.name:42} {item.summary}" for item in ROUTINES.values() if item.family == family]
    return "\n".join(lines) + "\n"


def _list_support(routine: Routine) -> str:
    lines = ["", "backends, and the compute capabilities that they run on:"]
    lines += [f"  {name:15} {_join(capabilities)}" for name, capabilities in routine.support.items()]
    return "\n".join([*lines, f"  {'torch':15} any, and CPUs: the reference"]) + "\n"


def _join(capabilities: Iterable[str]) -> str:
    return ", ".join(capabilities)
