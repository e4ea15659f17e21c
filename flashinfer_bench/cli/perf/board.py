"""Collects the rows of a session's cases. When all backends of a case are done, it prints and writes the case."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from flashinfer_bench.cli.exit_codes import FAILED, RAN
from flashinfer_bench.cli.output import write_out
from flashinfer_bench.cli.perf.cases import Request
from flashinfer_bench.cli.perf.files import ResultFiles
from flashinfer_bench.cli.perf.rows import PerfRow, make_failed, make_skipped
from flashinfer_bench.cli.perf.text import introduce, report
from flashinfer_bench.routines.case.support import Platform

WHOLE_CASE: Final = ""
"""Stands for the backend in the row of a case that was run for none of its backends."""


class Board:
    """The cases of a session and their rows so far."""

    def __init__(self, requests: Sequence[Request], files: ResultFiles, place: Platform) -> None:
        self.requests = list(requests)
        self.place = place
        self._files = files
        self._rows: dict[int, dict[str, PerfRow]] = {id(request): {} for request in requests}
        self._failed = 0
        self._is_single = len(self.requests) == 1

    def begin(self) -> None:
        """Introduce a single case at once. Tell the cases that no backend can run."""
        for request in self.requests:
            if self._is_single:
                write_out(_lines(introduce(request, self.place)))
            if not request.backends:
                self._tell(request)

    def put(self, request: Request, row: PerfRow) -> None:
        """Keep a row. Tell the case when it has all of its rows. Print each row of a single case at once."""
        rows = self._rows[id(request)]
        rows[row.backend] = row
        if self._is_single:
            write_out(_lines(report(row)))
        if len(rows) == len(request.backends):
            self._tell(request)

    def finish(self, reason: str) -> None:
        """Tell the cases that lack rows: their missing backends failed for this reason."""
        for request in self.requests:
            rows = self._rows[id(request)]
            for backend in [name for name in request.backends if name not in rows]:
                self.put(request, make_failed(request, backend, reason, self.place))

    @property
    def exit_code(self) -> int:
        """0 if every case ran, no backend failed and all rows were written, else 1."""
        return FAILED if self._failed or self._files.lost else RAN

    def _tell(self, request: Request) -> None:
        """Write the rows of a case, and print its lines if they are not printed yet."""
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
    """Tell whether a row makes the session fail. A mismatch does if the flags make it an error."""
    args = row.request.args
    return row.outcome == "failed" or (row.outcome == "mismatch" and args.refcheck and not args.allow_output_mismatch)
