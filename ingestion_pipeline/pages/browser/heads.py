"""Heads of HTTP messages as a proxy reads and rewrites them; nothing is understood twice.

Hop-by-hop headers go, so no connection outlives its one exchange and none is upgraded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple, Self
from urllib.parse import urlsplit

_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "te", "trailer", "upgrade", "http2-settings"}
    | {"proxy-authenticate", "proxy-authorization", "proxy-connection"}
)
_REQUEST_LINE = re.compile(r"([A-Z]{3,16}) (\S+) HTTP/1\.[01]")
_STATUS_LINE = re.compile(r"HTTP/1\.[01] ([1-5][0-9]{2})(?: .*)?")
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]]+):([0-9]{1,5})")
_LAST_PORT = 65_535


class BadHead(ValueError):
    """Not a message that a proxy forwards."""


class Target(NamedTuple):
    """Where a request wants to go; `host` without brackets."""

    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A first line and its headers, in order."""

    line: str
    headers: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """The head that `data` is, blank line included."""
        line, *rest = data.decode("latin-1").rstrip("\r\n").split("\r\n")
        if any(":" not in one or one[0] in " \t:" for one in rest):
            raise BadHead("a header without a name")
        pairs = (one.partition(":") for one in rest)
        return cls(line=line, headers=tuple((name, value.strip()) for name, _, value in pairs))

    def header(self, name: str) -> str | None:
        """The first value under `name`, which is lower case."""
        return next((value for key, value in self.headers if key.lower() == name), None)

    @property
    def status(self) -> int:
        """The status code of an answer."""
        found = _STATUS_LINE.fullmatch(self.line)
        if found is None:
            raise BadHead("not the status line of HTTP/1")
        return int(found[1])

    @property
    def body_bytes(self) -> int:
        """How long a request's body is; a browser knows it beforehand over HTTP/1."""
        if self.header("transfer-encoding") is not None:
            raise BadHead("a request of unknown length")
        length = self.header("content-length") or "0"
        if not re.fullmatch("[0-9]{1,12}", length):
            raise BadHead("a length that is no number")
        return int(length)

    @property
    def is_tunnel(self) -> bool:
        """Whether a request asks for a connection of its own: TLS and web sockets do."""
        return self.line.startswith("CONNECT ")

    def target(self) -> Target:
        """Where a request goes to, by its first line; the Host header has no say."""
        found = _REQUEST_LINE.fullmatch(self.line)
        if found is None:
            raise BadHead("not a request line of HTTP/1")
        if found[1] == "CONNECT":
            return _target(found[2])
        try:
            url = urlsplit(found[2])
        except ValueError:
            raise BadHead("no URL") from None
        if url.scheme != "http" or "@" in url.netloc:
            raise BadHead("only plain http:// is asked for like this")
        return _target(url.netloc if _AUTHORITY.fullmatch(url.netloc) else f"{url.netloc}:80")

    def forwarded(self) -> bytes:
        """The request as its server wants it: the path alone, and one exchange per connection."""
        method, url, _ = self.line.split(" ")
        parts = urlsplit(url)
        path = url[len(f"{parts.scheme}://{parts.netloc}") :] or "/"
        path = path if path.startswith("/") else f"/{path}"
        kept = [(k, v) for k, v in self._kept() if k.lower() != "host"]
        return _wire(f"{method} {path} HTTP/1.1", [("Host", parts.netloc), *kept])

    def returned(self) -> bytes:
        """The answer as the browser gets it: it must not reuse the connection."""
        return _wire(self.line, self._kept())

    def _kept(self) -> list[tuple[str, str]]:
        named = (self.header("connection") or "").lower()
        gone = _HOP_BY_HOP | {part.strip() for part in named.split(",")}
        return [(name, value) for name, value in self.headers if name.lower() not in gone]


def _target(authority: str) -> Target:
    found = _AUTHORITY.fullmatch(authority)
    if found is None or not 0 < int(found[2]) <= _LAST_PORT:
        raise BadHead("no host and port")
    return Target(found[1].strip("[]").lower(), int(found[2]))


def _wire(line: str, headers: list[tuple[str, str]]) -> bytes:
    lines = [line, *(f"{name}: {value}" for name, value in headers), "Connection: close", "", ""]
    return "\r\n".join(lines).encode("latin-1")
