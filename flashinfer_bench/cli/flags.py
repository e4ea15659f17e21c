"""The flags of every command: what can be typed. It runs nothing and imports no command.

A flag that overrides the configuration has the configuration field as its destination and no default: what is not given
stays as the file says.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, Final

from flashinfer_bench.cli.build_flags import add_build_commands
from flashinfer_bench.cli.parser import Parser, check_command, describe_unknown_arguments, number, whole_number
from flashinfer_bench.cli.shared_flags import (
    COMMAND_FLAG,
    PROGRAM,
    add_format,
    add_local,
    add_names,
    add_sandbox,
    command,
    command_group,
    subcommands,
)
from flashinfer_bench.errors import Misuse
from flashinfer_bench.version import __version__

PERF: Final = "perf"
"""Its flags are those of FlashInfer's own benchmark and depend on the routine: `perf_flags` reads them."""

COMMANDS: Final[dict[str, tuple[str, ...]]] = {
    "run": (),
    "list": (),
    "validate": (),
    "config": ("show",),
    "report": ("summary", "best"),
    "build": (),
    "pack": (),
    "unpack": (),
    "cache": ("show", "clear", "verify"),
    "doctor": (),
    PERF: (),
}
"""Each command with its sub-commands."""

CONFIG_FIELDS: Final = (
    *("definitions", "op_types", "solutions", "authors", "workloads", "devices"),
    *("warmup_runs", "iterations", "num_trials", "rtol", "atol", "required_matched_ratio"),
    *("timeout_seconds", "seed", "use_isolated_runner", "profile_baseline", "worker_memory_gb"),
    *("build_jobs", "l2_cache", "clock", "cuda_graphs", "keep_samples"),
    *("evaluator_modules", "sandbox"),
)
"""Configuration fields that a flag can override."""
BUILD_JOBS_HELP: Final = "compilers at once (default: one less than there are cores; on a CPU as many)"


def parse_command_line(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments; `command_module` of the result names the command, `argv` is what was typed."""
    check_command(argv, COMMANDS)
    if argv[0] == PERF:
        return argparse.Namespace(**{COMMAND_FLAG: PERF}, argv=list(argv))
    parser, commands = make_parser()
    args, rest = parser.parse_known_args(argv)
    module: str = getattr(args, COMMAND_FLAG, "")
    if rest:
        raise Misuse("\n".join(describe_unknown_arguments(rest, commands.get(module, parser))))
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
    commands = subcommands(parser)
    parsers = {"run": _run_parser(commands), "list": _list_parser(commands), "validate": _validate_parser(commands)}
    parsers.update(_config_parsers(commands))
    parsers.update(_report_parsers(commands))
    parsers.update(add_build_commands(commands))
    parsers["doctor"] = _doctor_parser(commands)
    commands.add_parser(PERF, add_help=False, help="time FlashInfer's kernels")
    return parser, parsers


def _run_parser(commands: Any) -> Parser:
    parser = command(
        commands,
        "run",
        "run",
        usage="%(prog)s --local PATH [flags]",
        help="judge and time solutions",
        description="Judge and time the chosen solutions on every workload of their definitions; record each verdict.",
        example=f"{PROGRAM} run --local flashinfer-trace --definitions gemm_n128_k4096 --iterations 20",
    )
    add_local(parser)
    _add_selection(parser)
    _add_settings(parser)
    results = parser.add_argument_group("results")
    results.add_argument("--resume", action="store_true", help="skip what is recorded and unchanged")
    results.add_argument("--retry-timeouts", action="store_true", help="with --resume: run recorded TIMEOUTs again")
    results.add_argument("--no-save-results", action="store_true", help="write no traces")
    results.add_argument("--dry-run", action="store_true", help="print the plan and run nothing")
    results.add_argument("--require-passed", action="store_true", help="exit with 1 unless every job passed")
    add_format(results)
    results.add_argument("--quiet", action="store_true", help="no progress; only errors and the result")
    return parser


def _list_parser(commands: Any) -> Parser:
    parser = command(
        commands,
        "list",
        "list",
        help="list the definitions of a trace set",
        description="List the definitions with their op type and how many workloads, solutions and traces they have.",
        example=f"{PROGRAM} list --local flashinfer-trace --op-types gemm rmsnorm",
    )
    add_local(parser)
    add_names(parser, "--definitions", "only these definitions")
    add_names(parser, "--op-types", "only these op types")
    parser.add_argument("--evaluators", action="store_true", help="which evaluator judges each definition, and why")
    parser.add_argument("--config", metavar="FILE", help="with --evaluators: the run's file, for its evaluator_modules")
    add_names(parser, "--evaluator-modules", "with --evaluators: modules with evaluators of your own")
    add_format(parser)
    return parser


def _validate_parser(commands: Any) -> Parser:
    parser = command(
        commands,
        "validate",
        "validate",
        help="show everything wrong with a trace set",
        description="Show every error and warning of a trace set: file, line, field, reason.\n"
        "Errors: exit code 2; warnings alone: 0.",
        example=f"{PROGRAM} validate --local flashinfer-trace",
    )
    add_local(parser)
    add_format(parser)
    return parser


def _config_parsers(commands: Any) -> dict[str, Parser]:
    group = command_group(
        commands,
        "config",
        help="show settings",
        description="Show settings.",
        example=f"{PROGRAM} config show --definition gemm_n128_k4096 --local flashinfer-trace",
    )
    return {"config_show": _config_show_parser(group)}


def _report_parsers(commands: Any) -> dict[str, Parser]:
    group = command_group(
        commands,
        "report",
        help="make tables of traces",
        description="Make tables of traces.",
        example=f"{PROGRAM} report best --local flashinfer-trace",
    )
    return {"report_summary": _summary_parser(group), "report_best": _best_parser(group)}


def _config_show_parser(commands: Any) -> Parser:
    parser = command(
        commands,
        "show",
        "config_show",
        usage="%(prog)s [--definition NAME --local PATH] [flags]",
        help="show every setting and where it comes from",
        description="Show every setting with its origin; with --definition, those that this definition runs with.",
        example=f"{PROGRAM} config show --definition gemm_n128_k4096 --local flashinfer-trace --rtol 0.001",
    )
    parser.add_argument("--definition", metavar="NAME", help="resolve the settings of this definition")
    add_local(parser)
    _add_selection(parser)
    _add_settings(parser)
    add_format(parser)
    return parser


def _summary_parser(commands: Any) -> Parser:
    parser = command(
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
    parser = command(
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


def _doctor_parser(commands: Any) -> Parser:
    parser = command(
        commands,
        "doctor",
        "doctor",
        help="tell what this machine can measure",
        description="Tell what this machine can measure, by which method, and how far its times can be compared: "
        "exit code 0 where it can, 1 where something is broken.",
        example=f"{PROGRAM} doctor --device 0",
    )
    parser.add_argument("--device", metavar="NAME", help="0, cuda:1, a GPU's uuid, or cpu (default: the first GPU)")
    add_sandbox(parser, default="auto")
    parser.add_argument("--quick", action="store_true", help="do not time the same kernels twice through the engine")
    add_format(parser)
    return parser


def _add_report_flags(parser: Parser) -> None:
    add_local(parser)
    add_names(parser, "--definitions", "only these definitions")
    add_names(parser, "--op-types", "only these op types")
    add_names(parser, "--solutions", "only these solutions")
    add_names(parser, "--authors", "only solutions of these authors")
    add_format(parser)


def _add_selection(parser: Parser) -> None:
    group = parser.add_argument_group("what to run", "one or more names each, separated by spaces or commas")
    add_names(group, "--definitions", "only these definitions")
    add_names(group, "--op-types", "only these op types")
    add_names(group, "--solutions", "only these solutions")
    add_names(group, "--authors", "only solutions of these authors")
    add_names(group, "--workloads", "only these workloads: uuids, or unique beginnings of uuids")
    add_names(group, "--devices", "only these devices: 0, cuda:1, a GPU's uuid, or cpu")


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
    _add_setting(group, "--build-jobs", whole_number, BUILD_JOBS_HELP)
    add_names(group, "--evaluator-modules", "modules with evaluators of your own, asked before the built-in ones")
    add_sandbox(group, default=argparse.SUPPRESS)
    _add_timing(group)
    isolated = "a new process for every workload"
    group.add_argument("--use-isolated-runner", action="store_true", default=argparse.SUPPRESS, help=isolated)
    group.add_argument(
        "--no-profile-baseline",
        dest="profile_baseline",
        action="store_false",
        default=argparse.SUPPRESS,
        help="do not time the reference: no speed-up",
    )


def _add_timing(group: argparse._ActionsContainer) -> None:
    absent = argparse.SUPPRESS
    group.add_argument("--l2-cache", choices=("cold", "warm"), default=absent, help="L2 before each timed GPU call")
    group.add_argument("--clock", choices=("auto", "cuda_events"), default=absent, help="auto: CUPTI where it works")
    group.add_argument(
        "--no-cuda-graphs", dest="cuda_graphs", action="store_false", default=absent, help="time stream launches only"
    )
    group.add_argument("--keep-samples", action="store_true", default=absent, help="write every reading to the traces")


def _add_setting(
    group: argparse._ActionsContainer, flag: str, kind: Callable[[str], float], text: str, dest: str | None = None
) -> None:
    metavar = "N" if kind is whole_number else "F"
    destination = dest or flag.removeprefix("--").replace("-", "_")
    group.add_argument(flag, dest=destination, type=kind, metavar=metavar, default=argparse.SUPPRESS, help=text)
