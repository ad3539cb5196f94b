"""The strong model's opinion: by schema, its skills proved; rules where it has none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from ingestion_pipeline.demo.model_server import Fail, ModelRequest, Reply, Say, ScriptedModel
from ingestion_pipeline.store.tables import job_listings, job_matches, model_calls, tasks
from ingestion_pipeline_tests.companies.matching.listings import PROFILE, Listings
from ingestion_pipeline_tests.companies.matching.test_scraping import PLAIN
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.reading.models.asking import leading_to

ANSWER: dict[str, Any] = {
    "score": 72,
    "skills_matched": [
        {"skill": "Python", "quote": "8 years of experience in Python"},
        {"skill": "Go", "quote": "fluent in Go"},
        {"skill": "Painting", "quote": "Python and PostgreSQL"},
    ],
    "skills_missing": [
        {"skill": "night shifts", "quote": "the night when it is needed"},
        {"skill": "Fortran", "quote": "decades of Fortran"},
    ],
    "summary": "Close to what you do.",
}


def model_of(some: Listings, reply: Reply | None = None) -> ScriptedModel:
    """A model that always says this; the workshop is configured to ask it."""

    def script(asked: ModelRequest) -> Reply:
        name = asked.form["name"]
        answers: Mapping[str, Any] = {
            "listing_match": ANSWER,
            "listing_detail": dict.fromkeys(asked.schema["properties"]),
        }
        return reply or Say(text=json.dumps(answers[name]))

    return ScriptedModel(script)


def run(some: Listings, model: ScriptedModel) -> Any:
    with model:
        settings = leading_to(model.base_url, some.ctx.settings, INGESTION_MATCH__PROFILE=str(some.profile))
        some.ctx = replace(some.ctx, settings=settings)
        return some.run()


def test_a_model_scores_and_only_proved_skills_are_kept(some: Listings) -> None:
    some.add()
    model = model_of(some)

    run(some, model)

    [match] = some.rows(job_matches)
    assert (match.method, match.model, match.base_score) == ("model", "strong", 72)
    assert match.score == 72 + 15
    assert (match.skills_matched, match.skills_missing) == (["Python"], [])
    [listing] = some.rows(job_listings)
    text = f"{listing.title}\n{listing.description}"
    span = match.grounding["Python"]
    assert text[span["start"] : span["end"]] == "Python"
    assert set(listing.match_result["dropped"]) == {"Go", "Painting", "night shifts", "Fortran"}
    assert "Close to what you do." in match.reason


def test_the_strong_model_analyses_and_the_cheap_one_scrapes(some: Listings, web: FakeWeb) -> None:
    web.routes |= {"/1": PLAIN}
    some.add(description=None)

    run(some, model_of(some))

    calls = {(row.call_site, row.model) for row in some.rows(model_calls)}
    assert calls == {("scrape_listing", "cheap"), ("match_listing", "strong")}


def test_what_the_filter_rejects_is_never_asked_about(some: Listings) -> None:
    some.add(title="Junior Engineer")
    model = model_of(some)

    run(some, model)

    assert model.requests == []


def test_the_model_is_told_the_profile_and_asked_anew_for_another(some: Listings) -> None:
    some.add()
    first, second = model_of(some), model_of(some)
    run(some, first)
    some.wishes(PROFILE.replace("Go: 7", "Go: 2"))

    run(some, second)

    assert "Python 10, PostgreSQL 9, Go 7" in first.requests[0].text
    assert "Go 2" in second.requests[0].text


def test_without_a_usable_answer_the_rules_score_and_say_so(some: Listings) -> None:
    some.add()

    run(some, model_of(some, Say(text="no idea")))

    [match] = some.rows(job_matches)
    assert match.method == "rules"
    assert "the model gave no usable answer" in match.reason


@pytest.mark.parametrize("status", [401, 429])
def test_without_quota_a_listing_waits_and_nothing_counts_against_it(some: Listings, status: int) -> None:
    id_ = some.add()
    headers = {"retry-after": "86000"} if status == 429 else {}

    done = run(some, model_of(some, Fail(status=status, headers=headers)))

    assert (done.counts.waiting, done.counts.matched) == (1, 0)
    [job] = [row for row in some.rows(tasks) if row.kind == "job"]
    assert (job.status, job.error_class, job.attempts) == ("PENDING", "resource", 0)
    assert some.row(job_listings, id_).verdict is None
