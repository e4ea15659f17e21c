"""A table of places without Ray: each has its sessions in this process, reached as an actor is, but for the network."""

import threading
from collections import deque
from pathlib import Path

from flashinfer_bench.bench.runner.client import News
from flashinfer_bench.cluster.far_session import FarSession, PlaceLost
from flashinfer_bench.cluster.node.sessions import NodeSessions
from flashinfer_bench.cluster.parcels import Packer, TravellingSources


class PlacePost:
    """The way to the sessions of a place in this process; `lose` cuts it.

    Args:
        sessions: the place's.
    """

    def __init__(self, sessions):
        self.sessions = sessions
        self.number = 0
        self.is_lost = False
        self.sent = []

    def lose(self):
        self.is_lost = True
        threading.Thread(target=self.sessions.close).start()

    def start(self, hello):
        self._check()
        self.number = self.sessions.start(hello)

    def give(self, order, blobs):
        self._check()
        self.sent.append(order)
        self.sessions.give(self.number, order)

    def take(self):
        self._check()
        said = self.sessions.take(self.number, 0.05)
        self._check()
        return said

    def end(self):
        if not self.is_lost:
            self.sessions.end(self.number)

    def _check(self):
        if self.is_lost:
            raise PlaceLost("its node is lost")


class PlayedPlaces:
    """Places that tests add and lose.

    Args:
        devices: the first ones.
        start: starts a session on a device; None for real ones.
    """

    expects_more, least_shares = False, 2

    def __init__(self, devices, start=None):
        self.sources = TravellingSources()
        self._offered = {}
        self._packer = Packer(self.sources, self._offer, has_shared_blobs=False)
        self._start = {} if start is None else {"start": start}
        self._joined = deque()
        self.posts = {}
        for device in devices:
            self.add(device)
        self._joined.clear()

    @property
    def devices(self):
        return tuple(device for device, post in self.posts.items() if not post.is_lost)

    def add(self, device):
        self.posts[device] = PlacePost(NodeSessions(device, self._offered.__getitem__, **self._start))
        self._joined.append(device)

    def look(self):
        joined = tuple(self._joined)
        self._joined.clear()
        return News(joined)

    def has(self, device):
        return device in self.devices

    def lock(self, device, held):
        yield from ()

    def open(self, device, hello):
        return FarSession(device, hello, self.posts[device], self._packer.pack)

    def close(self):
        for post in self.posts.values():
            post.sessions.close()

    def _offer(self, digest, file):
        self._offered[digest] = Path(file).read_bytes()
        return digest
