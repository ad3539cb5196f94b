"""Mail and the operator's own services, by Apprise, against real receivers on loopback."""

import json
import logging
import socket
import threading
from collections.abc import Iterator
from io import StringIO

import pytest

from ingestion_pipeline.store import FixedClock
from ingestion_pipeline_tests.notices.notice_harness import NoticeHarness

PASSWORD = "hunter2-secret"


class FakeMailServer:
    """A mail server that accepts every mail."""

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
        recipients: list[str] = []

        def answer(text: str) -> None:
            lines.write(f"{text}\r\n".encode())  # type: ignore[attr-defined]
            lines.flush()  # type: ignore[attr-defined]

        answer("220 here")
        for raw in lines:  # type: ignore[attr-defined]
            line = raw.decode().strip()
            if line.upper().startswith("RCPT"):
                recipients.append(line)
            if line.upper() == "DATA":
                answer("354 continue")
                body = b""
                while not body.endswith(b"\r\n.\r\n"):
                    body += lines.readline()  # type: ignore[attr-defined]
                self.mails.append((recipients, body.decode()))
            answer("221 bye" if line.upper() == "QUIT" else "250 ok")
            if line.upper() == "QUIT":
                return

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@pytest.fixture
def mail_server() -> Iterator[FakeMailServer]:
    server = FakeMailServer()
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    yield server
    server.close()
    thread.join(10)


def publish_chapter(harness: NoticeHarness, clock: FixedClock) -> None:
    harness.publish(7)
    clock.advance(seconds=15)


@pytest.mark.slow
def test_a_mail_is_sent_to_the_follower_through_the_operators_server(
    harness: NoticeHarness, clock: FixedClock, mail_server: FakeMailServer
) -> None:
    server = f"127.0.0.1:{mail_server.port}"
    harness.urls = [
        "json://127.0.0.1:9/unused",
        f"mailto://{server}/boss@example.org?from=me@example.org&cc=other@example.org&mode=insecure",
    ]
    harness.add_follower("ann", address="mailto:ann@example.org")
    publish_chapter(harness, clock)
    harness.deliver()

    [(receivers, mail)] = mail_server.mails
    assert [line.partition("<")[2].rstrip(">") for line in receivers] == ["ann@example.org"]
    assert "Solo: Chapter 7" in mail
    assert harness.states() == ["sent"]


@pytest.mark.slow
def test_a_service_that_accepted_a_message_is_not_sent_it_again_while_another_is_down(harness: NoticeHarness) -> None:
    harness.urls = [f"json://{harness.web.host_port}/good", f"json://u:{PASSWORD}@{harness.web.host_port}/bad"]
    harness.web.routes |= {"/good": 200, "/bad": [500, 500, 200]}
    harness.add_follower("ann", address="notify:")
    publish_chapter(harness, harness.clock)
    harness.deliver()
    assert harness.states() == ["pending"]
    assert "1 of 2 services did not accept it" in harness.notices()[0].error
    assert PASSWORD not in harness.notices()[0].error
    for _ in range(3):
        harness.deliver_after(minutes=2)

    assert harness.web.paths == ["/good", "/bad", "/bad", "/bad"]
    assert harness.states() == ["sent"]
    first = json.loads(harness.web.requests[0].body)
    assert first["title"] == "Solo: Chapter 7: Part 7"


@pytest.mark.parametrize(
    ("address", "urls", "cure"),
    [
        ("notify:", [], "set INGESTION_NOTIFY_URLS"),
        ("mailto:ann@example.org", ["json://127.0.0.1:9/x"], "add mailto://"),
    ],
)
def test_without_a_service_the_notice_fails_with_the_cure(
    harness: NoticeHarness, clock: FixedClock, address: str, urls: list[str], cure: str
) -> None:
    harness.urls = urls
    harness.add_follower("ann", address=address)
    publish_chapter(harness, clock)
    harness.deliver()

    assert harness.states() == ["failed"]
    assert cure in harness.notices()[0].error


@pytest.mark.parametrize(
    "url",
    [
        f"tgram://bad/{PASSWORD}",  # Apprise writes the whole URL into its log
        f"json://{PASSWORD}:9/x",  # in many schemes the token is in the place of the host
    ],
)
def test_a_services_url_is_never_logged_or_in_an_error(
    harness: NoticeHarness, clock: FixedClock, request: pytest.FixtureRequest, url: str
) -> None:
    harness.urls = [url]
    log = logging.StreamHandler(StringIO())  # pytest's own handler also records what does not propagate
    logging.getLogger().addHandler(log)
    request.addfinalizer(lambda: logging.getLogger().removeHandler(log))
    harness.add_follower("ann", address="notify:")
    publish_chapter(harness, clock)
    harness.deliver()

    assert "1 of 1 services did not accept it" in harness.notices()[0].error
    assert PASSWORD not in harness.notices()[0].error
    assert "delivery failed recipient=ann" in log.stream.getvalue()
    assert PASSWORD not in log.stream.getvalue()
