import os
import resource
import socket
import threading
import time
from pathlib import Path

import pytest

from flashinfer_bench.base.wire import (
    HEADER,
    FrameReader,
    WireClosed,
    WireError,
    encode_frame,
    send_frame,
    send_frame_by,
)


@pytest.fixture
def pair():
    left, right = socket.socketpair()
    yield left, right
    left.close()
    right.close()


def test_a_frame_arrives_as_it_was_sent(pair):
    send_frame(pair[0], {"verb": "load", "n": [1, 2.5, None, "ü"]})
    assert FrameReader(pair[1]).read() == {"verb": "load", "n": [1, 2.5, None, "ü"]}


def test_frames_that_arrive_in_pieces_are_put_together(pair):
    data = encode_frame({"a": 1}) + encode_frame({"b": 2})
    reader = FrameReader(pair[1])
    found = []
    for byte in data:
        pair[0].send(bytes([byte]))
        reader.pump()
        found.append(reader.pop())
    assert [frame for frame in found if frame] == [{"a": 1}, {"b": 2}]


def test_a_frame_with_a_deadline_arrives_whole_where_the_other_side_reads_slowly(pair):
    read_end, write_end = os.pipe()
    reader, found = FrameReader(pair[1]), []
    thread = threading.Thread(target=lambda: (time.sleep(0.2), found.append(reader.read())))
    thread.start()
    assert send_frame_by(time.monotonic() + 20, pair[0], {"text": "x" * (2 << 20)}, [write_end])
    thread.join()
    assert len(found[0]["text"]) == 2 << 20
    for fd in (read_end, write_end, *reader.take_fds()):
        os.close(fd)


def test_a_frame_that_nobody_reads_is_given_up_at_its_deadline(pair):
    assert send_frame_by(0.0, pair[0], {"short": True})
    start = time.monotonic()
    assert not send_frame_by(start + 0.2, pair[0], {"text": "x" * (2 << 20)})
    assert time.monotonic() - start < 5.0
    pair[1].close()
    with pytest.raises(OSError):
        send_frame_by(start + 20, pair[0], {})


def test_descriptors_travel_with_a_frame(pair):
    read_end, write_end = os.pipe()
    send_frame(pair[0], {"verb": "bind"}, [write_end])
    reader = FrameReader(pair[1])
    reader.read()
    (received,) = reader.take_fds()
    os.write(received, b"x")
    assert os.read(read_end, 1) == b"x"
    for fd in (read_end, write_end, received):
        os.close(fd)


def test_descriptors_that_find_no_room_are_told_as_too_many_open_files(pair):
    send_frame(pair[0], {"verb": "bind"}, [pair[0].fileno()])
    reader = FrameReader(pair[1])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        assert reader.read() == {"verb": "bind"}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with pytest.raises(OSError, match="Too many open files"):
        reader.take_fds()


def count_descriptors():
    return len(list(Path("/dev/fd").iterdir()))


def test_a_reader_that_takes_no_descriptors_is_left_with_none(pair):
    reader = FrameReader(pair[1], takes_fds=False)
    before = count_descriptors()
    for number in range(20):
        send_frame(pair[0], {"id": number}, [pair[0].fileno()] * 8)
        assert reader.read() == {"id": number}
    assert (count_descriptors(), reader.take_fds()) == (before, [])


def test_a_frame_over_the_limit_is_refused_before_it_is_read(pair):
    pair[0].send(HEADER.pack(1 << 31))
    reader = FrameReader(pair[1], max_bytes=1024)
    reader.pump()
    with pytest.raises(WireError, match="over the limit"):
        reader.pop()


@pytest.mark.parametrize("body", [b"\x80\x04K\x01.", b"[1]", b'"text"', b"{", b"[" * 100_000], ids=repr)
def test_what_is_not_a_json_object_is_refused(pair, body):
    pair[0].send(HEADER.pack(len(body)) + body[:60_000])
    reader = FrameReader(pair[1])
    reader.pump()
    pair[0].send(body[60_000:]) and reader.pump()
    with pytest.raises(WireError):
        reader.pop()


def test_the_end_of_the_stream_is_told(pair):
    pair[0].close()
    with pytest.raises(WireClosed):
        FrameReader(pair[1]).read()
