"""A stand-in for the HTTP interface of the Hugging Face hub, on loopback.

Knows the answers that `huggingface_hub` from 0.30 to 2.x asks for: the listing of a repository
(`/api/models/...`), and `/<owner>/<repo>/resolve/<revision>/<file>`, which names the commit and the sum in
its headers and leads on to a store that serves ranges. A test can make it break off, refuse or lie.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + 34 * "0"
_LISTING = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)(?:/revision/[^/]+)?")
_RESOLVE = re.compile(r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<file>.+)")
_STORE = re.compile(r"/store/(?P<sha256>[0-9a-f]{64})")
_RANGE = re.compile(r"bytes=(\d+)-")
_SOCKET_TIMEOUT_S = 10.0


@dataclass
class FakeHub:
    """What the hub holds and does, and what it was asked.

    `repos` maps `owner/repo` to its files. Every `break_after` is used once: that many bytes of the next file
    are sent, then the connection ends. `served` replaces the bytes that are sent for a listed file. `tokens`
    holds the first part of the path and the token of every request that carried one.
    """

    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    private: dict[str, str] = field(default_factory=dict)
    status: int | None = None
    break_after: list[int] = field(default_factory=list)
    served: dict[bytes, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    ranges: list[int] = field(default_factory=list)
    tokens: set[tuple[str, str]] = field(default_factory=set)
    url: str = ""
    store_url: str = ""

    def stored(self, sha256: str) -> bytes | None:
        """Return the bytes that are sent for the file with this sum."""
        for files in self.repos.values():
            for content in files.values():
                if hashlib.sha256(content).hexdigest() == sha256:
                    return self.served.get(content, content)
        return None


@contextlib.contextmanager
def serve(hub: FakeHub) -> Iterator[FakeHub]:
    """Serve the hub on a free port of loopback for the block."""

    class Handler(_Handler):
        served_hub = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, name="fake-hub")
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    hub.store_url = (
        f"http://localhost:{server.server_address[1]}"  # another host, so not to be trusted with a token
    )
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    served_hub: FakeHub
    protocol_version = "HTTP/1.1"
    timeout = _SOCKET_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._route()

    def do_GET(self) -> None:
        self._route()

    def _route(self) -> None:
        hub, path = self.served_hub, unquote(urlsplit(self.path).path)
        hub.requests.append((self.command, path))
        if authorization := self.headers.get("Authorization"):
            hub.tokens.add((path.split("/")[1], authorization.removeprefix("Bearer ")))
        if hub.status is not None:
            self._refuse(hub.status, "", "out of order")
        elif match := _LISTING.fullmatch(path):
            self._list(match["repo"])
        elif match := _RESOLVE.fullmatch(path):
            self._resolve(match["repo"], match["file"])
        elif match := _STORE.fullmatch(path):
            self._store(match["sha256"])
        else:
            self._refuse(404, "", "no such address")

    def _allowed(self, repo: str) -> bool:
        wanted = self.served_hub.private.get(repo)
        return repo in self.served_hub.repos and (
            wanted is None or self.headers.get("Authorization") == f"Bearer {wanted}"
        )

    def _list(self, repo: str) -> None:
        if not self._allowed(repo):
            self._refuse(401, "RepoNotFound", "Repository not found")
            return
        siblings = [
            {
                "rfilename": name,
                "size": len(content),
                "blobId": hashlib.sha1(content).hexdigest(),
                "lfs": {
                    "sha256": hashlib.sha256(content).hexdigest(),
                    "size": len(content),
                    "pointerSize": 134,
                },
            }
            for name, content in self.served_hub.repos[repo].items()
        ]
        answer = {
            "_id": "1",
            "id": repo,
            "modelId": repo,
            "sha": COMMIT,
            "private": False,
            "siblings": siblings,
        }
        self._answer(200, {"Content-Type": "application/json"}, json.dumps(answer).encode())

    def _resolve(self, repo: str, file: str) -> None:
        if not self._allowed(repo):
            self._refuse(401, "RepoNotFound", "Repository not found")
        elif repo in self.served_hub.gated:
            self._refuse(403, "GatedRepo", "Access to this model is restricted")
        elif (content := self.served_hub.repos[repo].get(file)) is None:
            self._refuse(404, "EntryNotFound", "Entry not found")
        else:
            sha256 = hashlib.sha256(content).hexdigest()
            headers = {
                "Location": f"{self.served_hub.store_url}/store/{sha256}",
                "X-Repo-Commit": COMMIT,
                "X-Linked-Etag": f'"{sha256}"',
                "X-Linked-Size": str(len(content)),
                "ETag": f'"{hashlib.sha1(content).hexdigest()}"',
            }
            self._answer(302, headers, b"")

    def _store(self, sha256: str) -> None:
        content = self.served_hub.stored(sha256)
        if content is None:
            self._refuse(404, "", "no such blob")
            return
        headers = {
            "ETag": f'"{sha256}"',
            "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream",
        }
        match = _RANGE.match(self.headers.get("Range", ""))
        start = int(match[1]) if match else 0
        if match:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        if self.command == "GET":
            self.served_hub.ranges.append(start)
        self._answer(206 if match else 200, headers, content[start:])

    def _refuse(self, status: int, code: str, message: str) -> None:
        headers = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {})}
        self._answer(status, headers, json.dumps({"error": message}).encode())

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        limits = self.served_hub.break_after
        if limits and _STORE.match(self.path):
            self.wfile.write(body[: limits.pop(0)])
            self.close_connection = True
        else:
            self.wfile.write(body)
