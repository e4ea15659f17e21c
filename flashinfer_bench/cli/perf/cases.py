"""Reads the cases of a call of `perf`: from the flags, or one case from each line of a testlist.

Flags give several cases by `--m 1,16,256`, or by `--sweep m=1:4096:x2`.

An invalid line becomes a case with a problem. The problem is reported, and the other lines run.
"""

from __future__ import annotations

import os
import re
import resource
import shlex
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.base.host import usable_memory
from flashinfer_bench.cli.axes import MOST_CASES, read_range
from flashinfer_bench.cli.parser import typed_program
from flashinfer_bench.cli.perf.flags import CASE_FLAGS, check_outer, make_parser, parse_case, read_names, split_session
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.errors import UsageError
from flashinfer_bench.report.verdict import to_one_line
from flashinfer_bench.routines.case.generated_entry import generate_entry
from flashinfer_bench.routines.case.spec import TORCH
from flashinfer_bench.routines.case.support import Platform, why_not
from flashinfer_bench.routines.table import ROUTINES

SCRIPT: Final = "flashinfer_benchmark.py"
"""The name of this command in FlashInfer's documents."""
MOST_BYTES: Final = 16 << 20
"""Maximum bytes of a testlist."""

SWEEP: Final = "--sweep"
LIST: Final = re.compile(r"[-+.\w]+(?:,[-+.\w]+)+")


@dataclass
class Request:
    """One case to run."""

    words: list[str]
    """The arguments of the case, with the arguments of the outer command."""
    platform: Platform
    """The device of the case, and the installed packages."""
    line: int | None = None
    """Line number in the testlist."""
    text: str = ""
    """Line of the testlist, unchanged."""
    swept: str = ""
    """The flags whose values differ between the cases of a sweep."""
    ignored: list[str] = field(default_factory=list)
    """Flags of the whole session that the line contains. Session flags have no effect in a line."""
    problem: str | None = None
    """Why the case cannot be run."""
    named: str = ""
    """Name of the routine as given. The routine may be unknown."""
    args: Namespace = field(default_factory=Namespace)
    case: Any = None
    """The routine's case; None with a problem."""
    entry: Any = None
    """The case in the trace-set format; None with a problem."""
    backends: list[str] = field(default_factory=list)
    """The backends that can run here, in the given order."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Backend → why the backend cannot run here."""
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Backend → result, added when the result is known."""

    @property
    def runs_as_ranks(self) -> bool:
        """Whether a backend of the case runs here as ranks of mpirun, outside of the engine."""
        return self.backends not in ([], [TORCH]) and ROUTINES[self.named].needs_ranks

    @property
    def definition(self) -> str:
        """The definition's name, for a request without a problem."""
        return str(self.entry.definition.name)


def read_requests(rest: Sequence[str], testlist: str | None, platform: Platform) -> list[Request]:
    """Return the cases of the command line or of the testlist.

    Raises:
        UsageError: a flag is wrong, a flag beside the testlist belongs to no routine, or the testlist is unreadable or
            empty.
    """
    if testlist is None:
        requests = [Request(words, platform, swept=swept) for words, swept in expand_sweeps(rest)]
        for request in requests:
            _prepare(request)
        problems = dict.fromkeys(request.problem for request in requests if request.problem is not None)
        if problems:
            raise UsageError("\n".join(problems))
        return requests
    check_outer(rest)
    try:
        text = read_whole(Path(testlist), MOST_BYTES).decode("utf-8-sig")  # some editors write a byte order mark first
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"--testlist {testlist}: cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from None
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), start=1)]
    requests = [Request([], platform, number, line) for number, line in lines if line and not line.startswith("#")]
    if not requests:
        raise UsageError(f"{testlist} holds no case: a case a line, # for comments")
    for request in requests:
        _read_line(request, rest)
    return requests


def expand_sweeps(words: Sequence[str]) -> list[tuple[list[str], str]]:
    """Return every combination of the lists and sweeps among the words.

    Returns: The arguments of each case, and the flags whose values differ between the cases.

    Raises:
        UsageError: a sweep has a wrong syntax, a swept flag takes no number, or there are too many cases.
    """
    own = [flag for routine in ROUTINES.values() for flag in routine.flags]
    numbers = {f"--{flag.name}" for flag in (*CASE_FLAGS, *own) if flag.kind in ("int", "float")}
    parts: list[list[list[str]]] = []
    waiting, cases = list(words), 1
    while waiting:
        given = [waiting.pop(0)]
        flag, is_joined, value = given[0].partition("=")
        if not is_joined and waiting and flag in numbers | {SWEEP}:
            value = waiting.pop(0)
            given.append(value)
        values: Sequence[Any] = ()
        if flag == SWEEP:
            name, _, text = value.partition("=")
            flag = f"--{name}"
            if flag not in numbers or not text:
                near = did_you_mean(name, [one[2:] for one in numbers - {flag}]) if text else ""
                usual = "; write FLAG=1,16,256 or FLAG=1:4096:x2 of a flag that takes a number"
                raise UsageError(f"--sweep {value}{near or usual}")
            values = read_range(SWEEP, text) or text.split(",")
        elif flag in numbers and LIST.fullmatch(value):
            values = value.split(",")
        cases *= len(values) or 1
        if cases > MOST_CASES:
            raise UsageError(f"the sweeps give {cases:,} cases or more; at most {MOST_CASES:,} are run at once")
        parts.append([[flag, str(one)] for one in values] or [given])
    return [
        (
            [word for part in chosen for word in part],
            " ".join(word for part, others in zip(chosen, parts, strict=True) if len(others) > 1 for word in part),
        )
        for chosen in product(*parts)
    ]


def _read_line(request: Request, rest: Sequence[str]) -> None:
    """Parse a line. Store the routine and the tag of every line, so that rows of invalid lines can be identified."""
    try:
        words = shlex.split(request.text, comments=True)
    except ValueError as error:
        request.problem = str(error)
        # The tag is not stored, since splitting at spaces may have cut the tag.
        request.named = read_names([*rest, *request.text.split()]).routine or ""
        return
    names = read_names([*rest, *words])
    request.named, request.args = names.routine or "", Namespace(case_tag=names.case_tag)
    given = {word.partition("=")[0] for word in words}
    request.ignored = [flag for flag in make_parser(case=False).flags() if flag in given]
    try:
        request.words = [*rest, *split_session(words)[1]]
    except UsageError as error:
        request.problem = str(error)
    else:
        _prepare(request)


def _prepare(request: Request) -> None:
    """Parse a request, make the case, and find the backends that can run the case here."""
    try:
        routine, args = parse_case(request.words)
        request.named, request.args = routine.name, args
        if args.generate_repro_command:
            command = [] if Path(sys.argv[0]).name == SCRIPT else ["perf"]
            args.repro_command = shlex.join([*typed_program(), *command, *request.words])
        with _limited_memory():
            request.case = case = routine.make_case(args)
            refused = (routine.backends if routine.needs_ranks else case.refusals).__contains__
            own = [name for name in args.backends if name == TORCH or not refused(name)]
            request.entry = generate_entry(routine, case, own)
    except UsageError as error:
        request.problem = str(error)
    except MemoryError:
        request.problem = "its inputs need more memory than this machine has; take smaller sizes"
    except (ValueError, ArithmeticError) as error:
        request.problem = f"its flags do not go together: {to_one_line(str(error))}"
    else:
        reasons = {backend: why_not(routine, backend, request.platform, case) for backend in args.backends}
        request.skipped = {backend: f"{reason}. Skipping." for backend, reason in reasons.items() if reason is not None}
        request.backends = [backend for backend in reasons if backend not in request.skipped]


@contextmanager
def _limited_memory() -> Iterator[None]:
    """Raise MemoryError if a step takes more than half of the memory. The system would kill the process instead."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    held = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5]) * os.sysconf("SC_PAGE_SIZE")
    limit = held + usable_memory() // 2
    resource.setrlimit(resource.RLIMIT_DATA, (limit if soft == resource.RLIM_INFINITY else min(limit, soft), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
