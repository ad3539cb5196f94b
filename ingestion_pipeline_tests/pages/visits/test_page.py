"""The class of a response, and the rendering options of a source's config."""

import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.pages.visits.page import (
    BlockedPage,
    Click,
    ClickDiscovery,
    Content,
    EmptyShell,
    LoginPage,
    RenderingOptions,
    RenderWait,
    ResponseClass,
    SoftNotFound,
    WrongType,
    classify_response,
)
from ingestion_pipeline.sources.declarations import validated
from ingestion_pipeline_tests.samples import sample

CASES = yaml.safe_load((Path(__file__).parent / "expected" / "page.yaml").read_text(encoding="utf-8"))

HTML = {"content-type": "text/html; charset=utf-8"}
PASSWORD = "<form><input name=u><input type=password></form>"
LONG = "<p>" + "Real content of a page. " * 100


def classify(body: str | bytes, *, url: str = "https://a.test/x", status: int = 200, **headers: str) -> ResponseClass:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    raw = body.encode() if isinstance(body, str) else body
    return classify_response(url, status, HTML | named, raw)


@pytest.mark.slow
def test_every_sample_is_classified_as_content() -> None:
    files = [path for path in sample(".").rglob("*") if path.suffix in {".html", ".xml"}]

    misjudged = {
        path.name: response_class for path in files if (response_class := classify(path.read_bytes())) != Content()
    }

    assert len(files) > 70
    assert misjudged == {}


@pytest.mark.parametrize(
    ("body", "media_type"),
    [
        (b"%PDF-1.7\n...", "application/pdf"),
        (b"\r\n%PDF-1.7\n...", "application/pdf"),
        (b"\x89PNG\r\n\x1a\n...", "image/png"),
        (b"\xff\xd8\xff\xe0....", "image/jpeg"),
        (b"GIF89a...", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
        (b"\0\0\0\x20ftypisom", "video/mp4"),
        (b"PK\x03\x04...", "application/zip"),
        (b"\x1f\x8b\x08\0", "application/gzip"),
    ],
)
def test_a_file_labelled_as_a_page_has_the_wrong_type(body: bytes, media_type: str) -> None:
    response_class = classify(body)

    assert isinstance(response_class, WrongType)
    assert response_class.reason.endswith(f"it is {media_type}")
    assert "text/html" in response_class.reason


def test_a_correct_label_of_a_file_is_accepted_and_a_mislabelled_page_is_content() -> None:
    assert isinstance(classify(b"\0\1\2", content_type="image/x-icon"), WrongType)
    assert classify(f"<!doctype html>{LONG}", content_type="image/png") == Content()
    assert classify("<svg></svg>", content_type="image/svg+xml") == Content()


@pytest.mark.parametrize(("title", "headline"), CASES["an_error_page_with_status_200_is_a_soft_not_found"])
def test_an_error_page_with_status_200_is_a_soft_not_found(title: str, headline: str) -> None:
    page = f"<title>{title}</title><h1>{headline}</h1><p>Go to the home page"

    assert isinstance(classify(page), SoftNotFound)
    assert classify(page + LONG) == Content()


@pytest.mark.parametrize("title", CASES["a_page_about_something_else_is_content"])
def test_a_page_about_something_else_is_content(title: str) -> None:
    assert classify(f"<title>{title}</title><h1>{title}</h1><p>Short.") == Content()


def test_a_login_form_in_place_of_the_page_is_a_login_page() -> None:
    by_title = f"<title>Sign in - Acme</title>{PASSWORD}"
    by_address = f"<title>Acme</title>{PASSWORD}"

    assert isinstance(classify(by_title), LoginPage)
    assert isinstance(classify(by_address, url="https://a.test/cas/login?service=x"), LoginPage)
    assert isinstance(classify(f"<title>Acme</title>{PASSWORD}", status=401), LoginPage)
    assert isinstance(classify(f"<title>Acme</title>{PASSWORD}", status=403), LoginPage)
    assert not isinstance(classify("<title>No</title>", status=401), LoginPage)
    assert classify(by_address) == Content()
    assert classify(by_title + LONG) == Content()
    assert classify("<title>Sign in</title><a href=/login>Sign in</a>") == Content()


CHALLENGE = "<script src=/cdn-cgi/challenge-platform/h/b/orchestrate/chl_page/v1></script>"


@pytest.mark.parametrize(("body", "status"), CASES["a_bot_challenge_is_a_blocked_page"])
def test_a_bot_challenge_is_a_blocked_page(body: str, status: int) -> None:
    assert isinstance(classify(body, status=status), BlockedPage)
    assert classify(body + LONG, status=status) == Content()


def test_a_header_alone_may_mark_a_blocked_page() -> None:
    assert isinstance(classify(LONG, status=403, cf_mitigated="challenge"), BlockedPage)
    assert isinstance(classify(LONG, status=202, x_amzn_waf_action="captcha"), BlockedPage)
    assert classify(LONG, server="cloudflare") == Content()


def test_a_form_with_a_captcha_is_not_a_blocked_page() -> None:
    form = "<title>Contact us</title><form>Name<input></form><script src=//google.com/recaptcha/a.js>"

    assert classify(form) == Content()


@pytest.mark.parametrize("body", CASES["a_page_that_waits_for_scripts_is_an_empty_shell"])
def test_a_page_that_waits_for_scripts_is_an_empty_shell(body: str) -> None:
    assert isinstance(classify(body), EmptyShell)
    assert classify(body + LONG) == Content()


def test_a_short_page_is_content() -> None:
    assert classify("<p>Closed today.</p><script src=/count.js></script>") == Content()
    assert classify("<div id=root></div>") == Content()
    for skills in ("You need HTML and JavaScript.", "The course requires good JavaScript skills"):
        assert classify(f"<p>{skills} 20 seats.</p><script src=/count.js></script>") == Content()
    assert classify("plain text") == Content()
    assert classify("") == Content()


@pytest.mark.slow
@given(st.binary(max_size=200), st.integers(100, 599), st.text(max_size=20))
def test_no_response_raises(body: bytes, status: int, url: str) -> None:
    assert isinstance(classify_response(url, status, {}, b"<title>" + body), ResponseClass)


def test_many_noscript_tags_are_classified_as_fast_as_other_pages() -> None:
    """Each was once searched for up to the end of the page: 400 kB took seven seconds."""
    started = time.thread_time()

    classify("<p>hi</p><script>" + "<noscript " * 40_000)

    assert time.thread_time() - started < 2


def test_a_config_without_options_gives_the_defaults() -> None:
    assert validated(RenderingOptions, {}) == (RenderingOptions(), [])


def test_every_option_is_parsed() -> None:
    config = {
        "setup": [{"click": " #cookies "}, {"wait_seconds": 2}, {"click": ".more"}],
        "load_wait_seconds": 1.5,
        "content_selector": "main",
        "click_discovery": {"selector": "#list", "limit": 10_000, "wait_seconds": 60},
        "screenshot": False,
    }

    assert validated(RenderingOptions, config) == (
        RenderingOptions(
            setup=(Click(selector="#cookies"), RenderWait(seconds=2), Click(selector=".more")),
            load_wait_seconds=1.5,
            content_selector="main",
            discovery=ClickDiscovery(selector="#list", limit=10_000, wait_seconds=60),
            screenshot=False,
        ),
        [],
    )


def test_a_click_discovery_has_the_limits_of_the_specification() -> None:
    rendering, _ = validated(RenderingOptions, {"click_discovery": {"selector": "#list"}})

    assert rendering is not None
    assert rendering.discovery == ClickDiscovery(selector="#list", limit=300, wait_seconds=30)


@pytest.mark.parametrize(
    ("config", "field"),
    [({"setup": [{"click": "a"}] * 101}, "setup"), *CASES["a_mistake_is_named_with_its_key"]],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_mistake_is_named_with_its_key(config: dict[str, Any], field: str) -> None:
    rendering, problems = validated(RenderingOptions, config)

    assert rendering is None
    assert [problem.field for problem in problems] == [field]
    assert len(problems[0].message) > 10


def test_all_mistakes_are_named_at_once() -> None:
    _, problems = validated(RenderingOptions, {"setup": [{}, {"wait_seconds": 0}], "screenshot": 1})

    assert [problem.field for problem in problems] == ["setup[0]", "setup[1].wait_seconds", "screenshot"]
