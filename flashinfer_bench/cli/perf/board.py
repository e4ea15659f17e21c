"""The cases of a session and their rows: tells a case, and writes its rows, when all of its backends are done."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from flashinfer_bench.cli.exit_codes import FAILED, RAN
from flashinfer_bench.cli.perf.cases import Request
from flashinfer_bench.cli.perf.files import ResultFiles
from flashinfer_bench.cli.perf.rows import PerfRow, make_failed, make_skipped
from flashinfer_bench.cli.perf.text import introduce, report
from flashinfer_bench.cli.screen.output import write_out
from flashinfer_bench.routines.case.support import Place

WHOLE_CASE: Final = ""
"""Stands for the backend in the row of a case that was run for none of its backends."""


class Board:
    """The cases of a session and what has come of them; a case is told when all of its backends are done."""

    def __init__(self, requests: Sequence[Request], files: ResultFiles, place: Place) -> None:
        self.requests = list(requests)
        self.place = place
        self._files = files
        self._rows: dict[int, dict[str, PerfRow]] = {id(request): {} for request in requests}
        self._failed = 0
        self._is_single = len(self.requests) == 1

    def begin(self) -> None:
        """Introduce a single case at once, and tell the cases of which nothing can be run."""
        for request in self.requests:
            if self._is_single:
                write_out(_lines(introduce(request, self.place)))
            if not request.backends:
                self._tell(request)

    def put(self, request: Request, row: PerfRow) -> None:
        """Take a row, and tell the case when it is whole; of a single case each row at once."""
        rows = self._rows[id(request)]
        rows[row.backend] = row
        if self._is_single:
            write_out(_lines(report(row)))
        if len(rows) == len(request.backends):
            self._tell(request)

    def finish(self, reason: str) -> None:
        """Tell the cases that are not whole: their missing backends failed for a reason."""
        for request in self.requests:
            rows = self._rows[id(request)]
            for backend in [name for name in request.backends if name not in rows]:
                self.put(request, make_failed(request, backend, reason, self.place))

    @property
    def exit_code(self) -> int:
        """0 where every case ran, none of its backends failed, and all rows were written, else 1."""
        return FAILED if self._failed or self._files.lost else RAN

    def _tell(self, request: Request) -> None:
        """Write the rows of a case, and its lines where they are not out yet."""
        skipped = [make_skipped(request, name, why, self.place) for name, why in request.skipped.items()]
        rows = [*skipped, *(self._rows[id(request)][name] for name in request.backends)]
        if request.problem is not None:
            rows = [make_failed(request, WHOLE_CASE, request.problem, self.place)]
        for row in rows:
            self._files.add(row)
        self._failed += not request.backends or any(map(counts_as_failed, rows))
        if not self._is_single:
            told = [] if request.problem is not None else [line for row in rows for line in report(row)]
            write_out(_lines([*introduce(request, self.place), *told]))


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def counts_as_failed(row: PerfRow) -> bool:
    """Tell whether a row makes the session fail: a mismatch does where it was to be an error."""
    args = row.request.args
    return row.outcome == "failed" or (row.outcome == "mismatch" and args.refcheck and not args.allow_output_mismatch)
