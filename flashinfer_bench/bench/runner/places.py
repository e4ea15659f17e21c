"""Where sessions run. A place can run a device session: a device of this machine, or one of a cluster's node.

The loop over the devices deals batches to places and hears frames; it does not know where a place is. There are two
tables of places, `LocalPlaces` and `cluster.Cluster`. A place is named by its device. Each table has

    devices         those of all places that can be used now
    least_shares    work is dealt as for this many places at least, so that something is left for one that comes
    expects_more    whether a place may come soon: a loop that has lost all others waits for it
    look()          which places have come since the last look; it is called often, and waits for nothing
    has(device)     whether a place is still there
    lock(device, held)     keeps other runs off a device until `held` is closed; see `device_lock.ask_for_device`
    open(device, hello)    starts a session

Their sessions are `SessionClient` and `FarSession`; every method returns at once, except `end`. Solutions are built by
the `BuildFarm` of this machine, or by each place (`TravellingSources`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.runner.client import SessionClient
from flashinfer_bench.bench.runner.device_lock import ask_for_device
from flashinfer_bench.bench.runner.protocol import Hello
from flashinfer_bench.compile import BuildFarm

if TYPE_CHECKING:
    from flashinfer_bench.cluster.cluster import Cluster
    from flashinfer_bench.cluster.far_session import FarSession
    from flashinfer_bench.cluster.parcels import TravellingSources

    Places: TypeAlias = "Cluster | LocalPlaces"
    Session = SessionClient | FarSession
    Builds = BuildFarm | TravellingSources


@dataclass(frozen=True)
class News:
    """What has changed since somebody looked."""

    joined: tuple[Device, ...] = ()
    """Devices of places that can be used from now on."""
    notices: tuple[str, ...] = ()
    """What a person should know."""


NO_NEWS: Final = News()


class LocalPlaces:
    """The devices of this machine.

    Args:
        devices: one place each.
    """

    least_shares: Final = 1
    expects_more: Final = False

    def __init__(self, devices: Iterable[Device]) -> None:
        self.devices = tuple(devices)

    def look(self) -> News:
        """Return that nothing has changed: the devices of a machine stay."""
        return NO_NEWS

    def has(self, device: Device) -> bool:
        """Return whether it has a device; a session that does not start is what tells otherwise."""
        return device in self.devices

    def lock(self, device: Device, held: ExitStack) -> Iterator[str | None]:
        """Take a GPU's lock."""
        return ask_for_device(device, held)

    def open(self, device: Device, hello: Hello) -> SessionClient:
        """Start a session on a device."""
        return SessionClient(device, hello)
