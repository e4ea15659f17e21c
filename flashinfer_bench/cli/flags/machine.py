"""The flags and the help of the commands about this machine."""

from __future__ import annotations

from flashinfer_bench.cli.parser import Parser, number, whole_number
from flashinfer_bench.cli.shared_flags import (
    EXIT_CODES,
    PROGRAM,
    add_format,
    add_local,
    add_names,
    add_setting,
)


def declare_build(parser: Parser) -> None:
    """Add the help and the flags of the command."""
    parser.describe(
        "Compile the solutions of a trace set, or single solution files, without running any. No GPU is\n"
        "needed: CUDA solutions are compiled for the GPUs here, else for sm_90a. What is built is kept for `run`.\n"
        "A solution for which something is missing here (a compiler, a package) is skipped with the reason.\n"
        f"{EXIT_CODES}",
        usage="%(prog)s [FILE ...] [--local PATH] [flags]",
        example=f"{PROGRAM} build --local flashinfer-trace --authors cuda --arch sm_80 sm_90a",
        execute="machine.build:execute",
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="solution files (default: the solutions of the set)")
    add_local(parser)
    group = parser.add_argument_group("what to build", "one or more names each, separated by spaces or commas")
    add_names(group, "--definitions", "only solutions of these definitions")
    add_names(group, "--op-types", "only solutions of these op types")
    add_names(group, "--solutions", "only these solutions")
    add_names(group, "--authors", "only solutions of these authors")
    group = parser.add_argument_group("how")
    add_names(group, "--arch", "GPU architectures to compile CUDA solutions for, such as sm_90a (default: those here)")
    jobs_help = "compilers at once (default: as many as there are cores)"
    add_setting(group, "--build-jobs", whole_number, jobs_help)
    group.add_argument("--require-built", action="store_true", help="exit with 1 when anything was skipped, too")
    add_format(group)
    group.add_argument("--quiet", action="store_true", help="no progress; only errors and the result")
    parser.set_defaults(config=None)


def declare_cache(parser: Parser) -> None:
    """Add the help and the sub-commands."""
    text = "List, remove or check what is built, and the times of references."
    parser.describe(text, example=f"{PROGRAM} cache show")
    commands = parser.add_commands()
    show = commands.add_parser("show", help="list what is built")
    show.describe(
        "List the built solutions, precompiled headers, and solutions that did not compile: where they lie and how\n"
        f"much room they take, and how much the kernels that judge. {EXIT_CODES}",
        example=f"{PROGRAM} cache show",
        execute="machine.cache:execute_show",
    )
    clear = commands.add_parser("clear", help="remove what is built")
    clear.describe(
        "Remove the built solutions, what solutions have compiled when they ran, and the kernels that judge. What a\n"
        f"run is using stays. {EXIT_CODES}",
        example=f"{PROGRAM} cache clear --keep-gb 5",
        execute="machine.cache:execute_clear",
    )
    which = clear.add_mutually_exclusive_group()
    which.add_argument(
        "--failed", action="store_true", help="forget only what did not compile, so that it is tried again"
    )
    which.add_argument(
        "--keep-gb", type=number, metavar="F", help="remove what was not used for longest, until this much is left"
    )
    verify = commands.add_parser("verify", help="check what is built")
    verify.describe(
        "Hold every built file against the digest that was noted when it was built. What is damaged is\n"
        f"built again when it is next needed. {EXIT_CODES}",
        example=f"{PROGRAM} cache verify --remove",
        execute="machine.cache:execute_verify",
    )
    verify.add_argument("--remove", action="store_true", help="remove what is damaged")
    baselines = commands.add_parser("baselines", help="list the times of references that runs have kept")
    baselines.describe(
        "List what references took on the GPUs of this machine. A later run on the same GPU, with the same versions\n"
        f"and settings, takes these times over, unless --fresh-baselines is given. {EXIT_CODES}",
        example=f"{PROGRAM} cache baselines",
        execute="machine.cache:execute_baselines",
    )
    baselines.add_argument("--clear", action="store_true", help="remove them")
    for command in (show, clear, verify, baselines):
        add_format(command)
