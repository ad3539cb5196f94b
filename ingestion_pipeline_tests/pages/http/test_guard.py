"""No packet is sent to a refused address, and a local server answers for reserved names alone."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import yaml

from ingestion_pipeline import demo
from ingestion_pipeline.demo import DEMO_SUFFIX
from ingestion_pipeline.pages import Endpoint, Guard, HttpFetcher, Request
from ingestion_pipeline.pages.http.guard import (
    LocalServer,
    Resolver,
    local_resolver,
    publish,
    running_server,
    system_resolver,
    withdraw,
)
from ingestion_pipeline.pages.http.transport import AddressInfo, Connections, GuardedTransport
from ingestion_pipeline.tasks.errors import Permanent, Transient, WorkError
from ingestion_pipeline_tests.fakes import LOOPBACK, FakeResolver, FakeWeb, redirect
from ingestion_pipeline_tests.pages.page_fetches import NOW, failing, fetch_page, run_with_fetcher

CASES = yaml.safe_load((Path(__file__).parent / "expected" / "guard.yaml").read_text(encoding="utf-8"))

PUBLIC, OTHER_PUBLIC = "93.184.216.34", "8.8.8.8"
SITE = Endpoint("127.0.0.1", 8000, is_exempt=True)


def endpoints(guard: Guard, host: str, port: int = 80) -> Sequence[Endpoint]:
    return asyncio.run(guard.endpoints(host, port))


class NoSockets:
    """Replace sockets: record the addresses and refuse every connection."""

    def __init__(self) -> None:
        self.addresses: list[tuple[str, int]] = []

    def __call__(self, info: AddressInfo) -> socket.socket:
        self.addresses.append(info[4][:2])
        raise ConnectionRefusedError(f"no packet leaves for {info[4]}")


def connect(guard: Guard, wire: NoSockets, url: str = "http://a.test/") -> WorkError:
    """Return the error of a request through the real transport without sockets."""

    async def request() -> None:
        connections = Connections(guard, connect_seconds=5, ca_file=None, opened=wire)
        async with aclosing(connections), connections.exchange(url, {}):
            pass

    with pytest.raises(WorkError) as caught:
        asyncio.run(request())
    return caught.value


def test_a_public_name_gives_every_address() -> None:
    guard = Guard(resolve=FakeResolver({"a.test": [[PUBLIC, OTHER_PUBLIC]]}))

    assert endpoints(guard, "a.test") == [Endpoint(PUBLIC, 80), Endpoint(OTHER_PUBLIC, 80)]


@pytest.mark.parametrize("answers", [["10.0.0.1"], [PUBLIC, "127.0.0.1"], ["::1"], [PUBLIC, "x"]])
def test_one_private_answer_blocks_the_name(answers: list[str]) -> None:
    guard = Guard(resolve=FakeResolver({"a.test": [answers]}))

    with failing(Permanent, "blocked_address") as caught:
        endpoints(guard, "a.test", 81)

    for part in ("a.test", answers[-1], "INGESTION_ALLOW_HOSTS", "a.test:81"):
        assert part in str(caught.value)


@pytest.mark.parametrize("host", ["metadata.google.internal", "METADATA.google.internal.", "metadata"])
def test_a_metadata_name_is_refused_without_a_lookup(host: str) -> None:
    resolve = FakeResolver({host: [[PUBLIC]]})

    with failing(Permanent, "blocked_address"):
        endpoints(Guard(frozenset({"metadata:80"}), resolve), host)

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
def test_a_name_without_an_address_is_retried(names: dict[str, list[list[str]]]) -> None:
    with failing(Transient, "dns") as caught:
        endpoints(Guard(resolve=FakeResolver(names)), "a.test")

    assert "a.test" in str(caught.value)


def test_a_label_that_no_name_server_accepts_is_a_dns_failure() -> None:
    with failing(Transient, "dns"):
        endpoints(Guard(), "x" * 64 + ".test")


@pytest.mark.parametrize("form", ["127.0.0.1", "2130706433", "0x7f.1", "0177.0.0.1", "127.1", "::1"])
def test_the_system_resolves_number_forms_and_the_guard_refuses_them(form: str) -> None:
    assert asyncio.run(system_resolver(form, 80))[0].address in {"127.0.0.1", "::1"}
    with pytest.raises(Permanent, match="not public"):
        endpoints(Guard(), form)


def test_dns_rebinding_meets_one_lookup_and_the_checked_address() -> None:
    resolve = FakeResolver({"a.test": [[PUBLIC], ["127.0.0.1"]]})
    wire = NoSockets()

    error = connect(Guard(resolve=resolve), wire)

    assert error.code == "connection"
    assert resolve.lookups == ["a.test"]
    assert wire.addresses == [(PUBLIC, 80)]


def test_nothing_is_connected_when_a_name_turns_private() -> None:
    wire = NoSockets()

    error = connect(Guard(resolve=FakeResolver({"a.test": [[PUBLIC, "169.254.169.254"]]})), wire)

    assert error.code == "blocked_address"
    assert wire.addresses == []


@pytest.mark.parametrize("literal", ["8.8.8.8", "[2606:4700:4700::1111]"])
def test_an_address_literal_is_checked_by_the_guard(literal: str) -> None:
    """The HTTP library calls its resolver only for names."""
    names = {literal.strip("[]"): [["127.0.0.1"]]}
    wire = NoSockets()

    error = connect(Guard(resolve=FakeResolver(names)), wire, f"http://{literal}/")

    assert error.code == "blocked_address"
    assert wire.addresses == []


def test_no_socket_is_opened_for_an_unchecked_address() -> None:
    """In case the HTTP library ever connects to an address that the guard did not return."""
    allowed = FakeResolver({"8.8.8.8": [[OTHER_PUBLIC], [PUBLIC]]})
    wire = NoSockets()

    assert connect(Guard(resolve=allowed), wire, "http://8.8.8.8/").code == "connection"
    assert connect(Guard(resolve=allowed), wire, "http://8.8.8.8/").code == "blocked_address"
    assert wire.addresses == [(OTHER_PUBLIC, 80)]


def test_an_httpx_client_uses_the_same_guard() -> None:
    wire = NoSockets()
    guard = Guard(resolve=FakeResolver({"a.test": [["10.0.0.1"]]}))

    async def request() -> None:
        transport = GuardedTransport(guard, connect_seconds=5, ca_file=None, opened=wire)
        async with httpx.AsyncClient(transport=transport) as client:
            await client.get("http://a.test/")

    with pytest.raises(Permanent):
        asyncio.run(request())
    assert wire.addresses == []


def test_a_redirect_cannot_reach_a_private_host_exempt_for_another_source() -> None:
    with FakeWeb({"/inside": "secret"}) as private, FakeWeb() as public:
        public.routes["/"] = redirect(private.url("/inside"))
        names = FakeResolver({"public.test": [[public.endpoint]], LOOPBACK: [[LOOPBACK]]})
        guard = Guard(frozenset({private.host_port}), names)

        async def fetch_both(fetcher: HttpFetcher) -> None:
            direct = Request(url=private.url("/inside"))
            await fetcher.fetch(direct, now=NOW)  # its connection is kept open
            await fetcher.fetch(Request(url="http://public.test/"), now=NOW)

        with pytest.raises(Permanent) as caught:
            run_with_fetcher(fetch_both, guard)

    assert caught.value.code == "blocked_address"
    assert private.paths == ["/inside"]


def test_a_redirect_within_an_exempt_host_is_followed() -> None:
    with FakeWeb({"/new": "here"}) as web:
        web.routes["/"] = redirect(web.url("/new"))

        assert fetch_page(web).body == b"here"


ELSEWHERE = Endpoint("192.0.2.7", 443)
SERVER = LocalServer(port=8123, pid=1, suffix=DEMO_SUFFIX)


async def fallback_resolver(host: str, port: int) -> Sequence[Endpoint]:
    assert (host, port) == ("example.test", 443)
    return [ELSEWHERE]


def resolve(host: str, port: int, *, fallback: Resolver) -> Sequence[Endpoint]:
    async def ask() -> Sequence[Endpoint]:
        return await local_resolver(SERVER, fallback)(host, port)

    return asyncio.run(ask())


def write_entry(home: Path, text: str) -> Path:
    path = home / "local_server.json"
    path.write_text(text)
    return path


def running_port(home: Path) -> int | None:
    server = running_server(home)
    return None if server is None else server.port


@pytest.fixture
def port() -> Iterator[int]:
    """Return a port with a listening server."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def pid_of_a_dead_process() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


@pytest.mark.parametrize("host", ["feeds.demo.test", "API.MangaDex.Demo.Test", "feeds.demo.test."])
def test_a_demo_name_resolves_to_the_site_on_loopback_past_the_guard(host: str) -> None:
    assert resolve(host, 80, fallback=fallback_resolver) == [Endpoint("127.0.0.1", 8123, is_exempt=True)]


def test_every_other_name_goes_to_the_fallback_with_its_own_port() -> None:
    assert resolve("example.test", 443, fallback=fallback_resolver) == [ELSEWHERE]


@pytest.mark.parametrize("host", ["notdemo.test", "demo.test", "feeds.demo.test.example.com", "feeds.demo.tests"])
def test_a_name_that_only_resembles_the_demo_does_not_pass_the_guard(host: str) -> None:
    async def stranger(_host: str, port: int) -> Sequence[Endpoint]:
        return [Endpoint("192.0.2.1", port)]

    assert resolve(host, 80, fallback=stranger) == [Endpoint("192.0.2.1", 80)]


def test_every_demo_source_and_follower_stays_under_the_reserved_name() -> None:
    files = [yaml.safe_load(path.read_text()) for path in Path(demo.__path__[0]).glob("*.yaml")]

    urls = [source["url"] for file in files for source in file.get("sources", ())]
    urls += [recipient["address"] for file in files for recipient in file.get("recipients", [])]
    hosts = [urlsplit(url).hostname or "" for url in urls]

    assert [host for host in hosts if not SERVER.answers_for(host)] == []
    assert len(hosts) == 22


def test_a_published_port_is_found_until_it_is_withdrawn(tmp_path: Path, port: int) -> None:
    assert running_port(tmp_path) is None

    publish(tmp_path, port, suffix=DEMO_SUFFIX)
    assert running_port(tmp_path) == port

    withdraw(tmp_path)
    assert running_port(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_settings_are_published_with_the_server(tmp_path: Path, port: int) -> None:
    publish(tmp_path, port, suffix=DEMO_SUFFIX, providers="[]", prices="m=1/1/1", profile="/p.yaml")
    server = running_server(tmp_path)
    assert server is not None
    assert (server.providers, server.prices, server.profile) == ("[]", "m=1/1/1", "/p.yaml")

    withdraw(tmp_path)
    assert running_server(tmp_path) is None


def test_the_entry_names_the_process_that_runs_the_site(tmp_path: Path) -> None:
    publish(tmp_path, 8123, suffix=DEMO_SUFFIX)

    entry = json.loads((tmp_path / "local_server.json").read_text())
    assert entry == {"port": 8123, "pid": os.getpid(), "suffix": ".demo.test"}


def test_a_site_whose_process_died_is_not_found(tmp_path: Path, port: int) -> None:
    write_entry(tmp_path, json.dumps({"port": port, "pid": pid_of_a_dead_process(), "suffix": DEMO_SUFFIX}))

    assert running_port(tmp_path) is None


def test_an_entry_whose_process_id_was_reused_is_not_found(tmp_path: Path) -> None:
    """After kill -9 the entry stays, and this process got the number: nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        publish(tmp_path, listener.getsockname()[1], suffix=DEMO_SUFFIX)

    assert running_port(tmp_path) is None


def test_the_entry_of_another_process_is_found_and_not_withdrawn(tmp_path: Path, port: int) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        path = write_entry(tmp_path, json.dumps({"port": port, "pid": other.pid, "suffix": DEMO_SUFFIX}))

        withdraw(tmp_path)

        assert path.exists()
        assert running_port(tmp_path) == port
        other.communicate(b"\n")


def test_withdrawing_an_unpublished_entry_is_not_an_error(tmp_path: Path) -> None:
    withdraw(tmp_path)

    assert running_port(tmp_path) is None


@pytest.mark.parametrize("text", CASES["an_unusable_entry_resolves_to_nothing_and_the_next_site_replaces_it"])
def test_an_unusable_entry_resolves_to_nothing_and_the_next_site_replaces_it(
    tmp_path: Path, port: int, text: str
) -> None:
    write_entry(tmp_path, text)
    assert running_port(tmp_path) is None

    publish(tmp_path, port, suffix=DEMO_SUFFIX)
    assert running_port(tmp_path) == port


@pytest.mark.parametrize("suffix", [".com", "", "test", ".example.org"])
def test_a_server_cannot_answer_for_names_that_may_be_somebody_elses(tmp_path: Path, port: int, suffix: str) -> None:
    publish(tmp_path, port, suffix=suffix)

    assert running_server(tmp_path) is None
