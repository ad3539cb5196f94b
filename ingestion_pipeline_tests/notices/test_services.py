"""Mail and the operator's own services, by Apprise, against real receivers on loopback."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO

import pytest

from ingestion_pipeline.store import FixedClock
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.notices.telling import Telling

PASSWORD = "hunter2-secret"


class Postbox:
    """A mail server that takes whatever it is given."""

    def __init__(self) -> None:
        self.mails: list[tuple[list[str], str]] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]

    def serve(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            with peer, peer.makefile("rwb") as lines:
                self._talk(lines)

    def _talk(self, lines: object) -> None:
        said: list[str] = []

        def answer(text: str) -> None:
            lines.write(f"{text}\r\n".encode())  # type: ignore[attr-defined]
            lines.flush()  # type: ignore[attr-defined]

        answer("220 here")
        for raw in lines:  # type: ignore[attr-defined]
            line = raw.decode().strip()
            if line.upper().startswith("RCPT"):
                said.append(line)
            if line.upper() == "DATA":
                answer("354 go on")
                body = b""
                while not body.endswith(b"\r\n.\r\n"):
                    body += lines.readline()  # type: ignore[attr-defined]
                self.mails.append((said, body.decode()))
            answer("221 bye" if line.upper() == "QUIT" else "250 ok")
            if line.upper() == "QUIT":
                return

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@pytest.fixture
def postbox() -> Iterator[Postbox]:
    box = Postbox()
    thread = threading.Thread(target=box.serve, daemon=True)
    thread.start()
    yield box
    box.close()
    thread.join(10)


@contextmanager
def published(telling: Telling, clock: FixedClock) -> Iterator[None]:
    telling.publish(7)
    clock.advance(seconds=15)
    yield


@pytest.mark.parametrize("database", ["sqlite"])
def test_a_mail_goes_to_the_follower_through_the_operators_server(
    telling: Telling, clock: FixedClock, postbox: Postbox
) -> None:
    server = f"127.0.0.1:{postbox.port}"
    telling.urls = [
        "json://127.0.0.1:9/unused",
        f"mailto://{server}/boss@example.org?from=me@example.org&cc=other@example.org&mode=insecure",
    ]
    telling.given_follower("ann", address="mailto:ann@example.org")
    with published(telling, clock):
        telling.deliver()

    [(receivers, mail)] = postbox.mails
    assert [line.partition("<")[2].rstrip(">") for line in receivers] == ["ann@example.org"]
    assert "Solo: Chapter 7" in mail
    assert telling.states() == ["sent"]


@pytest.mark.parametrize("database", ["sqlite"])
def test_what_one_service_took_it_is_not_sent_again_while_another_is_down(
    telling: Telling, clock: FixedClock, web: FakeWeb
) -> None:
    telling.urls = [f"json://{web.host_port}/good", f"json://u:{PASSWORD}@{web.host_port}/bad"]
    web.routes |= {"/good": 200, "/bad": [500, 500, 200]}
    telling.given_follower("ann", address="notify:")
    with published(telling, clock):
        telling.deliver()
    assert telling.states() == ["pending"]
    assert "1 of 2 services did not accept it" in telling.notices()[0].error
    assert PASSWORD not in telling.notices()[0].error
    for _ in range(3):
        clock.advance(minutes=2)
        telling.deliver()

    assert web.paths == ["/good", "/bad", "/bad", "/bad"]
    assert telling.states() == ["sent"]
    first = json.loads(web.requests[0].body)
    assert first["title"] == "Solo: Chapter 7: Part 7"


@pytest.mark.parametrize("database", ["sqlite"])
@pytest.mark.parametrize(
    ("address", "urls", "cure"),
    [
        ("notify:", [], "set INGESTION_NOTIFY_URLS"),
        ("mailto:ann@example.org", ["json://127.0.0.1:9/x"], "add mailto://"),
    ],
)
def test_without_a_service_the_notice_fails_with_the_cure(
    telling: Telling, clock: FixedClock, address: str, urls: list[str], cure: str
) -> None:
    telling.urls = urls
    telling.given_follower("ann", address=address)
    with published(telling, clock):
        telling.deliver()

    assert telling.states() == ["failed"]
    assert cure in telling.notices()[0].error


@pytest.mark.parametrize("database", ["sqlite"])
@pytest.mark.parametrize(
    "url",
    [
        f"tgram://bad/{PASSWORD}",  # Apprise writes the whole URL into its log
        f"json://{PASSWORD}:9/x",  # in many schemes the token stands where a host would
    ],
)
def test_a_services_url_stands_in_no_log_and_in_no_error(
    telling: Telling, clock: FixedClock, request: pytest.FixtureRequest, url: str
) -> None:
    telling.urls = [url]
    log = logging.StreamHandler(StringIO())  # pytest's own hears what does not propagate, too
    logging.getLogger().addHandler(log)
    request.addfinalizer(lambda: logging.getLogger().removeHandler(log))
    telling.given_follower("ann", address="notify:")
    with published(telling, clock):
        telling.deliver()

    assert "1 of 1 services did not accept it" in telling.notices()[0].error
    assert PASSWORD not in telling.notices()[0].error
    assert "delivery failed recipient=ann" in log.stream.getvalue()
    assert PASSWORD not in log.stream.getvalue()
