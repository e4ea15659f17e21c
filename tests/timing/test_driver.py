"""What is said to the CUDA driver before a context is made; that it is heard is seen on a GPU."""

import ctypes
import os

import pytest

from flashinfer_bench.timing.driver import CONNECTIONS, set_connections

pytestmark = pytest.mark.cpu


def read_as_the_driver():
    """Return the variable as a library of C reads it."""
    library = ctypes.CDLL(None)
    library.getenv.restype = ctypes.c_char_p
    return library.getenv(CONNECTIONS.encode())


def test_the_driver_is_told_and_other_processes_are_not(monkeypatch):
    monkeypatch.delenv(CONNECTIONS, raising=False)
    set_connections(1)
    assert read_as_the_driver() == b"1"
    assert CONNECTIONS not in os.environ
    set_connections(None)
    assert read_as_the_driver() is None


def test_what_the_user_says_holds(monkeypatch):
    monkeypatch.setenv(CONNECTIONS, "4")
    for count in (1, None):
        set_connections(count)
        assert read_as_the_driver() == b"4"
