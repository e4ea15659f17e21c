"""Flags that several commands share. Each command's own file declares the rest.

A flag that overrides the configuration stores its value under the name of the configuration field. It has no default:
the configuration file decides what no flag gives.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Final

from flashinfer_bench.cli.parser import NameList, Parser, iterations, number, whole_number

PROGRAM: Final = "flashinfer-bench"
LOCAL_HELP: Final = "a trace set's folder, also without the flag; may be repeated (default: $FIB_DATASET_PATH)"
PLURALS: Final = ("--definitions", "--op-types", "--solutions", "--authors", "--workloads", "--devices")
"""Flags that are taken without their `s`, too, everywhere."""
RULE_FLAGS: Final = {
    "norm-rule": "let errors be as large as the outputs themselves where atol allows it",
    "lost-rows-rule": "let whole rows be wrong where the matched ratio allows it",
    "regimes-rule": "judge on inputs of the usual scales only",
    "power-rule": "call samplers as often as their setting says, however few rows they have",
}
"""Flag without its `--no-` → what it does; each switches a rule beside the tolerance off."""
EXIT_CODES: Final = "Exit codes: 0 all well, 1 something failed, 2 misuse."
ITERATIONS_HELP: Final = "timed calls per trial, or auto: as many as --precision needs, from 20 to 50"
PRECISION_HELP: Final = "share of its time to which a call is to be known; scatter gets more readings"
QUICK_HELP: Final = "a first look: one trial, few readings; never the best, and --resume judges again"
BUILD_JOBS_HELP: Final = "compilers at once (default: one less than there are cores; on a CPU as many)"


def add_local(parser: Parser, text: str = LOCAL_HELP, flags: Sequence[str] = ("--local",)) -> None:
    """Add the flag that names trace sets. Their folders may also stand without it, as arguments."""
    parser.add_argument(*flags, action="append", metavar="PATH", help=text)
    parser.set_defaults(takes_sets=True)


def add_format(parser: argparse._ActionsContainer) -> None:
    """Add the flag that chooses between a table and JSON."""
    parser.add_argument(
        "--format", choices=("table", "json"), default="table", help="what goes to stdout (default: %(default)s)"
    )


def add_sandbox(parser: argparse._ActionsContainer, *, default: str) -> None:
    """Add the flag that says how far solutions are confined."""
    text = "how far solutions are confined: all of it or no run, what this machine gives, not (default: auto)"
    parser.add_argument("--sandbox", choices=("strict", "auto", "off"), default=default, help=text)


def add_names(parser: argparse._ActionsContainer, flag: str, text: str) -> None:
    """Add a flag that takes names, also in the singular. The parsed arguments lack it where it was not given."""
    singular = flag.removesuffix("s")
    is_free = flag in PLURALS and singular not in parser._option_string_actions
    flags = [flag, singular] if is_free else [flag]
    parser.add_argument(*flags, nargs="+", action=NameList, metavar="NAME", default=argparse.SUPPRESS, help=text)


def add_filters(parser: argparse._ActionsContainer) -> None:
    """Add the flags that choose definitions and solutions by name."""
    add_names(parser, "--definitions", "only these definitions")
    add_names(parser, "--op-types", "only these op types")
    add_names(parser, "--solutions", "only these solutions")
    add_names(parser, "--authors", "only solutions of these authors")


def add_selection(parser: Parser) -> None:
    """Add the flags that choose what a run judges, and on which devices."""
    group = parser.add_argument_group("what to run", "one or more names each, separated by spaces or commas")
    add_filters(group)
    add_names(group, "--workloads", "only these workloads: uuids, or unique beginnings of uuids")
    add_names(group, "--devices", "only these devices: 0, cuda:1, a GPU's uuid, or cpu")


def add_settings(parser: Parser) -> None:
    """Add the configuration file and the flags that override it."""
    group = parser.add_argument_group("settings", "they beat the configuration file, its sections included")
    group.add_argument("--config", metavar="FILE", help="a YAML file instead of the bundled eval_config.yaml")
    add_setting(group, "--warmup-runs", whole_number, "calls before timing")
    add_setting(group, "--iterations", iterations, ITERATIONS_HELP)
    add_setting(group, "--num-trials", whole_number, "trials, each with inputs of its own")
    add_setting(group, "--precision", number, PRECISION_HELP)
    add_setting(group, "--rtol", number, "relative tolerance")
    add_setting(group, "--atol", number, "absolute tolerance")
    add_setting(group, "--required-matched-ratio", number, "share of elements that must match")
    add_setting(group, "--timeout", number, "seconds for one solution on one workload", dest="timeout_seconds")
    add_setting(group, "--seed", whole_number, "seed of the inputs")
    add_setting(group, "--worker-memory-gb", number, "host memory that a worker may use")
    add_setting(group, "--build-jobs", whole_number, BUILD_JOBS_HELP)
    add_names(group, "--evaluator-modules", "modules with evaluators of your own, asked before the built-in ones")
    add_sandbox(group, default=argparse.SUPPRESS)
    _add_timing(group)
    _add_cluster(group)
    for name, text in RULE_FLAGS.items():
        group.add_argument(
            f"--no-{name}", dest=f"{name.replace('-', '_')}", action="store_false", default=argparse.SUPPRESS, help=text
        )
    trusted = "make custom inputs also by code that is not the first set's own"
    group.add_argument("--trust-definitions", action="store_true", default=argparse.SUPPRESS, help=trusted)
    isolated = "a new process for every workload"
    group.add_argument("--use-isolated-runner", action="store_true", default=argparse.SUPPRESS, help=isolated)
    interpret = "without a GPU, run Triton solutions for GPUs in Triton's interpreter, too"
    group.add_argument("--interpret", action="store_true", default=argparse.SUPPRESS, help=interpret)
    fresh = "time every reference, also where an earlier run on this GPU kept its time"
    group.add_argument("--fresh-baselines", action="store_true", default=argparse.SUPPRESS, help=fresh)
    group.add_argument(
        "--no-profile-baseline",
        dest="profile_baseline",
        action="store_false",
        default=argparse.SUPPRESS,
        help="do not time the reference: no speed-up",
    )


def add_setting(
    group: argparse._ActionsContainer, flag: str, kind: Callable[[str], object], text: str, dest: str | None = None
) -> None:
    """Add a flag that overrides a number of the configuration. The parsed arguments lack it where it was not given."""
    destination = dest or flag.removeprefix("--").replace("-", "_")
    metavar = "F" if kind is number else "N"
    group.add_argument(flag, dest=destination, type=kind, metavar=metavar, default=argparse.SUPPRESS, help=text)


def _add_cluster(group: argparse._ActionsContainer) -> None:
    absent = argparse.SUPPRESS
    group.add_argument("--cluster", choices=("ray",), default=absent, help="run on a cluster's GPUs (docs/cluster.md)")
    address = "the cluster's head, as 10.0.0.1:6379 (default: the cluster of this machine)"
    group.add_argument("--address", dest="cluster_address", metavar="HOST:PORT", default=absent, help=address)
    shared = "all nodes see the trace sets under the same paths"
    group.add_argument("--shared-blobs", action="store_true", default=absent, help=shared)


def _add_timing(group: argparse._ActionsContainer) -> None:
    absent = argparse.SUPPRESS
    group.add_argument("--quick", action="store_true", default=absent, help=QUICK_HELP)
    group.add_argument("--l2-cache", choices=("cold", "warm"), default=absent, help="L2 before each timed GPU call")
    group.add_argument("--clock", choices=("auto", "cuda_events"), default=absent, help="auto: CUPTI where it works")
    group.add_argument(
        "--no-cuda-graphs", dest="cuda_graphs", action="store_false", default=absent, help="time stream launches only"
    )
    levels = "how far a GPU's latency is bound from outside (default: standard)"
    group.add_argument("--assurance", choices=("standard", "full"), default=absent, help=levels)
    confirmed = "do not judge the best of each workload again at full assurance"
    group.add_argument("--no-confirm", dest="confirm", action="store_false", default=absent, help=confirmed)
    group.add_argument("--keep-samples", action="store_true", default=absent, help="write every reading to the traces")
