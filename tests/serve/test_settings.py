"""The token's file, the address, the folders of a server."""

import os

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("fastapi")

from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import ConfigError, Fault
from flashinfer_bench.serve.server import Address, _listen, choose_home
from flashinfer_bench.serve.token_file import read_token
from tests.serve.small_engine import write_set

TOKEN = "a-token-that-nobody-guesses"


def write_token(path, text=TOKEN, mode=0o600):
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_token_is_read_without_the_space_around_it(tmp_path):
    assert read_token(write_token(tmp_path / "token", f"{TOKEN}\n")) == TOKEN


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
def test_a_token_that_others_may_read_is_refused(tmp_path, mode):
    with pytest.raises(ConfigError, match="chmod 600"):
        read_token(write_token(tmp_path / "token", mode=mode))


@pytest.mark.parametrize("text", ["", "short", "with a space inside it", "ünprintable-and-long-enough"])
def test_a_token_that_can_be_guessed_or_not_sent_is_refused(tmp_path, text):
    with pytest.raises(ConfigError, match="16 or more plain characters"):
        read_token(write_token(tmp_path / "token", text))


def test_a_token_that_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name in ("pipe", "missing"):
        with pytest.raises(ConfigError, match="cannot be read"):
            read_token(tmp_path / name)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_this_machine_alone_needs_no_token(host):
    Address(host).check()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com", ""])
def test_an_address_that_others_reach_needs_a_token(host):
    with pytest.raises(ConfigError, match="--token-file"):
        Address(host).check()
    Address(host, token=TOKEN).check()


def test_a_port_that_is_taken_is_a_fault():
    with _listen(Address(port=0)) as first:
        first.listen()
        with pytest.raises(Fault, match=r"cannot listen on 127\.0\.0\.1"):
            _listen(Address(port=first.getsockname()[1]))


def test_tasks_lie_beside_the_set_or_in_the_cache(tmp_path, monkeypatch):
    trace_set = TraceSet.from_path(write_set(tmp_path / "set"))
    home = choose_home(trace_set, tmp_path / "cache")
    assert (home.ledger, home.records, home.notes) == (tmp_path / "set" / ".serve", tmp_path / "set", [])
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    home = choose_home(trace_set, tmp_path / "cache")
    assert home.ledger == home.records
    assert home.ledger.parent == tmp_path / "cache" / "serve"
    assert "cannot be written" in home.notes[0]


def test_names_that_were_allowed_are_let_in():
    admission = Address(allowed_hosts=("Bench.Example",)).admission()
    admission.check_host(["bench.example:8000"])
