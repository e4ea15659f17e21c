"""Where sessions run. A place is something that can run a device session: a device of this machine, or one of another.

The host's loop deals blocks to places and hears frames; it does not know where a place is. This file says what the
loop needs of a table of places, of a session, and of who builds. The table of this machine is here; that of a cluster
is in `cluster/`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, Protocol

from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.runner.client import SessionClient
from flashinfer_bench.bench.runner.device_lock import ask_for_device
from flashinfer_bench.bench.runner.protocol import BlockOrder, Hello
from flashinfer_bench.compile import Built
from flashinfer_bench.data import Solution


class HasFileno(Protocol):
    """What a selector waits on."""

    def fileno(self) -> int:
        """Return the descriptor."""


class Session(Protocol):
    """One device session, wherever it runs. Every method returns at once, but for `end`."""

    @property
    def is_ready(self) -> bool:
        """Whether it has started."""

    @property
    def phase(self) -> str:
        """The phase that it told of last."""

    @property
    def left_s(self) -> float:
        """Seconds until it is taken for lost."""

    @property
    def has_unsent(self) -> bool:
        """Whether `flush` is to be called once the descriptor takes more."""

    def fileno(self) -> int:
        """Return the descriptor to wait on."""

    def send(self, block: BlockOrder) -> None:
        """Send the next block."""

    def drop(self) -> None:
        """Take back the block that was sent and not begun."""

    def begin(self) -> None:
        """Have the block run that was sent."""

    def wait_forever(self) -> None:
        """Set no deadline: the session has no work."""

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield what has come; raises SessionLost where nothing more will."""

    def check_deadline(self) -> None:
        """Raise SessionLost once the deadline is over."""

    def flush(self) -> None:
        """Send what can be sent now."""

    def end(self) -> None:
        """End it and every process below it."""


class Builds(Protocol):
    """Who builds solutions: the farm of this machine, or each place its own."""

    @property
    def jobs(self) -> int:
        """How many compilers run at once."""

    @property
    def open_builds(self) -> int:
        """How many solutions are still to be built."""

    @property
    def is_held(self) -> bool:
        """Whether compilers are held still."""

    def hold(self) -> None:
        """Hold compilers still."""

    def release(self) -> None:
        """Let them go on."""

    def add(self, solutions: Iterable[Solution]) -> None:
        """Take solutions."""

    def forget(self, solution: Solution) -> None:
        """Forget what came of a solution."""

    def poll(self) -> object:
        """Go on with what is being built."""

    def wakers(self) -> Sequence[HasFileno]:
        """Return what to wait on; `poll` is called when one can be read."""

    def is_ready(self, solution: Solution) -> bool:
        """Tell whether `built` answers at once."""

    def built(self, solution: Solution) -> Built:
        """Return what came of a solution that is ready."""

    def __exit__(self, *exc_info: object) -> None:
        """End every compiler."""


@dataclass(frozen=True)
class News:
    """What has changed since somebody looked."""

    joined: tuple[Device, ...] = ()
    """Devices of places that can be used from now on."""
    notices: tuple[str, ...] = ()
    """What a person should know."""


NO_NEWS = News()


class Places(Protocol):
    """A table of places; a place is named by its device."""

    @property
    def devices(self) -> Sequence[Device]:
        """The devices of all places that can be used now."""

    @property
    def least_shares(self) -> int:
        """Deal blocks as for this many places at least, so that something is left for one that comes."""

    def look(self) -> News:
        """Say which places have come since the last look. It is called often, and waits for nothing."""

    def has(self, device: Device) -> bool:
        """Tell whether a place is still there: where it is not, no session can be started on it."""

    @property
    def expects_more(self) -> bool:
        """Whether a place may come soon: a loop that has lost all others waits for it."""

    def lock(self, device: Device, held: ExitStack) -> Iterator[str | None]:
        """Keep other runs off a device until `held` is closed; see `device_lock.ask_for_device`."""

    def open(self, device: Device, hello: Hello) -> Session:
        """Start a session on a place."""


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

    def open(self, device: Device, hello: Hello) -> Session:
        """Start a session on a device."""
        return SessionClient(device, hello)
