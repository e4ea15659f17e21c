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
from flashinfer_bench.routines.case.spec import Flag, Routine, Span, from_zero, real, switch, whole, word
from flashinfer_bench.routines.table import ROUTINES, find_routine

PROGRAM: Final = "flashinfer-bench perf"
EXAMPLE: Final = f"{PROGRAM} --routine rmsnorm --batch_size 32 --hidden_size 4096 --refcheck -vv"
USAGE: Final = "%(prog)s --routine NAME [flags]  |  %(prog)s --testlist FILE [flags]"
JIT_HELP: Final = "modules compiled ahead at once; 0: none (default: one a core, 4 to 32; 0 on a CPU)"
SWEEP_HELP: Final = "a case for each value of a number: m=1,16,256 or m=1:4096:x2; may be repeated, as --m 1,16,256 may"
LARGEST_WHOLE: Final = 2**53
"""Whole numbers from this size on become floats, because torch has no integers beyond 64 bits."""
SHORT: Final = {"num_iters": "-n", "dry_run_iters": "-d"}
SESSION_FLAGS: Final = (
    Flag("file", "testlist", "a case a line; other flags given here hold for every line"),
    Flag("file", "output_path", "CSV, a row for each case and backend; .jsonl: JSON lines"),
    switch("no_empty_columns", "in the end, leave the columns that no row fills out of the CSV"),
    Flag("file", "json_path", "JSON lines with everything that was measured"),
    Flag("file", "save_trace_set", "a folder: keep the cases as a trace set that `run` can replay"),
    switch("resume", "with --save_trace_set: leave out what it records already"),
    switch("retry_timeouts", "with --resume: run recorded TIMEOUTs again"),
    from_zero("jit_jobs", JIT_HELP, default=None),
    real("timeout", "seconds for a backend of a case", 300, span=Span("above 0 s, and at most 1000000 s", 1e-9, 1e6)),
)
"""Flags of the whole call, beside --devices, --sandbox and --log_level. The waits of the system end at 2^31 ms."""
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


KINDS: Final[dict[str, Callable[[str], Any]]] = {"int": whole_number, "float": finite_number}


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
    problems = _find_outside(session, SESSION_FLAGS)
    if problems:
        raise Misuse("\n".join(problems))
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
    problems += _find_outside(args, (*CASE_FLAGS, *routine.flags))
    args.backends = [routine.aliases.get(name, name) for name in args.backends]
    unknown = [name for name in args.backends if name not in routine.backends]
    if unknown:
        problems.append(f"--backends {' '.join(unknown)}: routine {routine.name} has {', '.join(routine.backends)}")
    if problems:
        raise Misuse("\n".join(dict.fromkeys(problems)))
    return routine, args


def _find_outside(args: argparse.Namespace, flags: Iterable[Flag]) -> list[str]:
    """Return a line for each number that is outside the range of its flag."""
    given = [(flag, getattr(args, flag.name)) for flag in flags]
    return [why for flag, value in given if value is not None and (why := flag.why_not(value)) is not None]


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
    for flag in SESSION_FLAGS:
        _add_flag(group, flag)
    group.add_argument("--devices", nargs="+", action=NameList, default=(), metavar="NAME", help="0, cuda:1, cpu, …")
    add_sandbox(group, default="auto")
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
    extra: dict[str, Any] = {"choices": flag.choices} if flag.choices else {"metavar": flag.kind.upper()}
    group.add_argument(
        *spellings, type=KINDS.get(flag.kind, str), default=flag.default, help=shown.replace("%", "%%"), **extra
    )
