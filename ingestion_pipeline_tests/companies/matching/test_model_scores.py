"""Scores of the strong model with grounded skills; scores of the rules where it has no answer."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from ingestion_pipeline.demo.model_server import Fail, ModelRequest, Say, ScriptedModel
from ingestion_pipeline.demo.model_server import Reply as ModelReply
from ingestion_pipeline.store.tables import job_listings, job_matches, model_calls, tasks
from ingestion_pipeline_tests.companies.matching.listings import PLAIN_PAGE, PROFILE, Listings
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.reading.llm.model_questions import settings_with_model

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


def scripted_model(listings: Listings, reply: ModelReply | None = None) -> ScriptedModel:
    """Return a model that always gives this reply, or a valid answer for each call site."""

    def script(request: ModelRequest) -> ModelReply:
        name = request.form["name"]
        answers: Mapping[str, Any] = {
            "listing_match": ANSWER,
            "listing_detail": dict.fromkeys(request.schema["properties"]),
        }
        return reply or Say(text=json.dumps(answers[name]))

    return ScriptedModel(script)


def evaluate_with(listings: Listings, model: ScriptedModel) -> Any:
    with model:
        settings = settings_with_model(
            model.base_url, listings.ctx.settings, INGESTION_MATCH__PROFILE=str(listings.profile)
        )
        listings.ctx = replace(listings.ctx, settings=settings)
        return listings.run()


def test_a_model_scores_and_only_grounded_skills_are_stored(listings: Listings) -> None:
    listings.add()
    model = scripted_model(listings)

    evaluate_with(listings, model)

    [match] = listings.rows(job_matches)
    assert (match.method, match.model, match.base_score) == ("model", "strong", 72)
    assert match.score == 72 + 15
    assert (match.skills_matched, match.skills_missing) == (["Python"], [])
    [listing] = listings.rows(job_listings)
    text = f"{listing.title}\n{listing.description}"
    span = match.grounding["Python"]
    assert text[span["start"] : span["end"]] == "Python"
    assert set(listing.match_result["dropped"]) == {"Go", "Painting", "night shifts", "Fortran"}
    assert "Close to what you do." in match.reason


def test_the_strong_model_evaluates_and_the_cheap_model_scrapes(listings: Listings, web: FakeWeb) -> None:
    web.routes |= {"/1": PLAIN_PAGE}
    listings.add(description=None)

    evaluate_with(listings, scripted_model(listings))

    calls = {(row.call_site, row.model) for row in listings.rows(model_calls)}
    assert calls == {("scrape_listing", "cheap"), ("match_listing", "strong")}


def test_a_listing_that_the_filter_rejects_is_not_sent_to_the_model(listings: Listings) -> None:
    listings.add(title="Junior Engineer")
    model = scripted_model(listings)

    evaluate_with(listings, model)

    assert model.requests == []


@pytest.mark.slow
def test_the_model_request_contains_the_profile_and_is_repeated_for_another_profile(listings: Listings) -> None:
    listings.add()
    first, second = scripted_model(listings), scripted_model(listings)
    evaluate_with(listings, first)
    listings.write_profile(PROFILE.replace("Go: 7", "Go: 2"))

    evaluate_with(listings, second)

    assert "Python 10, PostgreSQL 9, Go 7" in first.requests[0].text
    assert "Go 2" in second.requests[0].text


def test_without_a_usable_answer_the_rules_score_with_a_note(listings: Listings) -> None:
    listings.add()

    evaluate_with(listings, scripted_model(listings, Say(text="no idea")))

    [match] = listings.rows(job_matches)
    assert match.method == "rules"
    assert "the model gave no usable answer" in match.reason


@pytest.mark.parametrize("status", [401, 429])
def test_without_quota_a_listing_waits_and_no_attempt_is_counted(listings: Listings, status: int) -> None:
    id_ = listings.add()
    headers = {"retry-after": "86000"} if status == 429 else {}

    run_result = evaluate_with(listings, scripted_model(listings, Fail(status=status, headers=headers)))

    assert (run_result.counts.waiting, run_result.counts.matched) == (1, 0)
    [job] = [row for row in listings.rows(tasks) if row.kind == "job"]
    assert (job.status, job.error_class, job.attempts) == ("PENDING", "resource", 0)
    assert listings.row(job_listings, id_).decision is None
