"""A secret is sent to its configured host only and never appears elsewhere."""

import asyncio
import traceback
from collections.abc import Collection

import pytest

from ingestion_pipeline.pages import Answer, FetchLimits, Guard, HttpFetcher, Request
from ingestion_pipeline.pages.http.request import Fetched, Secret, SecretPlace, Secrets, is_usable
from ingestion_pipeline.tasks.errors import Resource, WorkError
from ingestion_pipeline_tests.fakes import FakeResolver, FakeWeb, Reply, garbage, redirect
from ingestion_pipeline_tests.pages.page_fetches import AGENT, NOW

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
    with FakeWeb() as web, pytest.raises(Resource, match=f"{VARIABLE}.*is not set") as caught:
        fetch(web, SecretPlace.BEARER, value=None)

    assert caught.value.code == "no_secret"
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
