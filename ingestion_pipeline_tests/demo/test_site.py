"""The demo's site: its state, series and webhooks."""

import base64
import json
import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree as ET

import pytest
import yaml

from ingestion_pipeline import demo
from ingestion_pipeline.demo.commands import demo_file
from ingestion_pipeline.demo.content import (
    LIGHTHOUSE_ID,
    SALT_ID,
    DemoState,
    DemoStateError,
    break_site,
    mutate,
    read_state,
    repair,
    state_file,
    write_state,
)
from ingestion_pipeline.demo.site import DemoSite, Inbox, inbox_file, page_at, read_inboxes
from ingestion_pipeline.notices.channels import signature
from ingestion_pipeline.pages.http.guard import running_server
from ingestion_pipeline.pages.http.request import Request
from ingestion_pipeline.reading.structured.items import ParsedFeed
from ingestion_pipeline.series.chapter import Release
from ingestion_pipeline.series.platforms import platform
from ingestion_pipeline_tests.demo.site_requests import Reply, all_chapters, get, manga_feed, send

SOURCES = yaml.safe_load(Path(demo.__path__[0], "sources.yaml").read_text())["sources"]
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
ATOM = {"atom": "http://www.w3.org/2005/Atom"}
ORCHARD = "http://flaky.demo.test/orchard.xml"
LIGHTHOUSE_FEED = "http://feeds.demo.test/lighthouse.xml"
SALT_FEED = "http://feeds.demo.test/salt.atom"


def test_the_lighthouse_feed_lists_the_newest_ten_numbers_newest_first(site: DemoSite) -> None:
    reply = get(site, LIGHTHOUSE_FEED)

    assert reply.headers.get_content_type() == "application/rss+xml"
    assert len(reply.titles) == 10
    assert reply.titles[0] == "The Lighthouse Keeper Chapter 22: The Keeper's Daughter"
    assert "The Lighthouse Keeper Chapter 17: Bread & Brine" in reply.titles


def test_the_salt_feed_is_atom_with_twelve_dated_entries(site: DemoSite) -> None:
    reply = get(site, SALT_FEED)

    entries = ET.fromstring(reply.body).findall("atom:entry", ATOM)
    assert reply.headers.get_content_type() == "application/atom+xml"
    assert len(entries) == 12
    assert entries[0].findtext("atom:title", "", ATOM) == "Salt and Iron Ch. 12: What the Anvil Heard"
    assert entries[0].findtext("atom:published", "", ATOM) == "2026-09-20T09:00:00+00:00"


@pytest.mark.parametrize("url", [LIGHTHOUSE_FEED, SALT_FEED])
@pytest.mark.parametrize(
    ("validator", "condition"), [("ETag", "If_None_Match"), ("Last-Modified", "If_Modified_Since")]
)
def test_a_current_copy_is_answered_with_304(site: DemoSite, url: str, validator: str, condition: str) -> None:
    first = get(site, url)

    second = get(site, url, **{condition: first.headers[validator]})

    assert (second.status, second.body) == (304, b"")
    assert second.headers["ETag"] == first.headers["ETag"]


@pytest.mark.parametrize(
    "headers",
    [
        {"If_None_Match": '"another"'},
        {"If_Modified_Since": "Thu, 01 Jan 2026 00:00:00 GMT"},
        {"If_Modified_Since": "yesterday"},
        {"If_None_Match": '"another"', "If_Modified_Since": "Fri, 01 Jan 2100 00:00:00 GMT"},
    ],
    ids=["other tag", "older date", "no date", "a tag outweighs a date"],
)
def test_an_outdated_copy_is_sent_again(site: DemoSite, headers: dict[str, str]) -> None:
    assert get(site, LIGHTHOUSE_FEED, **headers).status == 200


def test_a_weak_tag_in_a_list_of_tags_is_recognised(site: DemoSite) -> None:
    tag = get(site, LIGHTHOUSE_FEED).headers["ETag"]

    assert get(site, LIGHTHOUSE_FEED, If_None_Match=f'"other", W/{tag}').status == 304


def test_a_restarted_site_sends_the_same_bytes_under_the_same_tag(tmp_path: Path) -> None:
    with DemoSite(tmp_path) as site:
        before = [get(site, LIGHTHOUSE_FEED), manga_feed(site, LIGHTHOUSE_ID)]
    with DemoSite(tmp_path) as site:
        after = [get(site, LIGHTHOUSE_FEED), manga_feed(site, LIGHTHOUSE_ID)]

    assert [reply.body for reply in before] == [reply.body for reply in after]
    assert before[0].headers["ETag"] == after[0].headers["ETag"]


def test_a_running_site_shows_a_mutation_in_the_api_and_in_the_feed(site: DemoSite) -> None:
    before, feed_before = all_chapters(site, 100), get(site, LIGHTHOUSE_FEED)

    write_state(site.home, mutate(DemoState()))
    after = all_chapters(site, 100)
    feed = get(site, LIGHTHOUSE_FEED, If_None_Match=feed_before.headers["ETag"])

    assert after[:-1] == before
    assert after[-1]["attributes"]["chapter"] == "23"
    assert feed.status == 200
    assert str(feed.titles[0]).startswith("The Lighthouse Keeper Chapter 23: ")
    assert feed.titles[1:] == feed_before.titles[:-1]


def test_a_mutation_moves_the_date_of_the_feed_forward(site: DemoSite) -> None:
    before = get(site, LIGHTHOUSE_FEED).headers["Last-Modified"]
    write_state(site.home, mutate(DemoState()))

    reply = get(site, LIGHTHOUSE_FEED, If_Modified_Since=before)

    assert reply.status == 200
    assert parsedate_to_datetime(reply.headers["Last-Modified"]) > parsedate_to_datetime(before)


def test_the_orchard_fails_twice_after_each_start_of_the_site(tmp_path: Path) -> None:
    site = DemoSite(tmp_path)
    for _start in range(2):
        with site:
            replies = [get(site, ORCHARD) for _ in range(4)]

        assert [reply.status for reply in replies] == [503, 503, 200, 200]
        assert "Retry-After" not in replies[0].headers
        assert len(replies[2].titles) == 8


def test_other_requests_do_not_use_up_the_orchard_s_failures(site: DemoSite) -> None:
    get(site, "http://flaky.demo.test/robots.txt")
    get(site, LIGHTHOUSE_FEED)

    assert [get(site, ORCHARD).status for _ in range(3)] == [503, 503, 200]


def test_a_broken_site_serves_an_error_page_and_an_empty_feed(site: DemoSite) -> None:
    before = [get(site, ORCHARD) for _ in range(3)][-1]

    write_state(site.home, break_site(DemoState()))
    after = get(site, ORCHARD, If_None_Match=before.headers["ETag"])
    salt = manga_feed(site, SALT_ID).json
    write_state(site.home, repair(break_site(DemoState())))

    assert (after.status, after.headers.get_content_type()) == (200, "text/html")
    assert (salt["result"], salt["total"], salt["data"]) == ("ok", 0, [])
    assert get(site, ORCHARD).body == before.body
    assert manga_feed(site, SALT_ID).json["total"] == 12


def test_a_broken_site_leaves_the_other_sources_unchanged(site: DemoSite) -> None:
    before = [get(site, SALT_FEED).body, manga_feed(site, LIGHTHOUSE_ID).body]

    write_state(site.home, break_site(DemoState()))

    assert [get(site, SALT_FEED).body, manga_feed(site, LIGHTHOUSE_ID).body] == before


def test_the_ghost_is_an_error_page_with_status_200(site: DemoSite) -> None:
    reply = get(site, "http://broken.demo.test/ghost.xml")

    assert (reply.status, reply.headers.get_content_type()) == (200, "text/html")
    assert b"Something went wrong" in reply.body
    assert "ETag" not in reply.headers


@pytest.mark.parametrize(
    "url",
    [
        "http://feeds.demo.test/other.xml",
        "http://feeds.demo.test/ghost.xml",
        "http://unknown.demo.test/lighthouse.xml",
        "http://api.mangadex.demo.test/ping",
    ],
)
def test_an_address_without_a_page_is_a_404(site: DemoSite, url: str) -> None:
    assert get(site, url).status == 404


@pytest.mark.parametrize("host", ["feeds.demo.test:8123", "Feeds.Demo.Test", "feeds.demo.test."])
def test_port_capitals_and_closing_dot_of_a_host_are_ignored(site: DemoSite, host: str) -> None:
    assert get(site, LIGHTHOUSE_FEED, Host=host).status == 200


def test_a_damaged_state_is_reported_in_the_response(site: DemoSite) -> None:
    write_state(site.home, DemoState())
    state_file = site.home / "demo" / "state.json"
    state_file.write_text("{")

    reply = get(site, LIGHTHOUSE_FEED)

    assert reply.status == 500
    assert str(state_file) in reply.body.decode()


def test_requests_are_counted_by_host_and_path_and_logged_nowhere(
    site: DemoSite, capfd: pytest.CaptureFixture[str]
) -> None:
    get(site, LIGHTHOUSE_FEED)
    manga_feed(site, SALT_ID, limit=1)
    manga_feed(site, SALT_ID, limit=2)

    assert site.requests == {
        ("feeds.demo.test", "/lighthouse.xml"): 1,
        ("api.mangadex.demo.test", f"/manga/{SALT_ID}/feed"): 2,
    }
    assert capfd.readouterr() == ("", "")


def test_a_client_that_disconnects_does_not_affect_others(site: DemoSite, capfd: pytest.CaptureFixture[str]) -> None:
    for sent in (b"", b"GET /lighthouse.xml HTTP/1.1\r\nHost: feeds.demo.test\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", site.port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            client.sendall(sent)

    assert get(site, LIGHTHOUSE_FEED).status == 200
    assert capfd.readouterr() == ("", "")


def test_the_site_is_published_while_it_runs_and_gone_afterwards(tmp_path: Path) -> None:
    with DemoSite(tmp_path) as site:
        server = running_server(tmp_path)
        assert server is not None
        assert server.port == site.port

    assert running_server(tmp_path) is None
    with pytest.raises(ConnectionRefusedError):
        get(site, LIGHTHOUSE_FEED)


def test_every_demo_source_has_an_address_that_the_site_answers(site: DemoSite) -> None:
    statuses = {source["id"]: get(site, source["url"]).status for source in SOURCES}

    assert statuses == {
        "series:lighthouse-mangadex": 200,
        "series:lighthouse-feed": 200,
        "series:salt-mangadex": 200,
        "series:salt-feed": 200,
        "series:clockmaker-list": 200,
        "series:orchard-flaky": 503,
        "series:ghost-broken": 200,
        "catalog:harbour": 200,
        "catalog:tidewater": 200,
        "catalog:harbour-annex": 200,
        "catalog:harbour-members": 200,
    }


def test_a_home_without_a_state_has_the_site_as_shipped(tmp_path: Path) -> None:
    assert read_state(tmp_path / "nowhere") == DemoState()


def test_a_written_state_is_read_back_whole(tmp_path: Path) -> None:
    state = DemoState(new_chapters=3, is_broken=True)

    write_state(tmp_path, state)

    assert read_state(tmp_path) == state


def test_writing_replaces_the_old_state_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    write_state(tmp_path, DemoState(new_chapters=1))
    write_state(tmp_path, DemoState(new_chapters=2))

    assert read_state(tmp_path).new_chapters == 2
    assert list((tmp_path / "demo").iterdir()) == [state_file(tmp_path)]


def test_a_failed_write_leaves_no_temporary_file(tmp_path: Path) -> None:
    state_file(tmp_path).mkdir(parents=True)

    with pytest.raises(IsADirectoryError):
        write_state(tmp_path, DemoState())

    assert list((tmp_path / "demo").iterdir()) == [state_file(tmp_path)]


def test_each_mutation_is_one_more_chapter() -> None:
    assert mutate(mutate(DemoState())).new_chapters == 2


def test_repair_undoes_the_damage_but_keeps_the_chapters() -> None:
    bad_day = break_site(mutate(DemoState()))

    assert bad_day == DemoState(new_chapters=1, is_broken=True)
    assert repair(bad_day) == DemoState(new_chapters=1)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param(b'{"new_chap', "EOF while parsing", id="cut off"),
        pytest.param(b"", "EOF while parsing", id="empty"),
        pytest.param(b"\xff\xfe\xff", "Invalid JSON", id="not text"),
        pytest.param(b"[1]", "should be an object", id="not an object"),
        pytest.param(b'{"chapters": 1}', "chapters: Unexpected keyword argument", id="unknown key"),
        pytest.param(
            b'{"new_chapters": -1}', "new_chapters: Input should be greater than or equal to 0", id="negative"
        ),
        pytest.param(b'{"new_chapters": true}', "new_chapters: Input should be a valid integer", id="flag as count"),
        pytest.param(b'{"is_broken": 1}', "is_broken: Input should be a valid boolean", id="count as flag"),
    ],
)
def test_a_damaged_state_names_the_file_the_reason_and_the_cure(tmp_path: Path, text: bytes, reason: str) -> None:
    path = state_file(tmp_path)
    path.parent.mkdir()
    path.write_bytes(text)

    with pytest.raises(DemoStateError) as caught:
        read_state(tmp_path)

    assert str(path) in str(caught.value)
    assert reason in str(caught.value)
    assert "delete it to restart the demo" in str(caught.value)


DATES = ("publishAt", "readableAt", "createdAt", "updatedAt")


def numbers(chapters: list[dict[str, Any]]) -> list[str | None]:
    return [chapter["attributes"]["chapter"] for chapter in chapters]


def groups(chapter: dict[str, Any]) -> list[str]:
    related = chapter["relationships"]
    return [relation["attributes"]["name"] for relation in related if relation["type"] == "scanlation_group"]


def test_paging_shows_every_release_once_and_in_the_same_order(site: DemoSite) -> None:
    by_25 = all_chapters(site, 25)
    at_once = manga_feed(site, LIGHTHOUSE_ID, limit=500).json

    assert len({chapter["id"] for chapter in by_25}) == len(by_25) == at_once["total"] > 50
    assert by_25 == at_once["data"]


def test_a_page_states_its_own_offset_and_limit(site: DemoSite) -> None:
    page = manga_feed(site, LIGHTHOUSE_ID, limit=25, offset=50).json

    assert (page["result"], page["response"]) == ("ok", "collection")
    assert (page["limit"], page["offset"]) == (25, 50)
    assert len(page["data"]) == page["total"] - 50


def test_a_page_past_the_end_is_empty_and_still_has_the_total(site: DemoSite) -> None:
    page = manga_feed(site, LIGHTHOUSE_ID, offset=1000).json

    assert page["data"] == []
    assert page["total"] > 50


def test_the_lighthouse_has_the_variety_of_real_feeds(site: DemoSite) -> None:
    chapters = all_chapters(site, 100)

    assert len(set(numbers(chapters)) - {None}) == 24
    assert "10.5" in numbers(chapters)
    assert numbers(chapters).count(None) == 1
    assert numbers(chapters).count("2") > 1
    assert {chapter["attributes"]["translatedLanguage"] for chapter in chapters} == {"en", "es"}
    assert len({name for chapter in chapters for name in groups(chapter)}) == 2


def test_exactly_one_chapter_is_external_and_has_no_pages(site: DemoSite) -> None:
    chapters = all_chapters(site, 100)

    (external,) = [chapter for chapter in chapters if chapter["attributes"]["externalUrl"]]
    assert external["attributes"]["pages"] == 0
    assert groups(external) == []
    assert numbers(chapters).count(external["attributes"]["chapter"]) == 1


def test_an_item_is_shaped_like_the_real_api_s(site: DemoSite) -> None:
    chapter = manga_feed(site, SALT_ID, limit=1).json["data"][0]

    assert chapter["type"] == "chapter"
    assert chapter["attributes"] == {
        "volume": "1",
        "chapter": "1",
        "title": "The Weighing House",
        "translatedLanguage": "en",
        "externalUrl": None,
        "pages": 22,
        "version": 1,
    } | dict.fromkeys(DATES, "2026-07-05T09:00:00+00:00")
    assert {"id": SALT_ID, "type": "manga"} in chapter["relationships"]


def test_a_language_filter_narrows_the_feed_and_its_total(site: DemoSite) -> None:
    everything = manga_feed(site, LIGHTHOUSE_ID).json["total"]
    spanish = manga_feed(site, LIGHTHOUSE_ID, **{"translatedLanguage[]": ["es"]}).json
    both = manga_feed(site, LIGHTHOUSE_ID, **{"translatedLanguage[]": ["es", "en"]}).json

    assert {chapter["attributes"]["translatedLanguage"] for chapter in spanish["data"]} == {"es"}
    assert 0 < spanish["total"] == len(spanish["data"]) < everything
    assert both["total"] == everything


def test_an_unknown_manga_is_the_api_s_own_404(site: DemoSite) -> None:
    reply = manga_feed(site, "00000000-0000-4000-8000-000000000000")

    assert reply.status == 404
    assert reply.json["result"] == "error"
    (error,) = reply.json["errors"]
    assert (error["status"], error["title"]) == (404, "not_found_http_exception")


@pytest.mark.parametrize("query", [{"limit": 501}, {"limit": 0}, {"limit": "x"}, {"offset": -1}], ids=str)
def test_an_invalid_offset_or_limit_is_refused(site: DemoSite, query: dict[str, object]) -> None:
    reply = manga_feed(site, LIGHTHOUSE_ID, **query)

    assert reply.status == 400
    assert reply.json["errors"][0]["title"] == "validation_exception"


NOW = datetime(2026, 11, 16, 12, 30, tzinfo=UTC)
CLOCKMAKER = next(source for source in demo_file().definitions if source.id == "series:clockmaker-list")


def body_at(state: DemoState, url: str) -> bytes:
    target = urlsplit(url)
    page = page_at(state, target.netloc, target.path, target.query)
    assert page.status_code == 200
    return page.body


def read_list(state: DemoState) -> tuple[list[str], ParsedFeed[Release]]:
    """Return the URLs of the list's pages and their records, read by the demo's own source."""
    feed = platform("html").configure(CLOCKMAKER.url, CLOCKMAKER.config)
    following: Request | None = feed.first_request()
    urls: list[str] = []
    bodies: list[bytes] = []
    while following is not None:
        urls.append(following.url)
        bodies.append(body_at(state, following.url))
        following = feed.next_request(bodies[-1], url=following.url)
    types = [None] * len(bodies)
    return urls, feed.read(bodies, content_types=types, urls=urls, now=NOW)


def test_the_list_is_read_completely_over_its_two_pages() -> None:
    urls, feed = read_list(DemoState())

    assert urls == [CLOCKMAKER.url, f"{CLOCKMAKER.url}?page=2"]
    assert [str(release.number) for release in feed.records] == [
        *("12", "11", "10", "9", "8", "7", "6.5", "6", "5", "4", "3", "2", "1")
    ]
    assert feed.is_complete
    assert feed.problems == []
    assert (feed.records[3].title, feed.records[3].url) == ("Brass & Bone", "http://lists.demo.test/clockmaker/9")


def test_new_rows_have_relative_dates_and_old_ones_absolute_dates() -> None:
    dates = [release.published_at for release in read_list(DemoState())[1].records]

    assert dates[:4] == [
        datetime(2026, 11, 15, tzinfo=UTC),
        datetime(2026, 11, 13, tzinfo=UTC),
        datetime(2026, 11, 9, tzinfo=UTC),
        datetime(2026, 9, 7, tzinfo=UTC),
    ]


def test_a_mutation_adds_a_row_and_changes_no_url() -> None:
    before, after = read_list(DemoState())[1].records, read_list(mutate(DemoState()))[1].records

    assert str(after[0].number) == "13"
    assert [release.url for release in after[1:]] == [release.url for release in before]


def test_a_page_past_the_end_is_a_404() -> None:
    for query in ("page=3", "page=0", "page=x"):
        assert page_at(DemoState(), "lists.demo.test", "/clockmaker", query).status_code == 404


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
