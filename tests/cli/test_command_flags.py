"""The flags of commands, which import no engine: what they say of the engine holds."""

from flashinfer_bench import client
from flashinfer_bench.cli.flags import engine_words


def test_what_the_help_tells_of_the_engine_is_what_the_engine_has():
    assert client.DEFAULT_URL == engine_words.DEFAULT_URL
