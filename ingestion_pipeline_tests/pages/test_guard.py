"""No packet leaves for a refused address: the guard decides on what a name resolves to, once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import httpcore
import pytest

from ingestion_pipeline.pages import Endpoint, Guard
from ingestion_pipeline.pages.guard import system_resolver
from ingestion_pipeline.pages.transport import GuardedBackend
from ingestion_pipeline.work.errors import Permanent, Transient
from ingestion_pipeline_tests.fakes import FakeResolver

PUBLIC, OTHER_PUBLIC = "93.184.216.34", "8.8.8.8"
SITE = Endpoint("127.0.0.1", 8000, is_exempt=True)


def endpoints(guard: Guard, host: str, port: int = 80) -> Sequence[Endpoint]:
    return asyncio.run(guard.endpoints(host, port))


class RecordingBackend(httpcore.AsyncNetworkBackend):
    """Stands where packets would leave; remembers where to."""

    def __init__(self) -> None:
        self.connected: list[tuple[str, int]] = []

    async def connect_tcp(
        self, host: str, port: int, *args: Any, **kwargs: Any
    ) -> httpcore.AsyncNetworkStream:
        self.connected.append((host, port))
        return httpcore.AsyncNetworkStream()


def test_a_public_name_gives_every_address() -> None:
    guard = Guard(resolve=FakeResolver({"a.test": [[PUBLIC, OTHER_PUBLIC]]}))

    assert endpoints(guard, "a.test") == [Endpoint(PUBLIC, 80), Endpoint(OTHER_PUBLIC, 80)]


@pytest.mark.parametrize("answers", [["10.0.0.1"], [PUBLIC, "127.0.0.1"], ["::1"], [PUBLIC, "x"]])
def test_one_private_answer_blocks_the_name(answers: list[str]) -> None:
    guard = Guard(resolve=FakeResolver({"a.test": [answers]}))

    with pytest.raises(Permanent) as caught:
        endpoints(guard, "a.test", 81)

    assert caught.value.code == "blocked_address"
    for part in ("a.test", answers[-1], "INGESTION_ALLOW_HOSTS", "a.test:81"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "host", ["metadata.google.internal", "METADATA.google.internal.", "metadata"]
)
def test_a_metadata_name_is_refused_without_a_lookup(host: str) -> None:
    resolve = FakeResolver({host: [[PUBLIC]]})

    with pytest.raises(Permanent) as caught:
        endpoints(Guard(frozenset({"metadata:80"}), resolve), host)

    assert caught.value.code == "blocked_address"
    assert resolve.lookups == []


def test_an_allowed_host_is_allowed_at_its_port_alone() -> None:
    guard = Guard(frozenset({"Inside.test:8080"}), FakeResolver({"inside.test": [["10.0.0.1"]]}))

    assert endpoints(guard, "inside.test", 8080) == [Endpoint("10.0.0.1", 8080)]
    with pytest.raises(Permanent):
        endpoints(guard, "inside.test", 8081)


def test_an_allowed_ipv6_literal_is_written_with_brackets() -> None:
    guard = Guard(frozenset({"[::1]:8080"}))

    assert endpoints(guard, "::1", 8080) == [Endpoint("::1", 8080)]


def test_an_exempt_endpoint_needs_no_allowance() -> None:
    guard = Guard(resolve=FakeResolver({"a.demo.test": [[SITE]]}))

    assert endpoints(guard, "a.demo.test", 443) == [SITE]


def test_an_exempt_endpoint_does_not_cover_for_a_private_one() -> None:
    guard = Guard(resolve=FakeResolver({"a.test": [[SITE, "10.0.0.1"]]}))

    with pytest.raises(Permanent):
        endpoints(guard, "a.test")


@pytest.mark.parametrize("names", [{}, {"a.test": [[]]}], ids=["unknown", "no address"])
def test_a_name_without_address_is_tried_again(names: dict[str, list[list[str]]]) -> None:
    with pytest.raises(Transient) as caught:
        endpoints(Guard(resolve=FakeResolver(names)), "a.test")

    assert caught.value.code == "dns"
    assert "a.test" in str(caught.value)


def test_a_label_that_no_name_server_takes_is_a_dns_failure() -> None:
    with pytest.raises(Transient) as caught:
        endpoints(Guard(), "x" * 64 + ".test")

    assert caught.value.code == "dns"


@pytest.mark.parametrize(
    "form", ["127.0.0.1", "2130706433", "0x7f.1", "0177.0.0.1", "127.1", "::1"]
)
def test_the_system_resolves_number_forms_and_the_guard_refuses_them(form: str) -> None:
    assert asyncio.run(system_resolver(form, 80))[0].address in {"127.0.0.1", "::1"}
    with pytest.raises(Permanent, match="not public"):
        endpoints(Guard(), form)


def test_rebinding_finds_one_lookup_and_the_checked_address() -> None:
    resolve = FakeResolver({"a.test": [[PUBLIC], ["127.0.0.1"]]})
    wire = RecordingBackend()

    asyncio.run(GuardedBackend(Guard(resolve=resolve), wire).connect_tcp("a.test", 80))

    assert resolve.lookups == ["a.test"]
    assert wire.connected == [(PUBLIC, 80)]


def test_nothing_is_connected_when_a_name_turns_private() -> None:
    resolve = FakeResolver({"a.test": [[PUBLIC, "169.254.169.254"]]})
    wire = RecordingBackend()

    with pytest.raises(Permanent):
        asyncio.run(GuardedBackend(Guard(resolve=resolve), wire).connect_tcp("a.test", 80))

    assert wire.connected == []
