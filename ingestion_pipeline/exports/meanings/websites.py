"""Meanings of the columns of businesses, analyses, rankings and answers."""

from __future__ import annotations

from collections.abc import Mapping

MEANINGS: Mapping[str, Mapping[str, str]] = {
    "businesses": {
        "url": "canonical address of its home page",
        "name": "what it is called, without article and legal form",
        "aliases": "further names it is known by, as JSON",
        "description": "what it offers, in words of its site; null: not stated",
        "location": "place it is at, as its site words it; null: not stated",
        "keywords": "words it wants to be found by, as JSON",
        "competitors": "rivals that the site or the operator names, as JSON",
        "confidence": "how sure all this is, 0 to 100",
    },
    "website_analyses": {
        "business_id": "the business it is about (`businesses.id`); null until the first phase has ended",
        "url": "address that was analysed",
        "status": "how far it is",
        "current_step": "the phase that the status is of",
        "priority": "urgency that it was started with; greater numbers go first, never below 0",
        "info": "as JSON: what the first phase found or the operator gave; null until then",
        "prompts": "questions that models are asked, as JSON in order; null until they are formed",
        "analysis": "as JSON: scores by provider and in all, competitors, failures; null until it is scored",
        "progress_percent": "share that is done, in percent",
        "progress_message": "its current activity, for people; null: nothing yet",
        "is_recurring": "whether the website had been analysed before",
        "is_manual": "whether the operator, and not the site, describes the business",
        "tracking_id": "UUID that all its tasks have in logs",
        "phase_times": "as JSON by phase: began, ended (UTC), attempts",
        "started_at": "when its first phase began, UTC; null: it waits",
        "finished_at": "when it ended, with success or not, UTC; null: it is running",
    },
    "website_rankings": {
        "business_id": "the business that was searched for (`businesses.id`)",
        "day": "calendar day of the ranking, UTC, as text YYYY-MM-DD; one row for each",
        "analysis_id": "last analysis of the day (`website_analyses.id`)",
        "visibility": "share of the answers that mention the business, 0 to 1",
        "score": "points for being mentioned, and how early, 0 to 100",
        "mentions": "how often all answers together name the business",
        "prompts": "different questions that were put to providers",
        "by_provider": "the same figures as JSON by provider",
        "competitors": "how often and how early rivals are mentioned, as JSON",
        "cost_usd": "US dollars of all its replies, refused and empty ones too; null: no price",
        "source_id": "the website that was analysed; null: the analysis was deleted",
        "config_version": "version of the source's configuration, counted from 1; null: the"
        " analysis was deleted, or is older than versions",
    },
    "website_answers": {
        "analysis_id": "the analysis it was asked for (`website_analyses.id`)",
        "prompt_index": "place of the question among the analysis's, counted from 0",
        "prompt": "question as it was asked, word for word",
        "provider": "provider that was asked, by its name in the settings",
        "model": "name of the model that was asked for",
        "model_version": "model version that the provider reports; null: none, or it failed",
        "status": "answered or failed",
        "answer": "words of the model; null: it failed",
        "error": "why there is no answer, for people; null: there is one",
        "input_tokens": "tokens of the question; null: the provider does not say",
        "output_tokens": "tokens of the answer; null: the provider does not say",
        "cost_usd": "its cost in US dollars; null: no price is known",
        "mentions": "as JSON by name: count, rank, positions in the answer; null until scored",
        "run_id": "the Dagster run that asked; null: a command did, or it is older than lineage",
        "source_id": "the website that was analysed; null: the analysis was deleted",
        "config_version": "version of the source's configuration, counted from 1; null: the"
        " analysis was deleted, or is older than versions",
    },
}
