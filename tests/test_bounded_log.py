from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.base.bounded_log import BoundedLog


def test_a_short_text_is_kept_whole():
    log = BoundedLog()
    log.add(b"hello ")
    log.add(b"world")
    assert log.take() == "hello world"


def test_a_long_text_keeps_its_ends_and_says_how_much_is_gone():
    log = BoundedLog(head_bytes=4, tail_bytes=4)
    log.add(b"abcdefghijkl")
    assert log.take() == "abcd\n[... 4 bytes cut ...]\nijkl"


def test_taking_starts_anew():
    log = BoundedLog()
    log.add(b"first")
    log.take()
    log.add(b"second")
    assert log.take() == "second"


@given(st.lists(st.binary(max_size=50), max_size=30))
def test_memory_is_bounded_and_the_ends_are_right(chunks):
    log = BoundedLog(head_bytes=8, tail_bytes=16)
    for chunk in chunks:
        log.add(chunk)
        assert len(log._head) <= 8
        assert len(log._tail) <= 16
    everything = b"".join(chunks)
    assert log._head + (log._tail if len(everything) <= 24 else b"") == (
        everything if len(everything) <= 24 else log._head
    )


def test_bytes_that_are_no_text_do_no_harm():
    log = BoundedLog()
    log.add(b"\xff\xfe ok")
    assert "ok" in log.take()
