"""Meanings of the columns of sources, notices and source health."""

from __future__ import annotations

from collections.abc import Mapping

_NEVER = "null: never"

MEANINGS: Mapping[str, Mapping[str, str]] = {
    "sources": {
        "id": "kind and name, such as series:solo: the partition key, for ever",
        "kind": "what it lists: catalog, website, company, job_board or series",
        "url": "address that is polled",
        "name": "what people call it; null: it has no name",
        "platform": "parser of its responses, such as rss; null: its kind needs none",
        "series_id": "the series that its chapters go to; null: it is of another kind",
        "assigned_series_id": "the series that an operator assigned, overriding its file; null:"
        " the file applies",
        "company_id": "the company that the file names; null: it belongs to none",
        "origin": "file that declares it, or `row` if a command added it",
        "host": "server that is polled, under its lease and delay",
        "shard": "hash of the host; modulo the number of shards it names the run that polls it",
        "tier": "how often it is checked",
        "tier_pinned": "whether the tier was set by hand and does not change by itself",
        "status": "whether it is polled; open: its breaker is, one probe at the next check",
        "status_reason": "why it is not active, for people; null: it is, or no reason was given",
        "failure_count": "failed polls in a row; 0 after a success",
        "next_check_at": "when it is due by its change model, UTC; null: not planned yet",
        "last_checked_at": f"when a poll of it last ended, UTC; {_NEVER}",
        "last_success_at": f"when a poll of it last succeeded, UTC; {_NEVER}",
        "last_changed_at": f"when a poll last found it changed, UTC; {_NEVER}",
        "last_new_at": f"when it last had a new record, UTC: this raises its tier; {_NEVER}",
        "reported_at": f"changes up to here are events in Dagster, UTC; {_NEVER}",
        "poll_count": "polls that ended since it was added",
        "change_count": "polls that found news since it was added",
        "strike_count": "polls that failed since it was added",
        "synced_at": "when its first poll succeeded, UTC; older records are not notified; null:"
        " none did",
        "synced_version": "the config_version that its last listing was read by; null: none was",
        "last_outcome": "outcome of its last poll, for people; null: never polled",
        "last_error_class": "class of the last poll's error, such as transient; null: it had none",
        "needs_full_read": "whether the next poll must read all pages, not only what is new",
        "accepts_drop": "whether an operator allowed the next poll to lose most records",
        "record_count": "records that its last complete listing had",
        "rhythm": "as JSON: how long it was quiet between changes, on which days and at which hours"
        " they came; null: no change is known",
        "changes_per_day": "changes a day that are expected; null: the tier decides, not this",
        "checks_per_day": "checks a day that this leads to now; null: the tier decides",
        "config_version": "how often its address, platform or configuration was another, from 1",
        "created_at": "when it was added, UTC",
    },
    "notices": {
        "recipient": "who is notified (`recipients.id`); kept when the recipient is removed",
        "subject_kind": "what it is about: chapter, job_match, or a kind of alert",
        "subject_id": "which one; with recipient and kind it occurs once, for ever",
        "status": "whether it is pending, sent, failed or muted",
        "mode": "delivery mode of the recipient when it was written",
        "series_id": "the series of the chapter; null: it is about something else",
        "delivery_id": "UUID of the message it goes in, the idempotency key; null: in none so far",
        "created_at": "when it was written, UTC",
        "sent_at": "when the recipient's server accepted it, UTC; null: it did not",
        "error": "error of the last attempt; null: it did not fail",
    },
    "source_health": {
        "id": "the source that the row is about (`sources.id`)",
        "kind": "what it lists: catalog, website, company, job_board or series",
        "tier": "how often it is checked",
        "status": "whether it is polled; open: its breaker is",
        "health": "its health in one word; the worst comes first",
        "health_reason": "reason of the health, for people",
        "why": "why it was or was not polled, for people",
        "last_outcome": "outcome of its last poll, for people; null: never polled",
        "last_checked_at": f"when a poll of it last ended, UTC; {_NEVER}",
        "last_success_at": f"when a poll of it last succeeded, UTC; {_NEVER}",
        "next_check_at": "when it is polled next, UTC; null: it is not",
        "failure_count": "failed polls in a row; 0 after a success",
        "record_count": "records that its last complete listing had",
        "error_class": "class of the last poll's error; null: it had none",
        "breaker": "open while it is paused after five failures, else closed",
        "failures": "open dead letters as JSON: how many of each class of error",
        "coverage": "as JSON: how much was obtained of what exists; null: not countable",
        "changes_per_day": "changes a day that are expected, by which its next check is decided;"
        " null: nothing is estimated of its kind",
        "change_confidence": "how sure that is, 0 to 1; 0: only the usual rate of its"
        " platform; null: nothing is estimated of its kind",
        "cost_30d_usd": "US dollars that models cost for it in 30 days",
    },
}
