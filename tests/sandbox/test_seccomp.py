"""The filter's program, run by an interpreter of its own: what it decides about each call on both machines."""

import errno
import struct

import pytest

from flashinfer_bench.sandbox.seccomp import MACHINES, can_ask, make_program, read_calls

pytestmark = pytest.mark.cpu
ALLOW, ASK, FAIL = 0x7FFF0000, 0x7FC00000, 0x00050000
OWN, OTHER = 77, 1234
EPERM, EACCES, ENOSYS, NO_ATTRIBUTES = (FAIL | code for code in (errno.EPERM, errno.EACCES, errno.ENOSYS, 95))
UNIX, INET, STREAM, DATAGRAM, SEQPACKET = 1, 2, 1, 2, 5


def decide(program, machine, number, *arguments):
    """Run the program as the kernel does; return its verdict."""
    data = struct.pack("=IIQ6Q", number, machine, 0, *arguments, *[0] * (6 - len(arguments)))
    held, place = 0, 0
    while True:
        code, if_true, if_false, value = struct.unpack("=HBBI", program[place])
        if code == 0x06:
            return value
        tests = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}
        if code == 0x20:
            held = struct.unpack_from("=I", data, value)[0]
        elif code == 0x54:
            held &= value
        place += 1 + ((if_true if tests[code] else if_false) if code in tests else 0)


CASES = [
    # call, arguments, verdict without a sandbox, in one, with a user of its own, for a tool
    ("ptrace", (), EPERM, EPERM, EPERM, EPERM),
    ("kill", (0,), ALLOW, ALLOW, ALLOW, ALLOW),
    ("kill", (OWN,), ALLOW, ALLOW, ALLOW, ALLOW),
    ("kill", (OTHER,), ASK, ASK, ASK, ASK),
    ("kill", (-1 & (1 << 64) - 1,), ASK, ASK, ASK, ASK),
    ("tgkill", ((1 << 32) + OWN,), ALLOW, ALLOW, ALLOW, ALLOW),
    ("setpriority", (0, OWN), ALLOW, ALLOW, ALLOW, ALLOW),
    ("setpriority", (0, OTHER), ASK, ASK, ASK, ASK),
    ("setpriority", (2, 0), EPERM, EPERM, EPERM, EPERM),
    ("ioprio_set", (3, 0), EPERM, EPERM, EPERM, EPERM),
    ("fcntl", (3, 8), EPERM, EPERM, EPERM, EPERM),
    ("fcntl", (3, 1024), ALLOW, EPERM, EPERM, EPERM),
    ("fcntl", (3, 3), ALLOW, ALLOW, ALLOW, ALLOW),
    ("ioctl", (3, 0x8901), EPERM, EPERM, EPERM, EPERM),
    ("ioctl", (3, 0x40086602), ALLOW, EPERM, EPERM, EPERM),
    ("socket", (UNIX, STREAM | 0o2000000), ALLOW, ALLOW, ALLOW, ALLOW),
    ("socket", (UNIX, SEQPACKET), ALLOW, ALLOW, ALLOW, ALLOW),
    ("socket", (UNIX, DATAGRAM), ALLOW, EACCES, EACCES, EACCES),
    ("socket", (INET, DATAGRAM), ALLOW, EACCES, EACCES, ALLOW),
    ("socketpair", (INET, STREAM), ALLOW, EACCES, EACCES, EACCES),
    ("connect", (3, 4, 5), ALLOW, EACCES, EACCES, ASK),
    ("sendto", (3, 4, 5, 0, 0, 0), ALLOW, ALLOW, ALLOW, ALLOW),
    ("sendto", (3, 4, 5, 0, 1 << 40, 0), ALLOW, EACCES, EACCES, ALLOW),
    ("clone", (17,), ALLOW, ALLOW, ALLOW, ALLOW),
    ("clone", (0x10000000,), ALLOW, EPERM, EPERM, EPERM),
    ("unshare", (0x80,), ALLOW, EPERM, EPERM, EPERM),
    ("clone3", (), ALLOW, ENOSYS, ENOSYS, ENOSYS),
    ("personality", (0xFFFFFFFF,), ALLOW, ALLOW, ALLOW, ALLOW),
    ("personality", (0x400000,), ALLOW, EPERM, EPERM, EPERM),
    ("fchmodat", (), ALLOW, ASK, ALLOW, ASK),
    ("utimensat", (), ALLOW, ASK, ALLOW, ASK),
    ("fchownat", (), ALLOW, FAIL, ALLOW, FAIL),
    ("setxattr", (), ALLOW, NO_ATTRIBUTES, NO_ATTRIBUTES, NO_ATTRIBUTES),
    ("mount", (), ALLOW, EPERM, EPERM, EPERM),
    ("io_uring_setup", (), ALLOW, EPERM, EPERM, EPERM),
    ("shmget", (), ALLOW, EPERM, EPERM, EPERM),
]
KINDS = [{}, {"sandboxed": True}, {"sandboxed": True, "has_own_user": True}, {"sandboxed": True, "for_tool": True}]


@pytest.mark.parametrize("machine", MACHINES)
def test_each_call_has_its_verdict(machine):
    calls, (_, number) = read_calls(machine), MACHINES[machine]
    for at, kind in enumerate(KINDS):
        program = make_program(machine, OWN, **kind)
        found = [decide(program, number, calls[name][0], *arguments) for name, arguments, *_ in CASES]
        assert found == [case[2 + at] for case in CASES]
        assert decide(program, number, 500) == ALLOW
        assert decide(program, number ^ 1, 500) == decide(program, number, 0x40000000) == EPERM
        without_asking = make_program(machine, OWN, **kind, ask=EPERM)
        assert decide(without_asking, number, calls["kill"][0], OTHER) == EPERM
    assert len({number for number, _ in calls.values()}) == len(calls)


@pytest.mark.parametrize(
    ("release", "asks"), [("6.12.1-generic", True), ("5.5", True), ("5.4.0", False), ("4.18.0-553.el8", False)]
)
def test_older_kernels_cannot_ask(release, asks):
    assert can_ask(release) is asks
