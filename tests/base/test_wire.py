"""Frames between our processes: whole or refused, with descriptors or without, never waited for beyond a deadline."""

import gc
import os
import resource
import socket
import tempfile
import threading
import time
from pathlib import Path

import pytest

from flashinfer_bench.base.wire import FrameReader, WireClosed, WireError, encode_frame, send_frame, send_frame_by


@pytest.fixture
def pair():
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def test_frames_arrive_as_they_were_sent_also_in_pieces(pair):
    sent = [{"verb": "load", "n": [1, 2.5, None, "ü"]}, {"b": 2}]
    reader, found = FrameReader(pair[1]), []
    for byte in b"".join(map(encode_frame, sent)):
        pair[0].send(bytes([byte]))
        reader.pump()
        found.append(reader.pop())
    assert [frame for frame in found if frame] == sent
    pair[0].close()
    with pytest.raises(WireClosed):
        reader.read()


def test_a_frame_with_a_deadline_arrives_whole_or_is_given_up(pair):
    large, found, start = {"text": "x" * (2 << 20)}, [], time.monotonic()
    reader = FrameReader(pair[1])
    thread = threading.Thread(target=lambda: (time.sleep(0.2), found.append(reader.read())))
    thread.start()
    assert send_frame_by(start + 20, pair[0], large, [pair[0].fileno()])
    thread.join()
    assert found == [large]
    os.close(*reader.take_fds())
    assert send_frame_by(0.0, pair[0], {"short": True})
    assert not send_frame_by(time.monotonic() + 0.2, pair[0], large)
    assert time.monotonic() - start < 10.0
    pair[1].close()
    with pytest.raises(OSError):
        send_frame_by(time.monotonic() + 20, pair[0], {})


def count_descriptors():
    gc.collect()  # files that an earlier test has left would be closed at any moment
    return len(list(Path("/dev/fd").iterdir()))


@pytest.mark.parametrize("takes", [True, False])
def test_descriptors_travel_with_a_frame_to_who_takes_them(pair, takes):
    reader, before = FrameReader(pair[1], takes_fds=takes), count_descriptors()
    for number in range(20):
        send_frame(pair[0], {"id": number}, [pair[0].fileno()] * 8)
        assert reader.read() == {"id": number}
        received = reader.take_fds()
        assert [os.fstat(fd).st_ino for fd in received] == [os.fstat(pair[0].fileno()).st_ino] * (8 if takes else 0)
        for fd in received:
            os.close(fd)
    assert count_descriptors() == before


def test_descriptors_of_two_frames_that_arrive_together_are_told_apart(pair):
    before = count_descriptors()
    with tempfile.TemporaryFile() as first, tempfile.TemporaryFile() as second:
        for file in (first, second):
            send_frame(pair[0], {"text": "x" * 50_000}, [file.fileno()] * 2)
        reader = FrameReader(pair[1])
        for file in (first, second):
            reader.read()
            for fd in reader.take_fds(2):
                assert os.path.sameopenfile(fd, file.fileno())
                os.close(fd)
        send_frame(pair[0], {}, [first.fileno()])
        reader.read()
        reader.close()
    assert count_descriptors() == before - 1


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


@pytest.mark.parametrize("body", [b"\x80\x04K\x01.", b"[1]", b'"text"', b"{", b"[" * 60_000, None], ids=str)
def test_what_is_too_long_or_no_json_object_is_refused(pair, body):
    pair[0].send((1 << 31).to_bytes(4, "big") if body is None else len(body).to_bytes(4, "big") + body)
    reader = FrameReader(pair[1])
    reader.pump()
    with pytest.raises(WireError):
        reader.pop() or reader.read()
