"""The flags of every command, and one clear line for whatever cannot be parsed. It runs nothing and imports no command.

A flag that overrides the configuration has the configuration field as its destination and no default: what is not given
stays as the file says.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NoReturn

from flashinfer_bench.cli.output import write_out
from flashinfer_bench.errors import Misuse
from flashinfer_bench.version import __version__

PROGRAM: Final = "flashinfer-bench"
COMMAND_FLAG: Final = "command_module"

COMMANDS: Final[dict[str, tuple[str, ...]]] = {
    "run": (),
    "list": (),
    "validate": (),
    "config": ("show",),
    "report": ("summary", "best"),
}
"""Each command with its sub-commands."""

CONFIG_FIELDS: Final = (
    *("definitions", "op_types", "solutions", "authors", "workloads", "devices"),
    *("warmup_runs", "iterations", "num_trials", "rtol", "atol", "required_matched_ratio"),
    *("timeout_seconds", "seed", "use_isolated_runner", "profile_baseline", "worker_memory_gb"),
)
"""Configuration fields that a flag can override."""

LOCAL_HELP: Final = "a trace set's folder; may be repeated (default: $FIB_DATASET_PATH)"


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose every error is a Misuse of one line, without a usage dump."""

    def __init__(self, *, example: str = "", **kwargs: Any) -> None:
        epilog = f"example:\n  {example}" if example else None
        super().__init__(formatter_class=_wide_help, epilog=epilog, allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage and exiting."""
        text = message.removeprefix("argument ")
        raise Misuse(f"{text}; see {self.prog} --help")

    def print_help(self, file: Any = None) -> None:
        """Print the help; a reader that goes away is no error."""
        if file is None:
            write_out(self.format_help())
        else:
            super().print_help(file)

    def flags(self) -> list[str]:
        """List the long flags of this parser."""
        return [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]


class NameList(argparse.Action):
    """Gathers one or more names, separated by spaces or commas; the flag may be repeated."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Add the names to those given before."""
        given = [values] if isinstance(values, str) else list(values or ())
        names = [name.strip() for value in given for name in value.split(",") if name.strip()]
        if not names:
            parser.error(f"{option_string}: expected at least one name")
        setattr(namespace, self.dest, [*getattr(namespace, self.dest, []), *names])


def whole_number(text: str) -> int:
    """Parse the value of a flag that counts."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"needs a whole number, not {text!r}") from None


def number(text: str) -> float:
    """Parse the value of a flag that measures; whole numbers stay whole."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"needs a number, not {text!r}") from None
    return int(value) if value.is_integer() else value


def parse_command_line(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments; `command_module` of the result names the command, `argv` is what was typed."""
    _check_command(argv)
    parser, commands = make_parser()
    args, rest = parser.parse_known_args(argv)
    module: str = getattr(args, COMMAND_FLAG, "")
    if rest:
        raise Misuse("\n".join(_describe_unknown(rest, commands.get(module, parser))))
    if not module:
        raise Misuse(f"no command; known: {', '.join(COMMANDS)}")
    args.argv = list(argv)
    return args


def given_overrides(args: argparse.Namespace) -> dict[str, Any]:
    """Return the configuration fields that flags gave, and no others."""
    return {name: getattr(args, name) for name in CONFIG_FIELDS if hasattr(args, name)}


def make_parser() -> tuple[Parser, dict[str, Parser]]:
    """Make the parser of the whole command line, and the parser of each command by its module."""
    parser = Parser(
        prog=PROGRAM,
        description="Decide whether GPU kernels are right and how fast they are: run the solutions of a trace set.",
        example=f"{PROGRAM} run --local flashinfer-trace",
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = _subcommands(parser)
    parsers = {"run": _run_parser(commands), "list": _list_parser(commands), "validate": _validate_parser(commands)}
    config = _subcommands(commands.add_parser("config", help="show settings", description="Show settings."))
    parsers["config_show"] = _config_show_parser(config)
    report = _subcommands(
        commands.add_parser("report", help="make tables of traces", description="Make tables of traces.")
    )
    parsers["report_summary"] = _summary_parser(report)
    parsers["report_best"] = _best_parser(report)
    return parser, parsers


def _subcommands(parser: argparse.ArgumentParser) -> Any:
    return parser.add_subparsers(metavar="COMMAND", parser_class=Parser, title="commands")


def _run_parser(commands: Any) -> Parser:
    parser = _command(
        commands,
        "run",
        "run",
        usage="%(prog)s --local PATH [flags]",
        help="judge and time solutions",
        description="Judge and time the chosen solutions on every workload of their definitions; record each verdict.",
        example=f"{PROGRAM} run --local flashinfer-trace --definitions gemm_n128_k2048 --iterations 20",
    )
    _add_local(parser)
    _add_selection(parser)
    _add_settings(parser)
    results = parser.add_argument_group("results")
    results.add_argument("--resume", action="store_true", help="skip what is recorded and unchanged")
    results.add_argument("--retry-timeouts", action="store_true", help="with --resume: run recorded TIMEOUTs again")
    results.add_argument("--no-save-results", action="store_true", help="write no traces")
    results.add_argument("--dry-run", action="store_true", help="print the plan and run nothing")
    results.add_argument("--require-passed", action="store_true", help="exit with 1 unless every job passed")
    _add_format(results)
    results.add_argument("--quiet", action="store_true", help="no progress; only errors and the result")
    return parser


def _list_parser(commands: Any) -> Parser:
    parser = _command(
        commands,
        "list",
        "list",
        help="list the definitions of a trace set",
        description="List the definitions with their op type and how many workloads, solutions and traces they have.",
        example=f"{PROGRAM} list --local flashinfer-trace --op-types gemm rmsnorm",
    )
    _add_local(parser)
    _add_names(parser, "--definitions", "only these definitions")
    _add_names(parser, "--op-types", "only these op types")
    _add_format(parser)
    return parser


def _validate_parser(commands: Any) -> Parser:
    parser = _command(
        commands,
        "validate",
        "validate",
        help="show everything wrong with a trace set",
        description="Show every error and warning of a trace set: file, line, field, reason. Errors: exit code 2.",
        example=f"{PROGRAM} validate --local flashinfer-trace",
    )
    _add_local(parser)
    _add_format(parser)
    return parser


def _config_show_parser(commands: Any) -> Parser:
    parser = _command(
        commands,
        "show",
        "config_show",
        usage="%(prog)s [--definition NAME --local PATH] [flags]",
        help="show every setting and where it comes from",
        description="Show every setting with its origin; with --definition, those that this definition runs with.",
        example=f"{PROGRAM} config show --definition gemm_n128_k2048 --local flashinfer-trace --rtol 0.001",
    )
    parser.add_argument("--definition", metavar="NAME", help="resolve the settings of this definition")
    _add_local(parser)
    _add_selection(parser)
    _add_settings(parser)
    _add_format(parser)
    return parser


def _summary_parser(commands: Any) -> Parser:
    parser = _command(
        commands,
        "summary",
        "report_summary",
        help="one row a solution",
        description="One row a solution: workloads passed, latency, speed-up, and why it failed where it failed.",
        example=f"{PROGRAM} report summary --local flashinfer-trace --op-types gemm",
    )
    _add_report_flags(parser)
    return parser


def _best_parser(commands: Any) -> Parser:
    parser = _command(
        commands,
        "best",
        "report_best",
        help="the best passing solutions",
        description="The passing trace with the highest speed-up of each workload, or each definition's best solution.",
        example=f"{PROGRAM} report best --local flashinfer-trace --by definition",
    )
    parser.add_argument(
        "--by", choices=("workload", "definition"), default="workload", help="one row for each (default: %(default)s)"
    )
    _add_report_flags(parser)
    return parser


def _wide_help(prog: str) -> argparse.HelpFormatter:
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=34)


def _command(commands: Any, name: str, module: str, **texts: Any) -> Parser:
    parser = commands.add_parser(name, **texts)
    assert isinstance(parser, Parser)  # what add_subparsers(parser_class=Parser) makes
    parser.set_defaults(**{COMMAND_FLAG: module})
    return parser


def _add_report_flags(parser: Parser) -> None:
    _add_local(parser)
    _add_names(parser, "--definitions", "only these definitions")
    _add_names(parser, "--op-types", "only these op types")
    _add_names(parser, "--solutions", "only these solutions")
    _add_names(parser, "--authors", "only solutions of these authors")
    _add_format(parser)


def _add_local(parser: Parser) -> None:
    parser.add_argument("--local", action="append", metavar="PATH", help=LOCAL_HELP)


def _add_format(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--format", choices=("table", "json"), default="table", help="what goes to stdout (default: %(default)s)"
    )


def _add_selection(parser: Parser) -> None:
    group = parser.add_argument_group("what to run", "one or more names each, separated by spaces or commas")
    _add_names(group, "--definitions", "only these definitions")
    _add_names(group, "--op-types", "only these op types")
    _add_names(group, "--solutions", "only these solutions")
    _add_names(group, "--authors", "only solutions of these authors")
    _add_names(group, "--workloads", "only these workloads: uuids, or unique beginnings of uuids")
    _add_names(group, "--devices", "only these devices: 0, cuda:1, a GPU's uuid, or cpu")


def _add_settings(parser: Parser) -> None:
    group = parser.add_argument_group("settings", "they beat the configuration file, its sections included")
    group.add_argument("--config", metavar="FILE", help="a YAML file instead of the bundled eval_config.yaml")
    _add_setting(group, "--warmup-runs", whole_number, "calls before timing")
    _add_setting(group, "--iterations", whole_number, "timed calls per trial")
    _add_setting(group, "--num-trials", whole_number, "trials, each with inputs of its own")
    _add_setting(group, "--rtol", number, "relative tolerance")
    _add_setting(group, "--atol", number, "absolute tolerance")
    _add_setting(group, "--required-matched-ratio", number, "share of elements that must match")
    _add_setting(group, "--timeout", number, "seconds for one solution on one workload", dest="timeout_seconds")
    _add_setting(group, "--seed", whole_number, "seed of the inputs")
    _add_setting(group, "--worker-memory-gb", number, "host memory that a worker may use")
    isolated = "a new process for every workload"
    group.add_argument("--use-isolated-runner", action="store_true", default=argparse.SUPPRESS, help=isolated)
    group.add_argument(
        "--no-profile-baseline",
        dest="profile_baseline",
        action="store_false",
        default=argparse.SUPPRESS,
        help="do not time the reference: no speed-up",
    )


def _add_names(parser: argparse._ActionsContainer, flag: str, text: str) -> None:
    parser.add_argument(flag, nargs="+", action=NameList, metavar="NAME", default=argparse.SUPPRESS, help=text)


def _add_setting(
    group: argparse._ActionsContainer, flag: str, kind: Callable[[str], float], text: str, dest: str | None = None
) -> None:
    metavar = "N" if kind is whole_number else "F"
    destination = dest or flag.removeprefix("--").replace("-", "_")
    group.add_argument(flag, dest=destination, type=kind, metavar=metavar, default=argparse.SUPPRESS, help=text)


def _check_command(argv: Sequence[str]) -> None:
    words = _leading_words(argv)
    if not words:
        return
    _check_word(words[0], COMMANDS, "command")
    children = COMMANDS[words[0]]
    if children and len(words) > 1:
        _check_word(words[1], children, f"{words[0]} command")
    elif children and not {"-h", "--help"} & set(argv):
        raise Misuse(f"{words[0]} needs a command: {' or '.join(children)}")


def _leading_words(argv: Sequence[str]) -> list[str]:
    words: list[str] = []
    for argument in argv:
        if argument.startswith("-"):
            break
        words.append(argument)
    return words


def _check_word(word: str, known: Iterable[str], what: str) -> None:
    names = list(known)
    if word not in names:
        near = _nearest(word, names, cutoff=0.6)
        hint = f"did you mean {near}?" if near else f"known: {', '.join(names)}"
        raise Misuse(f"unknown {what} {word}; {hint}")


def _describe_unknown(rest: Sequence[str], parser: Parser) -> list[str]:
    flags = [argument.split("=", 1)[0] for argument in rest if argument.startswith("-")]
    if not flags:
        return [f"unexpected argument {rest[0]}; see {parser.prog} --help"]
    return [_describe_unknown_flag(flag, parser) for flag in flags]


def _describe_unknown_flag(flag: str, parser: Parser) -> str:
    wanted = "--" + flag.lstrip("-").replace("_", "-").lower()
    near = _nearest(wanted, parser.flags(), cutoff=0.7)
    hint = f"did you mean {near}?" if near else f"see {parser.prog} --help"
    return f"unknown flag {flag}; {hint}"


def _nearest(word: str, known: Sequence[str], *, cutoff: float) -> str | None:
    begun = [name for name in known if name.startswith(word)]
    near = difflib.get_close_matches(word, known, n=1, cutoff=cutoff)
    return next(iter(near or begun), None)
