"""An operator's word that there is no such chapter holds against every source."""

from __future__ import annotations

from decimal import Decimal
from random import Random

import pytest

from ingestion_pipeline.series import checks, reporting
from ingestion_pipeline.series.operator_changes import Rejection, UnknownChapter, restore, withdraw
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import notices, outbox
from ingestion_pipeline_tests.series.identity import audited, chapter_id, check_invariants, follow, notice
from ingestion_pipeline_tests.series.syncing import SOLO, Syncing, releases

OTHER = "series:other"


@pytest.fixture
def syncing(store: Store, clock: FixedClock, settings: Settings, random: Random) -> Syncing:
    """One source with chapters 1, 2 and, told an hour later, 99."""
    found = Syncing(store, clock, settings, random)
    found.given_source()
    found.sync(releases(1, 2))
    clock.advance(hours=1)
    found.sync(releases(1, 2, 99))
    return found


def withdraw_now(syncing: Syncing, label: str = "99") -> Rejection:
    with syncing.store.begin() as connection:
        at = syncing.clock.advance(hours=1)
        return withdraw(connection, "solo", label, reason="a joke", actor="test", now=at)


def restore_now(syncing: Syncing, label: str = "99") -> Rejection:
    with syncing.store.begin() as connection:
        return restore(connection, "solo", label, actor="test", now=syncing.clock.at)


def gaps(syncing: Syncing) -> list[str]:
    with syncing.store.read() as connection:
        return [one.message for one in checks.gaps(connection)]


def available(syncing: Syncing) -> int:
    with syncing.store.read() as connection:
        return reporting.reports(connection, [SOLO])[0].total


def test_a_withdrawn_chapter_is_not_the_latest_and_no_gap_leads_to_it(syncing: Syncing) -> None:
    assert gaps(syncing)[0].startswith("missing: 3, 4")

    judged = withdraw_now(syncing, "099.0")

    assert judged == Rejection(key="99", is_changed=True)
    assert (syncing.latest()[0], gaps(syncing), available(syncing)) == (Decimal(2), [], 2)
    action, subject, detail = audited(syncing)[-1]
    assert (action, subject) == ("chapter.withdraw", "solo")
    assert (detail["chapter"], detail["reason"]) == ("99", "a joke")
    assert withdraw_now(syncing).is_changed is False
    assert len(audited(syncing)) == 1


def test_no_source_brings_it_back(syncing: Syncing) -> None:
    withdraw_now(syncing)
    syncing.sync(releases(1, 2, 99))
    syncing.given_source(OTHER)
    syncing.sync(releases(1), by=OTHER)

    syncing.sync(releases(1, 3, 99, language="de"), by=OTHER)  # new to it, and in a new language
    for listed in ((1, 2), (1, 2), (1, 2, 99)):
        syncing.sync(releases(*listed))  # gone from one source, and back

    assert syncing.latest()[0] == Decimal(3)
    assert syncing.told() == ["99", "3"]
    languages = [row["subject_id"] for row in syncing.rows(outbox) if ":" in row["subject_id"]]
    assert languages == [f"{chapter_id(syncing, 'solo', '1')}:de"]
    check_languages_apart(syncing)


def check_languages_apart(syncing: Syncing) -> None:
    assert not any(
        row["subject_id"].startswith(f"{chapter_id(syncing, 'solo', '99')}:") for row in syncing.rows(outbox)
    )


def test_nobody_hears_of_it_any_more_and_restoring_gives_back_exactly_that(syncing: Syncing) -> None:
    wrong, right = chapter_id(syncing, "solo", "99"), chapter_id(syncing, "solo", "2")
    follow(syncing, "ann", "solo")
    notice(syncing, "ann", wrong, "pending", series_id="solo")
    notice(syncing, "ann", right, "pending")
    notice(syncing, "ben", wrong, "sent")
    notice(syncing, "cat", wrong, "muted")
    before = syncing.rows(notices)

    assert withdraw_now(syncing).notices == 1

    assert [row["status"] for row in syncing.rows(notices)] == ["muted", "pending", "sent", "muted"]
    assert [row["handled_at"] for row in syncing.rows(outbox)] == [syncing.clock.at]

    assert restore_now(syncing) == Rejection(key="99", is_changed=True, notices=1)

    assert syncing.rows(notices) == before
    assert [row["handled_at"] for row in syncing.rows(outbox)] == [None]
    assert (syncing.latest()[0], available(syncing)) == (Decimal(99), 3)
    assert audited(syncing)[-1][0] == "chapter.restore"
    assert restore_now(syncing).is_changed is False
    check_invariants(syncing)


def test_what_an_operator_withdrew_before_anybody_was_told_is_news_under_its_right_number(syncing: Syncing) -> None:
    syncing.sync([*releases(1, 2), *releases(99, source_chapter_id="x")])
    withdraw_now(syncing)

    syncing.sync([*releases(1, 2), *releases(3, source_chapter_id="x")])

    assert syncing.told() == ["99", "3"]


def test_an_unnumbered_chapter_is_withdrawn_by_its_key(syncing: Syncing) -> None:
    syncing.sync([*releases(1, 2, 99), *releases(None, source_chapter_id="x7")])

    assert withdraw_now(syncing, f"{SOLO}#x7").is_changed
    assert available(syncing) == 3
    assert syncing.latest()[0] == Decimal(99)


def test_a_chapter_that_is_not_there_is_named_with_where_all_are(syncing: Syncing) -> None:
    with pytest.raises(UnknownChapter, match="'solo' has no chapter '7'; `ingest series show solo`"):
        withdraw_now(syncing, "7")
