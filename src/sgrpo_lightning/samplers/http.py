"""JSON over HTTP with one server, and failures told apart: those that may pass, and those that will not."""

from __future__ import annotations

import http.client
import json
import os
import socket
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from sgrpo_lightning.samplers import SamplerError

CONNECT_SECONDS = 10.0
PASSING = (408, 429)  # too slow, too many: of the kind 4xx, and yet worth another try
KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
"""A machine that lost its power says no goodbye: after a minute without a sign of life the connection breaks."""


class Unavailable(SamplerError):
    """No answer, or one of the kind 5xx, or that the server is too busy: it may come back.

    Args:
        status: of the answer; None without one.
    """

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class GivenUp(Unavailable):
    """The server cannot serve this call any more, however long one waits."""


class Refused(SamplerError):
    """An answer of the kind 4xx: the same request would get it again.

    Args:
        status: of the answer.
    """

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class Server:
    """One server. Every request has a connection of its own, so threads may share the object.

    No proxy is asked, whatever the environment says: servers of a cluster are not behind one. The key that
    VLLM_API_KEY holds, if it is set, is sent along.

    Args:
        url: http://host:port, or https, with or without a path in front of the server's own.
        timeout: seconds that a request may take.
    """

    def __init__(self, url: str, *, timeout: float) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"sampler.urls must hold addresses as http://host:8000, got {url!r}")
        self.url, self.timeout, self.host = url.rstrip("/"), timeout, parts.hostname
        self._port, self._path = parts.port, parts.path.rstrip("/")
        self._connection = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection

    def get(self, path: str, *, timeout: float | None = None) -> Any:
        """What it answers, read as JSON; None for an empty answer."""
        return self._ask("GET", path, None, timeout)

    def post(self, path: str, body: Any = None, *, timeout: float | None = None) -> Any:
        """What it answers, read as JSON; None for an empty answer.

        Args:
            body: sent as JSON; None sends nothing.
            timeout: seconds, where they are not those of the server.
        """
        return self._ask("POST", path, body, timeout)

    def _ask(self, method: str, path: str, body: Any, timeout: float | None) -> Any:
        connection = self._connection(self.host, self._port, timeout=CONNECT_SECONDS)
        try:
            connection.connect()
            _keep_alive(connection.sock, timeout or self.timeout)
            payload = None if body is None else json.dumps(body).encode()
            connection.request(method, self._path + path, body=payload, headers=_headers())
            response = connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"{self.url}{path}: {type(error).__name__}: {error}") from error
        finally:
            connection.close()
        return self._read(path, response.status, text)

    def _read(self, path: str, status: int, text: bytes) -> Any:
        said = f"{self.url}{path} answered {status}: {_message(text)}"
        if status >= 500 or status in PASSING:
            raise Unavailable(said, status=status)
        if status >= 400:
            raise Refused(said, status=status)
        return json.loads(text) if text else None


def _keep_alive(sock: socket.socket, timeout: float) -> None:
    sock.settimeout(timeout)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE:
        if hasattr(socket, name):  # not everywhere
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _headers() -> dict[str, str]:
    key = os.environ.get("VLLM_API_KEY")
    return {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})


def _message(text: bytes) -> str:
    """What an error says, in one line."""
    said = text.decode(errors="replace")
    with suppress(ValueError, KeyError, TypeError):
        said = json.loads(said)["error"]["message"]
    return " ".join(str(said).split())[:500]
