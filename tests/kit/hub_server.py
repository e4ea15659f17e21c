"""A server of one repository that speaks the hub's API, and logs its requests."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

REPOSITORY = "someone/small-trace"
PAGE = 150
"""Files of one answer; a longer list continues on the next page."""


class HubServer(ThreadingHTTPServer):
    """The hub with one data set.

    Attributes:
        files: path → content. A change makes a new commit.
        sent: path → content of the download, if it differs from the listed content.
        requests: the requests so far: method and path.
        on_download: called before each download with its path; returns the status of a refusal, or None.
        cuts: paths whose first download breaks off in the middle.
        tree: the answer in place of the list of files.
        is_endless: whether each page of the list of files names itself as the next page.
        etags: path → ETag in place of the content's digest.
    """

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.files, self.sent, self.requests, self.cuts = files, dict[str, bytes](), list[str](), set[str]()
        self.tree: bytes | None = None
        self.is_endless = False
        self.etags = dict[str, str]()
        self.on_download: Callable[[str], int | None] = lambda _: None

    @property
    def commit(self) -> str:
        """The commit of the present files."""
        return hashlib.sha1(repr(sorted(self.files.items())).encode()).hexdigest()

    def downloads(self) -> list[str]:
        """Return the paths of the downloads so far, sorted."""
        return sorted(line.split("/", 6)[-1] for line in self.requests if line.startswith("GET /datasets/"))


class _Handler(BaseHTTPRequestHandler):
    server: HubServer

    def do_GET(self) -> None:
        server = self.server
        server.requests.append(f"{self.command} {self.path}")
        where = re.fullmatch(rf"/(?:api/)?datasets/{REPOSITORY}/(revision|tree|resolve)/([^/?]+)[/?]?(.*)", self.path)
        if where is None:
            return self.answer(404, {"X-Error-Code": "RepoNotFound"})
        kind, revision, rest = where.groups()
        if revision not in ("main", server.commit):
            return self.answer(404, {"X-Error-Code": "RevisionNotFound"})
        if kind == "revision":
            return self.answer(200, {}, json.dumps({"id": REPOSITORY, "sha": server.commit, "siblings": []}).encode())
        if kind == "tree" and server.tree is not None:
            link = f'<{server.url}{self.path}>; rel="next"'
            return self.answer(200, {"Link": link} if server.is_endless else {}, server.tree)
        if kind == "tree":
            return self.send_tree(int((re.search(r"start=(\d+)", rest) or [0, "0"])[1]))
        return self.send_file(unquote(rest))

    do_HEAD = do_GET

    def send_tree(self, start: int) -> None:
        entries = [describe(path, content) for path, content in sorted(self.server.files.items())]
        head = {}
        if start + PAGE < len(entries):
            url = f"{self.server.url}{self.path.partition('?')[0]}?recursive=true&start={start + PAGE}"
            head = {"Link": f'<{url}>; rel="next"'}
        self.answer(200, head, json.dumps(entries[start : start + PAGE]).encode())

    def send_file(self, path: str) -> None:
        content = self.server.sent.get(path, self.server.files[path])
        status = self.server.on_download(path) if self.command == "GET" else None
        if status is not None:
            return self.answer(status, {})
        start = int((re.match(r"bytes=(\d+)-", self.headers.get("Range", "")) or [0, "0"])[1])
        etag = self.server.etags.get(path) or hashlib.sha256(content).hexdigest()
        head = {"X-Repo-Commit": self.server.commit, "ETag": f'"{etag}"'}
        if start:
            head["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        cut = self.command == "GET" and path in self.server.cuts
        self.server.cuts.discard(path if self.command == "GET" else "")
        return self.answer(206 if start else 200, head, content[start:], sent=len(content) // 2 if cut else None)

    def answer(self, status: int, head: dict[str, str], body: bytes = b"", sent: int | None = None) -> None:
        self.send_response(status)
        for name, value in {**head, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[:sent])

    def log_message(self, *_: object) -> None:
        """Write nothing."""


def describe(path: str, content: bytes) -> dict[str, object]:
    """Return the entry of a file in the list of a commit. Blobs are stored as large files, as on the hub."""
    oid = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    entry = {"type": "file", "path": path, "size": len(content), "oid": oid}
    if path.endswith(".safetensors"):
        digest = hashlib.sha256(content).hexdigest()
        entry["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 130}
    return entry
