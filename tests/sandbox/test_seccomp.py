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
    # verdicts: without a sandbox, in one, with a user of its own, for a tool; then the calls that have them
    ([EPERM] * 4, "ptrace", ("setpriority", 2, 0), ("ioprio_set", 3, 0), ("fcntl", 3, 8), ("ioctl", 3, 0x8901)),
    ([ALLOW] * 4, ("kill", 0), ("kill", OWN), ("tgkill", (1 << 32) + OWN), ("setpriority", 0, OWN), ("fcntl", 3, 3)),
    ([ALLOW] * 4, ("socket", UNIX, STREAM | 0o2000000), ("socket", UNIX, SEQPACKET)),
    ([ALLOW] * 4, ("clone", 17), ("personality", 0xFFFFFFFF)),
    ([ASK] * 4, ("kill", OTHER), ("kill", -1 & (1 << 64) - 1), ("setpriority", 0, OTHER)),
    ([ALLOW, EPERM, EPERM, EPERM], "mount", "io_uring_setup", "shmget", ("fcntl", 3, 1024), ("ioctl", 3, 0x40086602)),
    ([ASK, EPERM, EPERM, ASK], ("kill", OTHER, 18), ("tgkill", OTHER, OTHER, 18)),
    ([ALLOW, EPERM, EPERM, ALLOW], ("kill", 0, 18), ("kill", OWN, 18), ("tgkill", OWN, OWN, 18), "timer_create"),
    ([ALLOW, EPERM, EPERM, EPERM], ("clone", 0x10000000), ("unshare", 0x80), ("personality", 0x400000)),
    ([ALLOW, ENOSYS, ENOSYS, ENOSYS], "clone3"),
    ([ALLOW, EACCES, EACCES, EACCES], ("socket", UNIX, DATAGRAM), ("socketpair", INET, STREAM)),
    ([ALLOW, EACCES, EACCES, ALLOW], ("socket", INET, DATAGRAM)),
    ([ALLOW, EACCES, EACCES, ASK], ("connect", 3, 4, 5)),
    ([ALLOW, ASK, ALLOW, ASK], "fchmodat", "utimensat"),
    ([ALLOW, FAIL, ALLOW, FAIL], "fchownat"),
    ([ALLOW, NO_ATTRIBUTES, NO_ATTRIBUTES, NO_ATTRIBUTES], "setxattr"),
]
KINDS = [{}, {"sandboxed": True}, {"sandboxed": True, "has_own_user": True}, {"sandboxed": True, "for_tool": True}]


@pytest.mark.parametrize("machine", MACHINES)
def test_each_call_has_its_verdict(machine):
    calls, (_, number) = read_calls(machine), MACHINES[machine]
    for at, kind in enumerate(KINDS):
        program = make_program(machine, OWN, **kind)
        for verdicts, *asked in CASES:
            for call in asked:
                name, *arguments = (call,) if isinstance(call, str) else call
                assert (call, decide(program, number, calls[name][0], *arguments)) == (call, verdicts[at])
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
