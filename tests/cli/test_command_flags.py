"""The flags of commands, which import no engine: what they say of the engine holds."""

import importlib
from typing import get_args

import pytest

from flashinfer_bench import client
from flashinfer_bench.cli.entry import parse_command_line
from flashinfer_bench.cli.flags import engine_words
from flashinfer_bench.cli.sets.validate.validation import Check
from flashinfer_bench.data.store.drafts.skeletons import SUFFIXES
from flashinfer_bench.report import decision, export, ranking
from tests.cli.helps import ALL_COMMANDS, example_of


def test_what_the_help_tells_of_the_engine_is_what_the_engine_has():
    assert tuple(language.value for language in SUFFIXES) == engine_words.LANGUAGES
    assert get_args(Check) == engine_words.CHECKS
    assert decision.THRESHOLD == engine_words.THRESHOLD
    assert export.EXPORT_FORMATS == engine_words.EXPORT_FORMATS
    assert ranking.GROUP_KEYS == engine_words.GROUP_KEYS
    assert client.DEFAULT_URL == engine_words.DEFAULT_URL


@pytest.mark.parametrize("command", ALL_COMMANDS)
def test_every_command_names_a_function_that_is_there(command, capsys):
    module, _, name = parse_command_line(example_of(command, capsys)).execute.place.partition(":")
    assert callable(getattr(importlib.import_module(f"flashinfer_bench.cli.{module}"), name))
