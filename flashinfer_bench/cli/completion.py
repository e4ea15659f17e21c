"""`completion`: prints a script with which a shell completes commands, flags and values. argcomplete does the work."""

from __future__ import annotations

from argparse import Namespace
from importlib.util import find_spec
from typing import Final

from flashinfer_bench.cli.output import write_out
from flashinfer_bench.cli.parser import PROGRAM, Parser
from flashinfer_bench.errors import Misuse

SHELLS: Final = ("bash", "zsh", "fish")


def declare_completion(parser: Parser) -> None:
    """Add the help and the arguments of the command."""
    parser.describe(
        'Print a script that completes commands, flags, and names of a set. bash and zsh: eval "$(… completion bash)"\n'
        "in the shell's own file; fish: … completion fish > ~/.config/fish/completions/flashinfer-bench.fish.",
        example=f"{PROGRAM} completion bash",
        execute=execute,
    )
    parser.add_argument("shell", choices=SHELLS, help="which shell")


def execute(args: Namespace) -> int:
    """Print the script."""
    if find_spec("argcomplete") is None:
        raise Misuse("completion needs argcomplete: pip install argcomplete")
    from argcomplete.shell_integration import shellcode

    write_out(shellcode([PROGRAM], shell=args.shell) + "\n")
    return 0
