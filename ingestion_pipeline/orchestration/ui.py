"""Dagster's UI behind a guard: it has no login, and any web page may send requests to loopback.

`python -m ingestion_pipeline.orchestration.ui ...` takes the arguments of `dagster-webserver`; with
`dev` first, those of `dagster dev`. Refused are names that are not ours (DNS rebinding), requests
that another site's page sends, and GraphQL by GET, which Dagster would run, mutations included.
"""

import sys
from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ingestion_pipeline.settings import load_settings

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_GRAPHQL = "/graphql"
_READS = frozenset({"GET", "HEAD"})
_FOREIGN = frozenset({"cross-site", "same-site"})  # another port of this machine is same-site
_POLICY_VIOLATION = 1008


def refusal(scope: Scope, hosts: Collection[str]) -> str | None:
    """Return why a request is refused; None if it may pass."""
    headers = Headers(scope=scope)
    host = headers.get("host", "")
    if _name(host) not in hosts:
        cure = "if it is yours, add its name to INGESTION_UI_HOSTS"
        return f"the host {host[:100]!r} is not served here; {cure}"
    if (origin := headers.get("origin")) is not None and origin.partition("://")[2] != host:
        return f"requests from {origin[:100]!r} are refused"
    is_query = str(scope["path"]).rstrip("/").endswith(_GRAPHQL)
    is_read = scope["type"] == "http" and scope["method"] in _READS
    if is_read and not is_query:
        return None
    if headers.get("sec-fetch-site") in _FOREIGN:
        return "requests from another site are refused"
    if is_read and any(name == "query" for name, _ in parse_qsl(scope["query_string"].decode())):
        return "GraphQL by GET is refused; use POST"
    return None


def _name(host: str) -> str:
    """Return the host of a Host header without its port, in lower case."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


class RequestGuard:
    """ASGI middleware that answers refused requests with 403."""

    def __init__(self, app: ASGIApp, *, hosts: Collection[str]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        reason = None if scope["type"] == "lifespan" else refusal(scope, self._hosts)
        if reason is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": reason})
        else:
            await PlainTextResponse(reason, status_code=403)(scope, receive, send)


def served_names(environment: Mapping[str, str] | None = None) -> frozenset[str]:
    """Return the names under which the UI may be asked for."""
    return LOOPBACK_NAMES | load_settings(environment).ui_names


def serve() -> None:
    """Run `dagster-webserver` with the guard in front."""
    from dagster_webserver.cli import main
    from dagster_webserver.webserver import DagsterWebserver

    server: Any = DagsterWebserver
    guard, build = Middleware(RequestGuard, hosts=served_names()), server.build_middleware
    server.build_middleware = lambda webserver: [guard, *build(webserver)]
    main()


def develop() -> None:
    """Run `dagster dev`, whose default is loopback, with `serve` as its webserver."""
    dev: Any = import_module("dagster._cli.dev")
    start = dev.open_ipc_subprocess

    def start_guarded(command: Sequence[str], **more: Any) -> Any:  # noqa: ANN401 - Dagster's own
        ours = [__spec__.name if part == "dagster_webserver" else part for part in command]
        return start(ours, **more)

    dev.open_ipc_subprocess = start_guarded
    import_module("dagster._cli").main()


if __name__ == "__main__":
    (develop if sys.argv[1:2] == ["dev"] else serve)()
