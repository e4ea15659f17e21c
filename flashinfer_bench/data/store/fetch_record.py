"""The record of a fetched set: the repository on the hub, the commit, and the size and digest of each file in that
commit.

`fetch` writes the record to `.fetched.json` in the root of the set: the first record before it downloads, the record of
a newer commit after the files of the set are updated. The record lets `fetch` resume an interrupted fetch and check a
complete fetch offline. Messages about missing blobs get the command from the record.
Format 1:

    {"format": 1, "repository": "owner/name", "revision": "main", "commit": "40 hex digits",
     "files": {path: [bytes, digest]}}
"""

from __future__ import annotations

import os
import re
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from flashinfer_bench.base.files.reading import BLOCK_BYTES, open_to_read, read_whole
from flashinfer_bench.data.store.jsonl import MOST_JSON_BYTES
from flashinfer_bench.errors import DataSetError

RECORD: Final = ".fetched.json"
"""The file of a root that holds the record."""
_REPOSITORY: Final = re.compile(rb'"repository":"([^"]+)"')


class FetchRecord(BaseModel):
    """The files of one commit of a repository."""

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = 1
    """Version of the file's format."""
    repository: str
    """The data set on the hub, `owner/name`."""
    revision: str
    """The requested branch, tag or commit."""
    commit: str
    """The commit of the revision, 40 hexadecimal digits; empty if an update has begun and has not ended."""
    files: dict[str, tuple[int, str]]
    """Path → size in bytes, and digest in hexadecimal: SHA-256 (64 digits), or the id of git's blob (40 digits)."""


def read_record(root: Path) -> FetchRecord | None:
    """Return the record of a set; None if the set was not fetched.

    Raises:
        DataSetError: the record cannot be read.
    """
    try:
        return FetchRecord.model_validate_json(read_whole(root / RECORD, MOST_JSON_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataSetError(f"{root / RECORD} cannot be read; remove it and fetch the set again") from error


def missing_command(root: Path) -> str:
    """Return the command that fetches the missing blobs of a set. Only the beginning of the record is read."""
    found = None
    with suppress(OSError), os.fdopen(open_to_read(root / RECORD), "rb") as handle:
        found = _REPOSITORY.search(handle.read(BLOCK_BYTES))
    repository = "OWNER/NAME" if found is None else shlex.quote(found[1].decode("utf-8", "replace"))
    return f"flashinfer-bench fetch {repository} --missing --output {shlex.quote(str(root))}"
