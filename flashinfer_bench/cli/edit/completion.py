"""`completion`: prints a script that completes commands and flags in a shell. The parsers themselves tell the words."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Final

from flashinfer_bench.cli.entry import COMMANDS, PERF, make_parser
from flashinfer_bench.cli.parser import Parser
from flashinfer_bench.cli.output import write_out
from flashinfer_bench.cli.parser import PROGRAM

BASH: Final = """\
_flashinfer_bench() {{
  local words
  case "${{COMP_WORDS[1]}} ${{COMP_WORDS[2]}}" in
{cases}
    *) words="{commands}" ;;
  esac
  case "$COMP_CWORD:${{COMP_WORDS[COMP_CWORD]}}" in
    1:*) words="{commands}" ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _flashinfer_bench {program}
"""


def execute(args: argparse.Namespace) -> int:
    """Print the script."""
    words = list_words()
    write_out(_fish(words) if args.shell == "fish" else _bash(words, is_zsh=args.shell == "zsh"))
    return 0


def list_words() -> dict[str, list[str]]:
    """Return what may follow each command: its sub-commands, or its flags."""
    words: dict[str, list[str]] = {}
    for word, command in COMMANDS.items():
        if word == PERF:
            words[word] = []
            continue
        parser = _child(make_parser([word]), word)
        words[word] = [*command.children, *parser.flags()]
        for child in command.children:
            words[f"{word} {child}"] = _child(parser, child).flags()
    return words


def _child(parser: Parser, word: str) -> Parser:
    actions = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    found = next(actions).choices[word]
    assert isinstance(found, Parser)
    return found


def _bash(words: Mapping[str, list[str]], *, is_zsh: bool) -> str:
    deeper = [name for name in words if " " in name]
    cases = [f'    "{name}") words="{" ".join(words[name])}" ;;' for name in deeper]
    cases += [f'    "{name} "*) words="{" ".join(words[name])}" ;;' for name in words if name not in deeper]
    script = BASH.format(cases="\n".join(cases), commands=" ".join(COMMANDS), program=PROGRAM)
    return f"autoload -U +X bashcompinit && bashcompinit\n{script}" if is_zsh else script


def _fish(words: Mapping[str, list[str]]) -> str:
    return "".join(f"{line}\n" for line in _fish_lines(words))


def _fish_lines(words: Mapping[str, list[str]]) -> Iterator[str]:
    for word, command in COMMANDS.items():
        yield f"complete -c {PROGRAM} -n __fish_use_subcommand -a {word} -d '{command.help.replace(chr(39), '')}'"
    for name, following in words.items():
        first, _, second = name.partition(" ")
        seen = f"__fish_seen_subcommand_from {first}" + (
            f"; and __fish_seen_subcommand_from {second}" if second else ""
        )
        for word in following:
            told = f"-l {word[2:]}" if word.startswith("--") else f"-a {word}"
            yield f"complete -c {PROGRAM} -n '{seen}' {told}"
