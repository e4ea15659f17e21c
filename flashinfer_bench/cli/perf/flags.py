"""The flags of `perf`: those of a session, those of every case, and those of the routine that a case names.

They are spelt with underscores, as in the documents of FlashInfer's own benchmark.
"""

from __future__ import annotations

import argparse
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
from flashinfer_bench.routines.case.spec import Flag, Routine, from_zero, switch, whole, word
from flashinfer_bench.routines.table import ROUTINES, find_routine

PROGRAM: Final = "flashinfer-bench perf"
EXAMPLE: Final = f"{PROGRAM} --routine rmsnorm --batch_size 32 --hidden_size 4096 --refcheck -vv"
USAGE: Final = "%(prog)s --routine NAME [flags]  |  %(prog)s --testlist FILE [flags]"
JIT_HELP: Final = "modules compiled ahead at once; 0: none (default: one a core, 4 to 32; 0 on a CPU)"
SWEEP_HELP: Final = "a case for each value of a number: m=1,16,256 or m=1:4096:x2; may be repeated, as --m 1,16,256 may"
MOST_TIMEOUT_S: Final = 1_000_000
"""Longest --timeout, in seconds. The waits of the system take no more than 2^31 ms."""
LARGEST_WHOLE: Final = 2**53
"""Whole numbers from this size on become floats, because torch has no integers beyond 64 bits."""
SHORT: Final = {"num_iters": "-n", "dry_run_iters": "-d"}
CASE_FLAGS: Final = (
    whole("num_iters", "timed calls", 30),
    from_zero("dry_run_iters", "calls before timing", default=5),
    switch("no_cuda_graph", "never launch from a CUDA graph"),
    switch("use_cupti", "deprecated: CUPTI is used where it is there"),
    switch("use_cuda_events", "time with CUDA events even where CUPTI is there"),
    switch("refcheck", "a wrong output is an error, and is not timed"),
    switch("allow_output_mismatch", "time wrong outputs too, and go on"),
    from_zero("random_seed", "seed of all inputs", default=42),
    word("case_tag", "free text for the table"),
    switch("generate_repro_command", "print the command of this case and store it"),
    word("repro_command", "filled in by --generate_repro_command", ""),
    switch("autotune", "accepted; this routine has nothing to tune"),
    switch("enable_pdl", "accepted; this routine has no use for it"),
)
"""Flags that every case has, beside --routine, --backends and -v; a routine may have one of them as its own."""


def finite_number(text: str) -> float:
    """Parse the value of a flag that measures. Huge whole numbers become floats."""
    value = number(text)
    return value if abs(value) < LARGEST_WHOLE else float(value)


KINDS: Final[dict[str, Callable[[str], Any]]] = {"int": whole_number, "float": finite_number, "text": str}


def make_session_parser() -> Parser:
    """Make the parser of the flags of the whole call."""
    parser = Parser(prog=PROGRAM, add_help=False)
    _add_session_flags(parser)
    return parser


def _make_whole_parser(own: Iterable[Flag], routine: Routine | None = None, *, add_help: bool = True) -> Parser:
    """Make the parser of all flags, for the help and for hints at the nearest flag."""
    parser = Parser(prog=PROGRAM, add_help=add_help)
    _add_session_flags(parser)
    parser.add_argument("--sweep", action="append", metavar="FLAG=VALUES", help=SWEEP_HELP)
    _add_case_flags(parser, own, routine)
    return parser


def declare_perf(parser: Parser) -> None:
    """Add all flags that no routine of its own has, for a shell that completes them, and names of routines."""
    _add_session_flags(parser)
    _add_case_flags(parser, (), None)
    action = next(one for one in parser._actions if "--routine" in one.option_strings)
    action.completer = lambda **_: list(ROUTINES)  # type: ignore[attr-defined]


def check_outer(rest: Sequence[str]) -> None:
    """Check the flags beside a testlist: some routine has each flag, and each value is of its flag's kind.

    Raises:
        Misuse: a flag is unknown or a value is wrong. One error names all unknown flags.
    """
    own = {flag.name: replace(flag, choices=()) for routine in ROUTINES.values() for flag in routine.flags}
    parser = _make_whole_parser(own.values(), add_help=False)
    unknown = parser.parse_known_args(list(rest))[1]
    if unknown:
        raise Misuse("\n".join(describe_unknown_arguments(unknown, parser)))


def split_session(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the session's flags, and the arguments that are left for the cases.

    Raises:
        Misuse: a value is out of range.
    """
    session, rest = make_session_parser().parse_known_args(list(argv))
    if not 0 < session.timeout <= MOST_TIMEOUT_S:
        limit = "above 0 s" if session.timeout <= 0 else f"at most {MOST_TIMEOUT_S} s"
        raise Misuse(f"--timeout {session.timeout}: must be {limit}")
    if session.jit_jobs is not None and session.jit_jobs < 0:
        raise Misuse(f"--jit_jobs {session.jit_jobs}: must be at least 0, which compiles nothing ahead")
    return session, rest


def parse_case(argv: Sequence[str]) -> tuple[Routine, argparse.Namespace]:
    """Return the routine that the arguments name, and its flags. `args.backends` has its names for backends.

    Raises:
        Misuse: there is no routine, it is unknown, or it does not have a flag. One error names all unknown flags.
    """
    name = read_names(argv).routine
    routine = find_routine(name) if name is not None else None
    parser = Parser(prog=PROGRAM, add_help=False)
    _add_case_flags(parser, routine.flags if routine else (), routine)
    args, rest = parser.parse_known_args(list(argv))
    if routine is None:
        hints = describe_unknown_arguments(rest, _make_whole_parser(())) if rest else []
        missing = f"--routine is missing; known: {', '.join(ROUTINES)}"
        raise Misuse(" ".join([*(hint for hint in hints if "did you mean" in hint), missing]))
    problems = describe_unknown_arguments(rest, _make_whole_parser(routine.flags)) if rest else []
    missing = ", ".join(
        f"--{flag.name}" for flag in routine.flags if flag.required and getattr(args, flag.name) is None
    )
    problems += [f"routine {routine.name} needs {missing}"] if missing else []
    given = [(flag, getattr(args, flag.name)) for flag in (*CASE_FLAGS, *routine.flags)]
    problems += [why for flag, value in given if value is not None and (why := flag.why_not(value)) is not None]
    args.backends = [routine.aliases.get(name, name) for name in args.backends]
    unknown = [name for name in args.backends if name not in routine.backends]
    if unknown:
        problems.append(f"--backends {' '.join(unknown)}: routine {routine.name} has {', '.join(routine.backends)}")
    if problems:
        raise Misuse("\n".join(dict.fromkeys(problems)))
    return routine, args


def read_names(argv: Sequence[str]) -> argparse.Namespace:
    """Return routine, tag and backends as typed, even if other arguments are wrong; None where one is missing."""
    probe = Parser(prog=PROGRAM, add_help=False)
    probe.add_argument("--routine", "-R", nargs="?")
    probe.add_argument("--case_tag", nargs="?")
    probe.add_argument("--backends", nargs="*", default=[])
    return probe.parse_known_args(list(argv))[0]


def print_help(argv: Sequence[str]) -> None:
    """Print the flags of the named routine, or a list of the routines where none is named."""
    name = read_names(argv).routine
    if name is None:
        parser = _make_whole_parser(())
        parser.describe("Time FlashInfer's kernels.", usage=USAGE, example=EXAMPLE)
        lines = ["", "routines (--routine NAME --help shows the flags of one):"]
        for family in dict.fromkeys(routine.family for routine in ROUTINES.values()):
            lines.append(f"  {family}")
            lines += [f"    {item.name:42} {item.summary}" for item in ROUTINES.values() if item.family == family]
    else:
        routine = find_routine(name)
        parser = _make_whole_parser(routine.flags, routine)
        parser.describe(routine.summary, usage=f"%(prog)s --routine {routine.name} [flags]")
        lines = ["", "backends, and the compute capabilities that they run on:"]
        lines += [f"  {backend:15} {', '.join(capabilities)}" for backend, capabilities in routine.support.items()]
        lines.append(f"  {'torch':15} any, and CPUs: the reference")
    write_out("\n".join([parser.format_help(), *lines[1:], ""]))


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
    limit = "seconds for a backend of a case"
    group.add_argument("--timeout", type=finite_number, default=300, metavar="S", help=limit)
    add_log_level(group, "--log_level")


def _add_case_flags(parser: Parser, own: Iterable[Flag], routine: Routine | None) -> None:
    group = parser.add_argument_group("case", "of every routine")
    group.add_argument("--routine", "-R", metavar="NAME", help="what is timed")
    names, default = "one or more", []
    if routine is not None:
        names, default = f"one or more of {', '.join(routine.backends)}", [routine.backends[0]]
    group.add_argument("--backends", nargs="+", default=default, metavar="NAME", help=names)
    known = {flag.name for flag in own}
    for flag in CASE_FLAGS:
        if flag.name not in known:
            _add_flag(group, flag)
    group.add_argument("--verbose", "-v", action="count", default=0, help="-v shows what is run, -vv inputs too")
    title = (routine.family, f"of {routine.name}") if routine is not None else ("any routine",)
    section = parser.add_argument_group(*title)
    for flag in own:
        _add_flag(section, flag)


def _add_flag(group: argparse._ActionsContainer, flag: Flag) -> None:
    spellings = [short, f"--{flag.name}"] if (short := SHORT.get(flag.name)) else [f"--{flag.name}"]
    if flag.kind == "switch":
        group.add_argument(*spellings, action="store_true", default=flag.default, help=flag.help)
        return
    shown = flag.help if flag.default in (None, "") else f"{flag.help} (default: {flag.default})"
    shown += "; required" if flag.required else ""
    extra: dict[str, Any] = {"choices": flag.choices} if flag.choices else {"metavar": flag.kind[0].upper()}
    group.add_argument(*spellings, type=KINDS[flag.kind], default=flag.default, help=shown.replace("%", "%%"), **extra)
