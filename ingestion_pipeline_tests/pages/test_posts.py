"""Questions that are asked by POST: some boards list their jobs in no other way."""

from __future__ import annotations

from ingestion_pipeline.pages import Fetched, Request
from ingestion_pipeline_tests.fakes import FakeWeb, Reply
from ingestion_pipeline_tests.pages.fetching import fetch

QUESTION = b'{"limit": 20, "offset": 0}'


def test_a_request_with_a_body_is_posted_as_json() -> None:
    with FakeWeb({"/jobs": Reply(b'{"total": 0}')}) as web:
        answer = fetch(web, Request(url=web.url("/jobs"), body=QUESTION))

        assert isinstance(answer, Fetched)
        assert answer.body == b'{"total": 0}'
        (request,) = web.requests
        assert (request.method, request.body) == ("POST", QUESTION)
        assert request.headers["content-type"] == "application/json"


def test_a_redirected_question_is_asked_again_where_it_leads() -> None:
    moved = Reply(b"", status=307, headers={"Location": "/new"})
    with FakeWeb({"/old": moved, "/new": Reply(b"[]")}) as web:
        fetch(web, Request(url=web.url("/old"), body=QUESTION))

        assert [(one.method, one.body) for one in web.requests] == [("POST", QUESTION)] * 2


def test_a_request_without_a_body_is_a_get() -> None:
    with FakeWeb({"/jobs": Reply(b"[]")}) as web:
        fetch(web, "/jobs")

        assert [(one.method, one.body) for one in web.requests] == [("GET", b"")]
