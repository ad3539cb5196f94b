import base64
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ingestion_pipeline.demo.site import DemoSite, Inbox, inbox_file, read_inboxes
from ingestion_pipeline.notices.channels import signature
from ingestion_pipeline_tests.demo.site_requests import Reply, send

HOOK = "http://hooks.demo.test/ann"
SECRETS = {
    "ann": "whsec_" + base64.b64encode(b"a" * 32).decode(),
    "ben": "whsec_" + base64.b64encode(b"b" * 32).decode(),
}
BODY = json.dumps({"title": "Solo: Chapter 7"}).encode()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[DemoSite]:
    with DemoSite(tmp_path, secret_of=SECRETS.get) as site:
        yield site


def signed(message_id: str = "m1", *, secret: str = SECRETS["ann"], age: int = 0) -> dict[str, str]:
    """Return the headers that the sender would write for `BODY`."""
    at = int(time.time()) - age
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(at),
        "webhook-signature": signature(secret, message_id, at, BODY),
    }


def post(site: DemoSite, headers: dict[str, str], *, url: str = HOOK, body: bytes = BODY) -> Reply:
    return send(site, "POST", url, headers, body)


@pytest.mark.slow
def test_a_message_is_stored_once_and_its_repeat_succeeds_even_after_a_restart(tmp_path: Path) -> None:
    statuses: list[int] = []
    for message_id in ("m1", "m1", "m2"):
        with DemoSite(tmp_path, secret_of=SECRETS.get) as site:
            statuses.append(post(site, signed(message_id)).status)

    assert statuses == [200, 200, 200]
    titles = {"m1": "Solo: Chapter 7", "m2": "Solo: Chapter 7"}
    assert read_inboxes(tmp_path) == {"ann": Inbox(taken=titles, repeats=1)}


@pytest.mark.parametrize(
    ("age", "secret", "changed"),
    [
        pytest.param(0, SECRETS["ben"], {}, id="another's key"),
        pytest.param(3_600, SECRETS["ann"], {}, id="an hour old"),
        pytest.param(-3_600, SECRETS["ann"], {}, id="an hour ahead"),
        pytest.param(0, SECRETS["ann"], {"webhook-signature": ""}, id="no signature"),
        pytest.param(0, SECRETS["ann"], {"webhook-id": ""}, id="no id"),
        pytest.param(0, SECRETS["ann"], {"webhook-id": "m2"}, id="another id"),
        pytest.param(0, SECRETS["ann"], {"webhook-timestamp": "now"}, id="no time"),
    ],
)
def test_a_message_that_is_not_genuine_is_refused_and_not_stored(
    site: DemoSite, age: int, secret: str, changed: dict[str, str]
) -> None:
    assert post(site, signed(secret=secret, age=age) | changed).status == 401
    assert read_inboxes(site.home) == {"ann": Inbox(refused=1)}


def test_a_body_that_was_modified_is_refused(site: DemoSite) -> None:
    assert post(site, signed(), body=BODY.replace(b"7", b"8")).status == 401


def test_one_valid_signature_of_several_is_enough(site: DemoSite) -> None:
    headers = signed()
    headers["webhook-signature"] = f"v1,AAAA {headers['webhook-signature']}"

    assert post(site, headers).status == 200


def test_followers_have_inboxes_of_their_own(site: DemoSite) -> None:
    post(site, signed())
    post(site, signed(secret=SECRETS["ben"]), url="http://hooks.demo.test/ben")

    assert {name: len(inbox.taken) for name, inbox in read_inboxes(site.home).items()} == {"ann": 1, "ben": 1}


def test_messages_that_arrive_together_are_all_stored(site: DemoSite) -> None:
    with ThreadPoolExecutor(8) as senders:
        replies = list(senders.map(lambda nth: post(site, signed(f"m{nth}")), range(24)))

    assert {reply.status for reply in replies} == {200}
    assert len(read_inboxes(site.home)["ann"].taken) == 24


@pytest.mark.parametrize(
    ("url", "more", "status"),
    [
        ("http://hooks.demo.test/eve", {}, 404),
        ("http://feeds.demo.test/ann", {}, 405),
        (HOOK, {"Content-Length": "many"}, 411),
        (HOOK, {"Content-Length": "1000001"}, 413),
    ],
    ids=["nobody", "not a hook", "no length", "too long"],
)
def test_an_unexpected_request_is_refused(site: DemoSite, url: str, more: dict[str, str], status: int) -> None:
    assert post(site, signed() | more, url=url).status == status
    assert read_inboxes(site.home) == {}


def test_a_damaged_inbox_stores_nothing_and_returns_an_error(site: DemoSite) -> None:
    inbox_file(site.home).parent.mkdir(exist_ok=True)
    inbox_file(site.home).write_text("[]")

    reply = post(site, signed())

    assert reply.status == 500
    assert "delete it to begin with empty ones" in reply.body.decode()
    assert inbox_file(site.home).read_text() == "[]"
