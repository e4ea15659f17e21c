"""Fetches a trace set from the Hugging Face hub into a folder: only the chosen files, each checked by size and digest.

A file is downloaded into a staging folder of the set, checked, and then moved to its path. So the set never holds a
part of a file or a wrong file. A file that differs from the hub's is replaced. Files of traces are kept, since runs
append to them. The files of a set belong to one commit, so a fetch of another commit also updates files that the folder
already has.

Only this module imports huggingface_hub, and no worker imports this module.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final

from flashinfer_bench.base.files.held_folders import sweep_folders, temporary_folder
from flashinfer_bench.base.files.reading import BLOCK_BYTES, open_to_read
from flashinfer_bench.base.files.writing import open_folder
from flashinfer_bench.base.install import install_hint
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.store.blobs import is_inside
from flashinfer_bench.data.store.fetch_record import RECORD, FetchRecord, read_record
from flashinfer_bench.data.store.jsonl import write_whole
from flashinfer_bench.data.store.layout import BLOB, FOLDERS, SOLUTIONS, TRACES, path_part
from flashinfer_bench.errors import Fault, UsageError

THREADS: Final = 8
"""Number of parallel downloads, as in the hub's own client."""
MOST_PAGES: Final = 100
"""Largest number of pages of a list of files. The hub puts 1,000 files on a page. A record of many more files would be
too large to read."""
HIDDEN: Final = re.compile(r"(^|/)\.")
"""Paths that are not fetched. Readers of a set skip them, and the client has its own files in a hidden folder."""
SHA256_DIGITS: Final = 64
RIGHT, DOWNLOADED, KEPT = "right", "downloaded", "kept"
"""Results of a file that are no problem. KEPT is for a file of traces that differs from the hub's."""
FINE: Final = frozenset({RIGHT, DOWNLOADED, KEPT})
MISSING: Final = "it is missing or differs, and offline no file is downloaded"
REFUSED: Final = "refused: its size or digest differs from the hub's list"
UNLISTED: Final = "a workload names it, and the hub does not have it"


@dataclass
class Fetch:
    """One fetch into a folder, and its result."""

    root: Path
    record: FetchRecord
    download: Callable[..., str] | None
    """Downloads a path into `local_dir`, and returns the file; None offline."""
    each: Callable[..., list[Any]]
    """Calls a function for each path, in threads, and shows the progress."""
    results: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Result, which is one of FINE or why the folder lacks a file → the chosen files with this result."""
    left: list[str] = field(default_factory=list)
    """Files in the folder that the earlier commit has and the new commit lacks."""

    def bring(self, chosen: Collection[str]) -> None:
        """Check files, and download files that are missing or differ."""
        size = sum(self.record.files[path][0] for path in chosen)
        paths = sorted(chosen)
        for path, result in zip(paths, self.each(self.bring_file, paths, desc=f"{size:,} bytes"), strict=True):
            self.results[result].append(path)

    def bring_file(self, path: str) -> str:
        """Return the result of a file. A missing or wrong file is downloaded, checked, and moved into the set."""
        file, listed = self.root / path, self.record.files[path]
        with suppress(FileNotFoundError, NotADirectoryError):
            if _is_listed(file, *listed):
                return RIGHT
            if path.startswith(f"{TRACES}/"):
                return KEPT
        if self.download is None:
            return MISSING
        with temporary_folder("fetch", self.root) as staging:  # of one file, so no other file steers the client there
            loaded = Path(self.download(path, local_dir=staging))
            if not _is_listed(loaded, *listed):
                return REFUSED
            with open_folder(file.parent, self.root) as folder:
                folder.find(file.name)  # refuses to replace a link
                os.replace(loaded, file.name, dst_dir_fd=folder.fd)
        return DOWNLOADED


def fetch_set(
    repository: str,
    root: Path,
    *,
    choose: Callable[[Collection[str]], Collection[str] | None],
    only_missing: bool,
    revision: str | None,
    is_offline: bool,
    is_quiet: bool,
) -> Fetch:
    """Fetch the chosen files that the folder lacks. Check the files that it already has.

    Args:
        repository: the data set on the hub, `owner/name`.
        root: the folder of the set. It is made if it is missing.
        choose: takes the paths on the hub; returns the file names of the chosen definitions, None for all files. A
            chosen definition has the blobs that its workloads name.
        only_missing: fetch only blobs that workloads in the folder name.
        revision: branch, tag or commit. None is the main branch, or with `only_missing` the commit in the record.
        is_offline: send no request.
        is_quiet: show no progress.

    Raises:
        UsageError: the package is missing, the repository or the revision is unknown, or the record does not fit.
        Fault: the hub cannot be read, or a file cannot be written.
    """
    try:
        from huggingface_hub import HfApi, errors, utils
        from tqdm.contrib.concurrent import thread_map
    except ImportError as error:
        raise UsageError(f"fetch needs huggingface_hub: {install_hint('hub')}") from error
    utils.disable_progress_bars()  # the client shows a bar for each file
    old = read_record(root)
    if old is not None and old.repository != repository:
        raise UsageError(f"{root} was fetched from {old.repository}; give another folder with --output")
    revision = revision or (old.commit or old.revision if old is not None and only_missing else "main")
    api = HfApi()
    with _translated_errors(errors, api.endpoint):
        if old is not None and old.commit and revision in (old.commit, *([old.revision] if is_offline else [])):
            record = old
        elif is_offline:
            raise UsageError(f"{root} has no record of {repository} at {revision}; fetch it once with the network")
        else:
            record = _read_commit(api, utils, repository, revision, old)
        listed = {path for path in record.files if is_inside(path) and not HIDDEN.search(path)}  # of any author
        names = choose(listed)
        chosen = set() if only_missing else {path for path in listed if _is_chosen(path, names)}
        if old is None:
            write_whole(root / RECORD, record.model_dump_json(), root=root)
        elif record is not old:
            chosen |= {path for path in listed if (root / path).exists()}
            begun = old.model_copy(update={"revision": revision, "commit": ""})
            write_whole(root / RECORD, begun.model_dump_json(), root=root)
        load = partial(api.hf_hub_download, repository, repo_type="dataset", revision=record.commit)
        each = partial(thread_map, max_workers=THREADS, unit="file", disable=is_quiet or None)  # None: no bar on a pipe
        fetch = Fetch(root, record, None if is_offline else load, each)
        sweep_folders(root)  # of fetches that were killed
        if old is not None:
            fetch.left = sorted(path for path in old.files.keys() - record.files.keys() if (root / path).exists())
        fetch.bring(chosen)
        if record is not old and fetch.results.keys() <= FINE:  # else the next fetch updates again
            write_whole(root / RECORD, record.model_dump_json(), root=root)
        workloads = TraceSet.from_path(root).workloads
        lines = [line for name in workloads if names is None or path_part(name) in names for line in workloads[name]]
        named = {str(PurePosixPath(one.path)) for line in lines for one in line.workload.stored_inputs.values()}
        blobs = named - chosen
        fetch.results[UNLISTED] += (path for path in blobs - listed if not (root / path).exists())
        fetch.bring(blobs & listed)
    return fetch


def _read_commit(api: Any, utils: Any, repository: str, revision: str, old: FetchRecord | None) -> FetchRecord:
    """Return the record of a revision. If the commit has changed, list the commit's files on the hub."""
    commit = api.dataset_info(repository, revision=revision).sha
    if old is not None and commit == old.commit:
        return old
    url, files = f"{api.endpoint}/api/datasets/{repository}/tree/{commit}?recursive=true", dict[str, tuple[int, str]]()
    for _ in range(MOST_PAGES):
        answer = utils.http_backoff("GET", url, headers=utils.build_hf_headers())
        utils.hf_raise_for_status(answer)
        entries = (entry for entry in answer.json() if entry["type"] == "file")
        files |= {one["path"]: (one["size"], one["lfs"]["oid"] if one.get("lfs") else one["oid"]) for one in entries}
        url = answer.links.get("next", {}).get("url")
        if url is None:
            return FetchRecord(repository=repository, revision=revision, commit=commit, files=files)
    raise ValueError(f"its list of files has more than {MOST_PAGES} pages")


def _is_chosen(path: str, names: Collection[str] | None) -> bool:
    """Return whether a path is chosen: a file in the root, or a file of a chosen definition except its blobs."""
    folder, *below = PurePosixPath(path).parts
    if names is None or not below:
        return True
    return folder in FOLDERS - {BLOB} and (below[-2:][0] if folder == SOLUTIONS else PurePosixPath(path).stem) in names


def _is_listed(file: Path, size: int, listed: str) -> bool:
    """Return whether a file has the listed size and digest. A digest shorter than a SHA-256 is git's id of the blob."""
    with os.fdopen(open_to_read(file), "rb") as handle:
        if os.fstat(handle.fileno()).st_size != size:
            return False
        is_long = len(listed) == SHA256_DIGITS
        digest = hashlib.sha256() if is_long else hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        while block := handle.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest() == listed


@contextmanager
def _translated_errors(known: Any, server: str) -> Iterator[None]:
    """Translate errors of the hub's client and of the disk."""
    try:
        yield
    except (known.HFValidationError, known.RepositoryNotFoundError, known.RevisionNotFoundError) as error:
        raise UsageError(" ".join(str(error).split()).partition(" Use `")[0]) from error
    except (OSError, RuntimeError, known.HTTPError) as error:
        said = " ".join(str(error).split())
        source = f" from {server}" * isinstance(error, (known.HTTPError, known.EntryNotFoundError, ConnectionError))
        raise Fault(f"fetch{source}: {said}; the same command resumes the fetch") from error
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise Fault(f"the answer of {server} cannot be read: {' '.join(str(error).split())}") from error
