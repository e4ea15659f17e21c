"""The flags and the help of `config show`."""

from __future__ import annotations

from flashinfer_bench.cli.parser import Parser
from flashinfer_bench.cli.parser import PROGRAM, add_format, add_local
from flashinfer_bench.cli.settings import add_selection, add_settings


def declare_config(parser: Parser) -> None:
    """Add the help and the sub-command."""
    parser.describe(
        "Show settings.", example=f"{PROGRAM} config show --definition gemm_n128_k4096 --local flashinfer-trace"
    )
    show = parser.add_commands().add_parser("show", help="show every setting and where it comes from")
    show.describe(
        "Show every setting with its origin; with --definition, those that this definition runs with.",
        usage="%(prog)s [--definition NAME --local PATH] [flags]",
        example=f"{PROGRAM} config show --definition gemm_n128_k4096 --local flashinfer-trace --rtol 0.001",
        execute="config_show:execute",
    )
    show.add_argument("--definition", metavar="NAME", help="resolve the settings of this definition")
    add_local(show)
    add_selection(show)
    add_settings(show)
    add_format(show)
