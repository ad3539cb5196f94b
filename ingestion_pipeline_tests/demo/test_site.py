import socket
import struct
from email.utils import parsedate_to_datetime
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml

from ingestion_pipeline import demo
from ingestion_pipeline.demo.content import LIGHTHOUSE_ID, SALT_ID, DemoState, break_site, mutate, repair, write_state
from ingestion_pipeline.demo.site import DemoSite
from ingestion_pipeline.pages.http.guard import running_server
from ingestion_pipeline_tests.demo.site_requests import all_chapters, get, manga_feed

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


def test_an_overloaded_orchard_fails_until_it_is_repaired(site: DemoSite) -> None:
    write_state(site.home, DemoState(is_overloaded=True))
    statuses = {get(site, ORCHARD).status for _ in range(5)}

    write_state(site.home, repair(DemoState(is_overloaded=True)))

    assert statuses == {503}
    assert get(site, ORCHARD).status == 200


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
