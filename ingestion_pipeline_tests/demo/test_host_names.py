from __future__ import annotations

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
from ingestion_pipeline.demo.host_names import (
    demo_resolver,
    is_demo_name,
    publish,
    published_port,
    published_providers,
    withdraw,
)
from ingestion_pipeline.pages.http.guard import Endpoint, Resolver

ELSEWHERE = Endpoint("192.0.2.7", 443)


async def the_rest_of_the_web(host: str, port: int) -> Sequence[Endpoint]:
    assert (host, port) == ("example.test", 443)
    return [ELSEWHERE]


def resolved(host: str, port: int, *, fallback: Resolver) -> Sequence[Endpoint]:
    async def ask() -> Sequence[Endpoint]:
        return await demo_resolver(8123, fallback)(host, port)

    return asyncio.run(ask())


def write_entry(home: Path, text: str) -> Path:
    path = home / "demo" / "site.json"
    path.parent.mkdir()
    path.write_text(text)
    return path


@pytest.fixture
def port() -> Iterator[int]:
    """Where somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def pid_of_a_dead_process() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


@pytest.mark.parametrize("host", ["feeds.demo.test", "API.MangaDex.Demo.Test", "feeds.demo.test."])
def test_a_demo_name_leads_to_the_site_on_loopback_past_the_guard(host: str) -> None:
    assert resolved(host, 80, fallback=the_rest_of_the_web) == [Endpoint("127.0.0.1", 8123, is_exempt=True)]


def test_every_other_name_goes_to_the_fallback_with_its_own_port() -> None:
    assert resolved("example.test", 443, fallback=the_rest_of_the_web) == [ELSEWHERE]


@pytest.mark.parametrize("host", ["notdemo.test", "demo.test", "feeds.demo.test.example.com", "feeds.demo.tests"])
def test_a_name_that_only_looks_like_the_demo_is_not_let_past_the_guard(host: str) -> None:
    async def stranger(_host: str, port: int) -> Sequence[Endpoint]:
        return [Endpoint("192.0.2.1", port)]

    assert resolved(host, 80, fallback=stranger) == [Endpoint("192.0.2.1", 80)]


def test_every_demo_source_and_follower_stays_under_the_reserved_name() -> None:
    files = [yaml.safe_load(one.read_text()) for one in Path(demo.__path__[0]).glob("*.yaml")]

    urls = [one["url"] for file in files for one in file.get("sources", ())]
    urls += [one["address"] for file in files for one in file.get("recipients", [])]
    hosts = [urlsplit(url).hostname or "" for url in urls]

    assert [host for host in hosts if not is_demo_name(host)] == []
    assert len(hosts) == 22


def test_a_published_port_is_found_until_it_is_withdrawn(tmp_path: Path, port: int) -> None:
    assert published_port(tmp_path) is None

    publish(tmp_path, port)
    assert published_port(tmp_path) == port

    withdraw(tmp_path)
    assert published_port(tmp_path) is None
    assert list((tmp_path / "demo").iterdir()) == []


def test_providers_are_found_with_the_site_they_run_beside(tmp_path: Path, port: int) -> None:
    publish(tmp_path, port, providers={"almanac": "http://127.0.0.1:1/v1"})
    assert published_providers(tmp_path) == {"almanac": "http://127.0.0.1:1/v1"}

    withdraw(tmp_path)
    assert published_providers(tmp_path) == {}


def test_the_entry_names_the_process_that_runs_the_site(tmp_path: Path) -> None:
    publish(tmp_path, 8123)

    entry = json.loads((tmp_path / "demo" / "site.json").read_text())
    assert entry == {"port": 8123, "pid": os.getpid()}


def test_a_site_whose_process_died_is_not_found(tmp_path: Path, port: int) -> None:
    write_entry(tmp_path, json.dumps({"port": port, "pid": pid_of_a_dead_process()}))

    assert published_port(tmp_path) is None


def test_an_entry_whose_process_number_now_means_another_process_is_not_found(tmp_path: Path) -> None:
    """After kill -9 the entry stays, and this process got the number: nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        publish(tmp_path, listener.getsockname()[1])

    assert published_port(tmp_path) is None


def test_another_process_is_found_and_its_entry_is_not_ours_to_withdraw(tmp_path: Path, port: int) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        path = write_entry(tmp_path, json.dumps({"port": port, "pid": other.pid}))

        withdraw(tmp_path)

        assert path.exists()
        assert published_port(tmp_path) == port
        other.communicate(b"\n")


def test_withdrawing_what_was_never_published_is_no_error(tmp_path: Path) -> None:
    withdraw(tmp_path)

    assert published_port(tmp_path) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"port": 8123}',
        '{"port": 0, "pid": 1}',
        '{"port": 70000, "pid": 1}',
        '{"port": "8123", "pid": 1}',
        '{"port": 8123, "pid": 0}',
        '{"port": 8123, "pid": 99999999999999999999}',
    ],
)
def test_an_unusable_entry_leads_nowhere_and_the_next_site_replaces_it(tmp_path: Path, port: int, text: str) -> None:
    write_entry(tmp_path, text)
    assert published_port(tmp_path) is None

    publish(tmp_path, port)
    assert published_port(tmp_path) == port
