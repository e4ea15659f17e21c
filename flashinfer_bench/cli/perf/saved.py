"""Saves how cases are judged, as the tolerances file of the trace set that holds them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import yaml

from flashinfer_bench.base.files.locks import USUAL_LIMIT_S, locked_folder
from flashinfer_bench.bench.tolerances import read_tolerances
from flashinfer_bench.cli.perf.cases import Request
from flashinfer_bench.data.store.jsonl import write_whole
from flashinfer_bench.data.store.layout import TOLERANCES_FILE
from flashinfer_bench.errors import DataSetError

HEAD: Final = "# How the definitions of this set are judged, beside what `flashinfer-bench config show` tells.\n"


def write_tolerances(root: Path, requests: Iterable[Request]) -> None:
    """Write the tolerances of cases, and keep those of other definitions. A lock lets one process write at a time.

    Raises:
        ConfigError: the file that is there cannot be used.
        DataSetError: it cannot be written.
    """
    own = {
        request.material.definition.name: request.case.check.settings()
        for request in requests
        if request.material is not None and request.case is not None
    }
    path = root / TOLERANCES_FILE
    try:
        root.mkdir(parents=True, exist_ok=True)
        with locked_folder(root, USUAL_LIMIT_S):
            write_whole(path, HEAD + yaml.safe_dump({**read_tolerances(root), **own}, sort_keys=True), root=root)
    except OSError as error:
        raise DataSetError(f"{path}: cannot be written: {error}") from error
