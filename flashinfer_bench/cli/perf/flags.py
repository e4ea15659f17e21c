"""The flags of `perf`: flags of the session, flags of every case, and flags of one routine.

Flags have underscores, as in the documents of FlashInfer's own benchmark. The help does not import the engine.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from flashinfer_bench.cli.output import write_out
from flashinfer_bench.cli.parser import (
    Parser,
    add_flags,
    add_log_level,
    add_sandbox,
    describe_unknown_arguments,
    number,
    whole_number,
)
from flashinfer_bench.errors import UsageError
from flashinfer_bench.routines.case.spec import TORCH, Flag, Routine, from_zero, real, switch, whole, word
from flashinfer_bench.routines.table import ALL_NAMES, ROUTINES, find_routine

PROGRAM: Final = "flashinfer-bench perf"
EXAMPLE: Final = "perf --routine rmsnorm --batch_size 32 --hidden_size 4096 --refcheck -vv"
USAGE: Final = "%(prog)s --routine NAME [flags]  |  %(prog)s --testlist FILE [flags]"
JIT_HELP: Final = "modules to compile ahead in parallel; 0: none (default: one per core, 4 to 32; 0 on a CPU)"
SWEEP_HELP: Final = "a case for each value of a number: m=1,16,256 or m=1:4096:x2; may be repeated, as --m 1,16,256 may"
MOST_CALLS: Final = 10_000_000
"""Maximum number of calls of a solution."""
OTHER_SPELLINGS: Final = {
    "num_iters": ["-n"],
    "dry_run_iters": ["-d"],
    "activation_type": ["--activation-type"],
}
SESSION_FLAGS: Final = (
    Flag("file", "testlist", "file with one case per line; other flags given here hold for every line"),
    Flag("file", "output_path", "CSV, a row for each case and backend; .jsonl: JSON lines"),
    switch("no_empty_columns", "at the end, remove empty columns from the CSV"),
    Flag("file", "json_path", "JSON lines with all measurements"),
    Flag("file", "save_trace_set", "folder to save the cases in, as a trace set that `run` can replay"),
    switch("resume", "with --save_trace_set: skip cases that it has recorded"),
    switch("retry_timeouts", "with --resume: run recorded TIMEOUTs again"),
    from_zero("jit_jobs", JIT_HELP, default=None),
    real("timeout", "time limit of one backend of a case, in seconds", 300, least=1e-9, most=1e6),
)
"""Flags of the whole call, besides --devices, --sandbox and --log_level. The limit of --timeout exists because a system
call waits at most 2^31 ms."""
CASE_FLAGS: Final = (
    whole("num_iters", "timed calls", 30, most=MOST_CALLS),
    from_zero("dry_run_iters", "calls before timing", default=5, most=MOST_CALLS),
    switch("no_cuda_graph", "never launch from a CUDA graph"),
    switch("use_cupti", "deprecated: CUPTI is used if it is available"),
    switch("use_cuda_events", "time with CUDA events even if CUPTI is available"),
    switch("refcheck", "treat a wrong output as an error, and do not time it"),
    switch("allow_output_mismatch", "time wrong outputs, too, and continue"),
    from_zero("random_seed", "seed of all inputs", default=42),
    word("case_tag", "free text for the table"),
    switch("generate_repro_command", "print the command of this case and store it"),
    word("repro_command", "filled in by --generate_repro_command", ""),
    switch("autotune", "accepted; no effect on this routine (no tuning)"),
    word("autotune_cache", "accepted; no effect here (a file with the library's tuning)"),
    switch("enable_pdl", "accepted; no effect on this routine"),
)
"""Flags of every case, besides --routine, --backends and -v. A routine may declare a flag with the same name."""


def execute(args: argparse.Namespace) -> int:
    """Print the help, or run the session. The exit code is 0 if all cases ran and all rows were written.

    Raises:
        UsageError: arguments are missing or cannot be used. No case was run.
    """
    words: list[str] = args.argv[1:]
    if not words:
        usage = USAGE % {"prog": PROGRAM}
        raise UsageError(f"perf needs a routine or a testlist: {usage}; see {PROGRAM} --help")
    if {"-h", "--help"} & set(words):
        print_help(words)
        return 0
    from flashinfer_bench.cli.perf.session import run_session  # the engine, which the help does not need

    return run_session(words)


def _reader(flag: Flag) -> Callable[[str], Any]:
    """Return the function that parses a value of a flag, and that refuses a number outside the flag's range."""

    def read(text: str) -> Any:
        value = whole_number(text) if flag.kind == "int" else float(number(text)) if flag.kind == "float" else text
        if (why := flag.why_not(value)) is not None:
            raise argparse.ArgumentTypeError(why)
        return value

    return read


def make_parser(
    own: Iterable[Flag] = (),
    routine: Routine | None = None,
    *,
    session: bool = True,
    case: bool = True,
    add_help: bool = False,
) -> Parser:
    """Make the parser of the flags of the whole call, of a case, or of both.

    Args:
        own: the routine's own flags.
        session: whether to add the flags of the whole call.
        case: whether to add the flags of a case.
    """
    parser = Parser(prog=PROGRAM, add_help=add_help)
    if session:
        _add_session_flags(parser)
    if session and case:
        parser.add_argument("--sweep", action="append", metavar="FLAG=VALUES", help=SWEEP_HELP)
    if case:
        _add_case_flags(parser, list(own), routine)
    return parser


def declare_perf(parser: Parser) -> None:
    """Add the names of routines, and the flags that all routines share. Shells use them for completion."""
    _add_session_flags(parser)
    _add_case_flags(parser, [], None)


def check_outer(rest: Sequence[str]) -> None:
    """Check the flags beside a testlist. Each flag must belong to a routine, and have a value of the right kind.

    Raises:
        UsageError: a flag is unknown or a value is wrong. One error names all unknown flags.
    """
    own = {flag.name: replace(flag, choices=()) for routine in ROUTINES.values() for flag in routine.flags}
    parser = make_parser(own.values())
    if unknown := parser.parse_known_args(list(rest))[1]:
        raise UsageError("\n".join(describe_unknown_arguments(unknown, parser)))


def split_session(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the session's flags, and the arguments that remain for the cases.

    Raises:
        UsageError: a value is out of range.
    """
    return make_parser(case=False).parse_known_args(list(argv))


def parse_case(argv: Sequence[str]) -> tuple[Routine, argparse.Namespace]:
    """Return the routine of the arguments, and the parsed flags. `args.backends` has present names, not old names, of
    backends.

    Raises:
        UsageError: the routine is missing or unknown, or lacks a flag. One error names all unknown flags.
    """
    name = read_names(argv).routine
    routine = find_routine(name) if name is not None else None
    own = routine.flags if routine is not None else ()
    args, rest = make_parser(own, routine, session=False).parse_known_args(list(argv))
    problems = describe_unknown_arguments(rest, make_parser(own)) if rest else []
    if routine is None:
        near = [line for line in problems if "did you mean" in line]
        raise UsageError(" ".join([*near, f"--routine is missing; {ALL_NAMES}"]))
    missing = [f"--{flag.name}" for flag in own if flag.required and getattr(args, flag.name) is None]
    problems += [f"routine {routine.name} needs {', '.join(missing)}"] if missing else []
    args.backends = [routine.aliases.get(name, name) for name in args.backends]
    if unknown := [name for name in args.backends if name not in routine.backends]:
        problems.append(f"--backends {' '.join(unknown)}: routine {routine.name} has {', '.join(routine.backends)}")
    if problems:
        raise UsageError("\n".join(problems))
    return routine, args


def read_names(argv: Sequence[str]) -> argparse.Namespace:
    """Return routine and tag as typed, even if other arguments are wrong; None for a missing value."""
    probe = Parser(prog=PROGRAM, add_help=False)
    probe.add_argument("--routine", "-R", nargs="?")
    probe.add_argument("--case_tag", nargs="?")
    return probe.parse_known_args(list(argv))[0]


def print_help(argv: Sequence[str]) -> None:
    """Print the flags of the named routine. Print the list of routines if no routine is named."""
    name = read_names(argv).routine
    if name is None:
        parser = make_parser(add_help=True)
        parser.describe("Time FlashInfer's kernels.", usage=USAGE, example=EXAMPLE)
        lines = ["routines (--routine NAME --help shows the flags of a routine):"]
        for family in dict.fromkeys(routine.family for routine in ROUTINES.values()):
            lines.append(f"  {family}")
            lines += [f"    {item.name:42} {item.summary}" for item in ROUTINES.values() if item.family == family]
    else:
        routine = find_routine(name)
        parser = make_parser(routine.flags, routine, add_help=True)
        parser.describe(routine.summary, usage=f"%(prog)s --routine {routine.name} [flags]")
        lines = ["backends, and their compute capabilities:"]
        lines += [
            f"  {backend:15} {', '.join(capabilities) or 'none'}" for backend, capabilities in routine.support.items()
        ]
        lines.append(f"  {TORCH:15} any, and CPUs: the reference")
    write_out("\n".join([parser.format_help(), *lines, ""]))


def _add_session_flags(parser: Parser) -> None:
    group = parser.add_argument_group("session", "flags of the whole call")
    for flag in SESSION_FLAGS:
        _add_flag(group, flag)
    add_flags(group, {"--devices NAME...": "0, cuda:1, cpu, …"}, devices=())
    add_sandbox(group, default="auto")
    add_log_level(group, "--log_level")


def _add_case_flags(parser: Parser, own: Sequence[Flag], routine: Routine | None) -> None:
    group = parser.add_argument_group("case", "flags of every routine")
    action = group.add_argument("--routine", "-R", metavar="NAME", help="what to time")
    action.completer = lambda **_: list(ROUTINES)  # type: ignore[attr-defined]
    names = f" of {', '.join(routine.backends)}" if routine is not None else ""
    default = [routine.backends[0]] if routine is not None else []
    group.add_argument("--backends", nargs="+", default=default, metavar="NAME", help=f"one or more{names}")
    for flag in CASE_FLAGS:
        if flag.name not in {one.name for one in own}:
            _add_flag(group, flag)
    group.add_argument("--verbose", "-v", action="count", default=0, help="-v shows the case, -vv also its inputs")
    title = (routine.family, f"of {routine.name}") if routine is not None else ("any routine",)
    section = parser.add_argument_group(*title)
    for flag in own:
        _add_flag(section, flag)


def _add_flag(group: argparse._ActionsContainer, flag: Flag) -> None:
    spellings, text = [*OTHER_SPELLINGS.get(flag.name, ()), f"--{flag.name}"], flag.help
    if flag.kind == "switch":
        action = argparse.BooleanOptionalAction if flag.default else "store_true"
        group.add_argument(*spellings, action=action, default=flag.default, help=text)
        return
    text += "" if flag.default in (None, "") else f" (default: {flag.default})"
    text += "; required" if flag.required else ""
    extra: dict[str, Any] = {"choices": flag.choices} if flag.choices else {"metavar": flag.kind.upper()}
    text = text.replace("%", "%%")
    group.add_argument(*spellings, type=_reader(flag), default=flag.default, help=text, **extra)
