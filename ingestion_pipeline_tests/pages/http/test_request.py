"""The error class of each status code, the wait that a server requests, and secrets that only their host receives."""

import asyncio
import traceback
from collections.abc import Collection
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.pages import Answer, FetchLimits, Guard, HttpFetcher, Request
from ingestion_pipeline.pages.http.request import Fetched, Secret, SecretPlace, Secrets, is_usable, status_error
from ingestion_pipeline.tasks.ended_tasks import retry_after
from ingestion_pipeline.tasks.errors import Permanent, Resource, Transient, WorkError
from ingestion_pipeline_tests.fakes import FakeResolver, FakeWeb, Reply, garbage, redirect
from ingestion_pipeline_tests.pages.page_fetches import AGENT, NOW, failing

URL = "http://user:hunter2@a.test/x"


def error_of(status: int, **headers: str) -> WorkError:
    error = status_error(status, {k.replace("_", "-"): v for k, v in headers.items()}, URL, NOW)
    assert error is not None
    return error


@pytest.mark.parametrize("status", [200, 201, 204, 206, 299])
def test_a_success_is_no_error(status: int) -> None:
    assert status_error(status, {}, URL, NOW) is None


@pytest.mark.parametrize("status", [408, 425, 500, 502, 503, 504, 520, 599])
def test_a_server_error_is_retried(status: int) -> None:
    error = error_of(status)

    assert isinstance(error, Transient)
    assert error.code == f"http_{status}"


@pytest.mark.parametrize("status", [300, 305, 400, 401, 404, 405, 410, 418, 451])
def test_a_client_error_is_permanent(status: int) -> None:
    error = error_of(status)

    assert isinstance(error, Permanent)
    assert error.code == f"http_{status}"


def test_a_410_says_that_the_source_can_be_retired() -> None:
    assert "can be retired" in str(error_of(410))
    assert "can be retired" not in str(error_of(404))


@pytest.mark.parametrize("status", [403, 407])
def test_a_blocked_request_waits_four_hours(status: int) -> None:
    error = error_of(status)

    assert isinstance(error, Transient)
    assert (error.code, error.retry_after) == (f"http_{status}", timedelta(hours=4))


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [({"retry_after": "120"}, 120), ({"retry_after": "0"}, 1), ({"retry_after": "soon"}, 60), ({}, 60)],
)
def test_a_rate_limit_waits_and_is_not_a_source_failure(headers: dict[str, str], seconds: int) -> None:
    error = error_of(429, **headers)

    assert isinstance(error, Resource)
    assert (error.code, error.until) == ("rate_limited", NOW + timedelta(seconds=seconds))


@pytest.mark.parametrize(("header", "wait"), [("30", timedelta(seconds=30)), ("-1", None)])
def test_a_503_with_retry_after_is_a_failure_that_waits(header: str, wait: timedelta | None) -> None:
    """A site that is down permanently and sends Retry-After must open its breaker eventually."""
    error = error_of(503, retry_after=header)

    assert isinstance(error, Transient)
    assert error.retry_after == wait


@pytest.mark.parametrize("status", [403, 404, 410, 429, 500])
def test_the_message_names_the_page_and_never_the_password(status: int) -> None:
    assert "http://a.test/x" in str(error_of(status))
    assert "hunter2" not in str(error_of(status))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0", timedelta(0)),
        (" 90 ", timedelta(seconds=90)),
        ("1.5", timedelta(seconds=1.5)),
        ("1000000000", timedelta(hours=24)),
        ("9" * 5000, timedelta(hours=24)),
        ("Sun, 01 Mar 2026 12:00:30 GMT", timedelta(seconds=30)),
        ("Sunday, 01-Mar-26 12:00:30 GMT", timedelta(seconds=30)),
        ("Sun, 01 Mar 2026 11:00:00 GMT", timedelta(0)),
        ("Fri, 31 Dec 9999 23:59:59 GMT", timedelta(hours=24)),
        *((garbage, None) for garbage in (None, "", "-1", "1e9", "1.5.2", "abc", "٣", "99 Foo 1")),
    ],
)
def test_retry_after_is_seconds_or_a_date_or_nothing(value: str | None, expected: timedelta | None) -> None:
    assert retry_after(value, now=NOW) == expected


@pytest.mark.slow
@given(st.text() | st.from_regex(r"[A-Z][a-z]{2}, \d+ [A-Z][a-z]{2} \d+ [\d:]+ [A-Z+\-\d]*"))
def test_no_retry_after_header_raises(value: str) -> None:
    wait = retry_after(value, now=NOW)

    assert wait is None or timedelta(0) <= wait <= timedelta(hours=24)


VALUE = "hunter2 &/%"
VARIABLE = "ACME_API_KEY"


def fetch(
    web: FakeWeb,
    place: SecretPlace,
    *,
    value: str | None = VALUE,
    allowed: Collection[tuple[str, str]] = ((VARIABLE, "a.test"),),
) -> Answer:
    names = {"a.test": [[web.endpoint]], "b.test": [[web.endpoint]]}
    secret = Secret(place=place, variable=VARIABLE, name="X-Key")

    async def run() -> Answer:
        guard = Guard(frozenset(), FakeResolver(names))
        request = Request(url="http://a.test/jobs?page=1", secret=secret)
        secrets = Secrets(allowed=allowed, read={VARIABLE: value}.get)
        async with HttpFetcher(AGENT, FetchLimits(), guard, secrets=secrets) as fetcher:
            return await fetcher.fetch(request, now=NOW)

    return asyncio.run(run())


def test_a_secret_is_sent_in_its_configured_place() -> None:
    path = "/jobs?page=1&X-Key=hunter2%20%26%2F%25"
    with FakeWeb({"/jobs?page=1": "ok", path: "ok"}) as web:
        for place in SecretPlace:
            answer = fetch(web, place)
            assert "hunter2" not in repr(answer)

        bearer, header, query = web.requests
    assert bearer.headers["authorization"] == f"Bearer {VALUE}"
    assert header.headers["x-key"] == VALUE
    assert query.path == path


def test_another_host_never_receives_the_secret() -> None:
    with FakeWeb({"/jobs?page=1": redirect("http://b.test/"), "/": "ok"}) as web:
        fetch(web, SecretPlace.BEARER)

        first, second = web.requests
    assert "authorization" in first.headers
    assert "authorization" not in second.headers


@pytest.mark.parametrize("answer", [garbage, 404, 500])
def test_no_error_contains_the_secret(answer: object) -> None:
    path = "/jobs?page=1&X-Key=hunter2%20%26%2F%25"
    with FakeWeb({path: answer}) as web, pytest.raises(WorkError) as caught:  # pyright: ignore[reportArgumentType]  one of the answers
        fetch(web, SecretPlace.QUERY)

    text = "".join(traceback.format_exception(caught.value))
    assert "hunter2" not in text
    assert "a.test/jobs" in str(caught.value)


def test_an_unset_variable_is_not_a_failure_of_the_source() -> None:
    with FakeWeb() as web, failing(Resource, "no_secret", match=f"{VARIABLE}.*is not set"):
        fetch(web, SecretPlace.BEARER, value=None)

    assert web.requests == []


@pytest.mark.parametrize("allowed", [(), [(VARIABLE, "b.test")], [("OTHER", "a.test")], [(VARIABLE, "a.test:8080")]])
def test_a_secret_goes_only_to_the_host_that_the_operator_bound_it_to(allowed: Collection[tuple[str, str]]) -> None:
    cure = f"{VARIABLE} .* may not be sent to a.test; add {VARIABLE}@a.test to INGESTION_SECRETS"
    with FakeWeb() as web, pytest.raises(Resource, match=cure):
        fetch(web, SecretPlace.BEARER, allowed=allowed)

    assert web.requests == []


@pytest.mark.parametrize("name", ["INGESTION_DATABASE_URL", "OPENAI_API_KEY", "PATH", "a b", ""])
def test_our_own_variables_are_never_sent(name: str) -> None:
    assert not is_usable(name)


@pytest.mark.parametrize(
    "repeated", [VALUE, "hunter2%20%26%2F%25", "hunter2+%26%2F%25", "hunter2 &amp;/%", r"hunter2 &\/%"]
)
def test_an_answer_that_repeats_the_secret_is_redacted_and_has_no_validators(repeated: str) -> None:
    headers = {"ETag": f'"{repeated}"', "Last-Modified": "Mon, 16 Nov 2026 00:00:00 GMT"}
    reply = Reply(f"you sent {repeated}!".encode(), headers=headers)
    with FakeWeb({"/jobs?page=1": reply}) as web:
        answer = fetch(web, SecretPlace.BEARER)

    assert isinstance(answer, Fetched)
    assert (answer.body, answer.etag, answer.last_modified) == (b"you sent ...!", None, None)
