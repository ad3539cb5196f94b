import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from ingestion_pipeline import demo
from ingestion_pipeline.demo import DEMO_SUFFIX
from ingestion_pipeline.pages.http.guard import (
    Endpoint,
    LocalServer,
    Resolver,
    local_resolver,
    publish,
    running_server,
    withdraw,
)

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
    publish(tmp_path, port, suffix=DEMO_SUFFIX, providers="[]", prices="m=1/1/1")
    server = running_server(tmp_path)
    assert server is not None
    assert (server.providers, server.prices) == ("[]", "m=1/1/1")

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


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "1",
        '{"port": 8123, "suffix": ".test"}',
        '{"port": 0, "pid": 1, "suffix": ".test"}',
        '{"port": 70000, "pid": 1, "suffix": ".test"}',
        '{"port": "8123", "pid": 1, "suffix": ".test"}',
        '{"port": true, "pid": 1, "suffix": ".test"}',
        '{"port": 8123, "pid": 0, "suffix": ".test"}',
        '{"port": 8123, "pid": 99999999999999999999, "suffix": ".test"}',
        '{"port": 8123, "pid": 1}',
        '{"port": 8123, "pid": 1, "suffix": ["a.test"]}',
        '{"port": 8123, "pid": 1, "suffix": ".test", "more": 1}',
    ],
)
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
