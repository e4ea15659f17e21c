"""The flags of commands, which import no engine: what they say of the engine holds."""

from dataclasses import replace

from flashinfer_bench import client
from flashinfer_bench.cli.flags import engine_words
from flashinfer_bench.data.store.skeletons import SUFFIXES
from flashinfer_bench.examine.inspect import sanitizer, tools
from flashinfer_bench.examine.inspect.ncu import NcuOptions


def test_what_the_help_tells_of_the_engine_is_what_the_engine_has():
    assert tuple(language.value for language in SUFFIXES) == engine_words.LANGUAGES
    assert (tools.NCU, tools.SANITIZER) == (engine_words.NCU, engine_words.SANITIZER)
    assert sanitizer.TYPES == engine_words.SANITIZER_TYPES
    assert replace(NcuOptions(), set=engine_words.NCU_SET, timeout_s=engine_words.NCU_TIMEOUT_S) == NcuOptions()
    assert client.DEFAULT_URL == engine_words.DEFAULT_URL
