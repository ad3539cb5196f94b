"""The UI answers its own pages and commands, and no page of another site."""

import asyncio
from collections.abc import Sequence

import pytest
from starlette.types import Message, Scope

from ingestion_pipeline.orchestration.ui import RequestGuard, served_names

OURS = "localhost:3000"
MUTATION = b"query=mutation+%7B+launchRun+%7D"


def status_of(
    path: str = "/graphql",
    *,
    method: str = "POST",
    host: str = OURS,
    query: bytes = b"",
    kind: str = "http",
    names: str = "",
    **headers: str,
) -> int | str:
    """Return the status, or how a websocket is refused; 200 if it was passed on."""
    sent: list[Message] = []

    async def app(scope: Scope, receive: object, send: object) -> None:
        sent.append({"type": "http.response.start", "status": 200})

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    request_headers = {"host": host} | {name.replace("_", "-"): value for name, value in headers.items()}
    scope: Scope = {
        "type": kind,
        "method": method,
        "path": path,
        "query_string": query,
        "headers": [(name.encode(), value.encode()) for name, value in request_headers.items()],
    }
    guard = RequestGuard(app, hosts=served_names({"INGESTION_UI_HOSTS": names}))
    asyncio.run(guard(scope, receive, send))
    return sent[0].get("status") or sent[0]["type"]


@pytest.mark.parametrize("host", [OURS, "127.0.0.1:3000", "[::1]:3000", "LOCALHOST", "localhost"])
def test_our_own_pages_and_commands_are_accepted(host: str) -> None:
    assert status_of(host=host) == 200
    assert status_of(host=host, origin=f"http://{host}", sec_fetch_site="same-origin") == 200
    assert status_of("/runs", host=host, method="GET", sec_fetch_site="none") == 200
    assert status_of(host=host, kind="websocket", origin=f"http://{host}") == 200


@pytest.mark.parametrize("host", ["evil.test:3000", "localhost.evil.test", "10.0.0.7:3000", "", "["])
def test_a_foreign_host_name_is_refused_against_dns_rebinding(host: str) -> None:
    assert status_of("/", host=host, method="GET") == 403
    assert status_of(host=host) == 403


def test_the_host_name_of_a_proxy_is_accepted_once_configured() -> None:
    name, origin = "ui.example.test", "https://ui.example.test"

    assert status_of(host=name, origin=origin) == 403
    assert status_of(host=name, origin=origin, names="UI.example.test") == 200


def test_a_mutation_by_get_is_refused_whoever_sends_it() -> None:
    """An image on any page sends it: without Origin, and in old browsers without Sec-Fetch-Site."""
    assert status_of(method="GET", query=MUTATION) == 403
    assert status_of(method="GET", query=MUTATION, sec_fetch_site="none") == 403
    assert status_of("/prefix/graphql/", method="GET", query=MUTATION) == 403
    assert status_of(method="GET") == 200  # the page to try queries on


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize("origin", ["https://evil.test", "http://localhost:8000", "http://127.0.0.1:3000", "null"])
def test_a_page_of_another_origin_is_refused(kind: str, origin: str) -> None:
    refused: Sequence[int | str] = (403, "websocket.close")

    assert status_of(kind=kind, origin=origin) in refused
    assert status_of("/report_asset_materialization/x", kind=kind, origin=origin) in refused


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_cross_site_request_is_refused_unless_it_only_opens_a_page(site: str) -> None:
    assert status_of(sec_fetch_site=site) == 403
    assert status_of(method="GET", sec_fetch_site=site) == 403
    assert status_of("/assets", method="GET", sec_fetch_site=site) == 200
