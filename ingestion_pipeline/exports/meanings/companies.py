"""Meanings of the columns of companies, listings, their sources and matches."""

from __future__ import annotations

from collections.abc import Mapping

_NOT_EVALUATED = "null: not evaluated yet"
_UNANALYSED = "null: not stated, or not analysed yet"

MEANINGS: Mapping[str, Mapping[str, str]] = {
    "companies": {
        "id": "slug of the company, as sources and listings name it",
        "name": "what the company calls itself; null until it is stated",
        "website": "address of its home page; null: none is known",
        "website_key": "sha256 of the canonical website, by which two mentions are one company;"
        " null: no website is known",
        "source_id": "the source of kind company that it is analysed by; null: it has none",
        "status": "how far its analysis is",
        "about": f"what it does, in its own words; {_UNANALYSED}",
        "culture": f"how it describes its work, in its own words; {_UNANALYSED}",
        "mission": f"its purpose, in its own words; {_UNANALYSED}",
        "size": f"headcount as the page words it; {_UNANALYSED}",
        "employees_low": f"least number of people that `size` means; {_UNANALYSED}",
        "employees_high": f"greatest number of people that `size` means; {_UNANALYSED}",
        "size_category": f"large, medium or small, by the number of people; {_UNANALYSED}",
        "headquarters": f"place of its head office; {_UNANALYSED}",
        "founded": f"year it began in; {_UNANALYSED}",
        "is_remote_first": f"whether it says that people work from anywhere; {_UNANALYSED}",
        "tech_stack": f"technologies it names, as JSON by group; {_UNANALYSED}",
        "boards": "job boards that its pages lead to, as JSON, each with its confidence; null until"
        " it is analysed",
        "score": "points by your ranks, 0 and up; null until it is analysed",
        "score_parts": "what the score is made of, as JSON; null until it is analysed",
        "tier": "grade by the score, S the best; null until it is analysed",
        "scored_as": "hash of the ranks and points that the score is by; null until it is analysed",
        "discovered_by": "what named it first: a source, a listing or an operator",
        "analyzed_at": "when its pages were last read, UTC; null: never",
    },
    "job_listings": {
        "source_id": "the board that listed it first, which is the partition",
        "company_name": "employer as the board words it; null: not stated",
        "company_website": "employer's address as the board gives it; null: not stated",
        "title": "name of the job as listed",
        "location": "place of work as listed; null: not stated",
        "other_locations": "further places of work, as JSON; null: there is one at the most",
        "remote": "remote, hybrid or on site; null: not stated",
        "department": "part of the company as listed; null: not stated",
        "employment_type": "full time, part time and the like, as listed; null: not stated",
        "description": "text of the posting as Markdown; null: neither list nor page has one",
        "salary": "pay as JSON: least, most, currency, period; null: not stated",
        "posted_at": "when the board says it was posted, UTC; null: not stated",
        "valid_until": "when the board says it ends, UTC; null: not stated",
        "status": "whether any board still lists it",
        "verdict": f"decision of the filter and the score; {_NOT_EVALUATED}",
        "filter_result": f"as JSON: passed or not, strikes, items with reasons; {_NOT_EVALUATED}",
        "match_result": "as JSON: score of 100, adjustments, skills, also of what did not fit;"
        " null: not evaluated yet, or filtered",
        "snapshot_id": "body of the list that states it; null: the list has several pages, or it is"
        " older than lineage",
        "detail_snapshot_id": "body of its own page; null: that was not read",
        "first_seen_at": "when any board was first seen to list it, UTC",
        "changed_at": "when what it says last changed, UTC",
        "judged_at": f"when it was last filtered or scored, UTC; {_NOT_EVALUATED}",
        "closed_at": "when the last board took it down, UTC; null: it is open",
        "closed_reason": "why no board lists it, for people; null: it is open",
    },
    "listing_sources": {
        "listing_id": "the job that the board lists (`job_listings.id`)",
        "source_id": "the board that lists it, which is the partition",
        "external_key": "what makes it one job on its board: the platform's id, else a hash of its"
        " address",
        "external_id": "the platform's own id of the job; null: the platform gives none",
        "url": "where this board shows the job; null: its list links none",
        "missing": "complete lists in a row that lacked it; 0 while it is listed",
        "available": "whether the board still lists it; false once enough complete lists lack it",
        "first_seen_at": "when this board was first seen to list it, UTC",
        "last_seen_at": "when it was last seen, UTC; written as it goes missing or returns",
    },
    "job_matches": {
        "listing_id": "the job that fits (`job_listings.id`); one match at the most for each",
        "source_id": "the board that listed the job first, which is the partition",
        "status": "new while it stands, withdrawn once the job no longer fits",
        "score": "how well it fits, 0 to 100, adjustments included",
        "base_score": "how well it fits before the adjustments, 0 to 100",
        "rank_score": "the score without limits, orders equal scores; null: not recorded then",
        "priority": "how soon to look at it, by the score",
        "method": "evaluated by: model or rules",
        "model": "name of the model that evaluated it; null: rules did",
        "adjustments": "points added and taken away, as JSON, each with its reason",
        "skills_matched": "skills of the profile that the listing names, as JSON",
        "skills_missing": "skills that the listing wants and the profile lacks, as JSON",
        "reason": "why it fits, in a sentence for people",
        "grounding": "as JSON by skill: the span of the listing's text that names it",
        "run_id": "the Dagster run that evaluated it last; null: a command did, or it is older than"
        " lineage",
        "snapshot_id": "body of the list that states the job; null: the list has several pages, or"
        " it is older than lineage",
        "listing_run_id": "the Dagster run that wrote the listing; null: a command did, or it is"
        " older than lineage",
    },
}
