"""The rules for the document of a browser page, without a browser."""

import pytest

from ingestion_pipeline.pages.browser.document import Document
from ingestion_pipeline.settings import load_settings
from ingestion_pipeline.tasks.errors import Permanent, Resource, Transient, WorkError
from ingestion_pipeline_tests.pages.page_fetches import NOW

HTML = {"content-type": "text/html; charset=utf-8"}


def a_document(url: str = "https://a.test/") -> Document:
    document = Document(url, load_settings({}), check_url=None, clock=lambda: NOW)
    document.begin()
    document.may_request(url)
    return document


@pytest.mark.parametrize(
    ("status", "headers", "kind", "code"),
    [
        (404, HTML, Permanent, "http_404"),
        (403, HTML, Transient, "http_403"),
        (503, HTML | {"retry-after": "7"}, Transient, "http_503"),
        (429, HTML, Resource, "rate_limited"),
        (304, {}, Permanent, "http_304"),
        (204, {}, Permanent, "no_page"),
        (200, {"content-type": "application/pdf"}, Permanent, "wrong_type"),
        (200, {"content-type": "application/json; charset=utf-8"}, Permanent, "wrong_type"),
        (200, HTML | {"content-disposition": "attachment; filename=x"}, Permanent, "wrong_type"),
    ],
)
def test_a_response_that_is_not_a_page_has_the_same_error_as_by_http(
    status: int, headers: dict[str, str], kind: type[WorkError], code: str
) -> None:
    with pytest.raises(kind) as caught:
        a_document().may_show(status, headers)

    assert caught.value.code == code


@pytest.mark.parametrize("headers", [HTML, {}, {"content-type": "application/xhtml+xml"}])
def test_html_of_any_media_type_is_accepted(headers: dict[str, str]) -> None:
    document = a_document()

    document.may_show(203, headers)

    assert document.status_code == 203


def test_a_document_leads_on_five_times_and_no_more() -> None:
    document = a_document()
    for number in range(5):
        document.may_request(f"https://a.test/{number}")

    with pytest.raises(Permanent, match="more than 5 times") as caught:
        document.may_request("https://a.test/6")

    assert caught.value.code == "redirects"


def test_opening_the_page_again_resets_the_redirect_count() -> None:
    document = a_document()
    for _ in range(10):
        document.begin()
        document.may_request("https://a.test/")
        document.may_request("https://a.test/next")

    assert document.url == "https://a.test/next"


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("http://a.test/", "redirects"),
        ("https://me:secret@b.test/", "bad_url"),
        ("ftp://a.test/", "bad_url"),
        ("about:blank", "bad_url"),
    ],
)
def test_no_document_leads_where_a_redirect_may_not(url: str, code: str) -> None:
    with pytest.raises(Permanent) as caught:
        a_document().may_request(url)

    assert caught.value.code == code
    assert "secret" not in str(caught.value)
