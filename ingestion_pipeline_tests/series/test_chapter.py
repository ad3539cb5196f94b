import hashlib
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.series.chapter import (
    Release,
    chapter_of,
    chapters_of,
    fingerprint,
    release_as_dict,
    release_from_dict,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def a_release(**facts: Any) -> Release:
    defaults: dict[str, Any] = {
        "number": Decimal(1),
        "title": "Dawn",
        "url": "https://a.test/1",
        "language": "en",
        "scanlation_group": "North",
        "source_chapter_id": "first",
        "volume": "1",
        "published_at": NOON,
    }
    return Release(**(defaults | facts))


TEXTS = st.none() | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
RELEASES = st.builds(
    Release,
    number=st.none() | st.decimals(0, 50, places=2),
    title=TEXTS,
    url=TEXTS,
    language=TEXTS,
    scanlation_group=TEXTS,
    source_chapter_id=TEXTS,
    volume=TEXTS,
    published_at=st.none() | st.datetimes(timezones=st.just(UTC)),
)


def test_releases_of_one_number_are_one_chapter_that_keeps_them_all() -> None:
    english, polish = a_release(), a_release(language="pl", source_chapter_id="second")

    chapters, problems = chapters_of([english, polish], source_id="series:a")

    assert [chapter.key for chapter in chapters] == ["1"]
    assert set(chapters[0].releases) == {english, polish}
    assert problems == []


def test_a_release_listed_twice_is_kept_once() -> None:
    chapters, _ = chapters_of([a_release(), a_release(number=Decimal("1.0"))], source_id="series:a")

    assert [len(chapter.releases) for chapter in chapters] == [1]


@pytest.mark.parametrize("number", ["45", "45.0", "45.00", "4.5E+1"])
def test_every_spelling_of_45_has_the_key_45(number: str) -> None:
    chapters, _ = chapters_of([a_release(number=Decimal(number))], source_id="series:a")

    assert chapters[0].key == "45"


def test_unnumbered_chapters_stay_apart_and_are_never_0_or_minus_1() -> None:
    by_id = a_release(number=None, source_chapter_id="special")
    by_url = a_release(number=Decimal(-1), source_chapter_id=None, url="https://a.test/omake")

    chapters, _ = chapters_of([by_id, by_url, a_release(number=Decimal(0))], source_id="series:a")

    assert [(chapter.key, chapter.number) for chapter in chapters] == [
        ("0", Decimal(0)),
        ("series:a#https://a.test/omake", None),
        ("series:a#special", None),
    ]


def test_a_release_that_could_not_be_recognised_again_is_a_problem() -> None:
    lost = a_release(number=None, source_chapter_id=" ", url=None, title="Lost")

    chapters, problems = chapters_of([a_release(), lost], source_id="series:a")

    assert len(chapters) == 1
    assert [problem.where for problem in problems] == ["release 2"]
    assert "'Lost'" in problems[0].message


def test_a_chapter_takes_its_facts_from_its_titled_then_its_earliest_release() -> None:
    untitled = a_release(title=None, published_at=NOON - timedelta(days=9))
    late = a_release(title="Late", published_at=NOON + timedelta(days=1))
    early = a_release(title="Early", url="https://a.test/early")

    chapters, _ = chapters_of([untitled, late, early], source_id="series:a")

    assert (chapters[0].leading.title, chapters[0].leading.url) == ("Early", "https://a.test/early")
    assert chapters[0].leading.published_at == NOON


def test_text_is_cleaned_for_every_database() -> None:
    dirty = a_release(title=" A\0 \ud800 dawn\n", volume="  ", url="https://a.test/1\0")

    chapters, _ = chapters_of([dirty], source_id="series:a")

    assert (chapters[0].leading.title, chapters[0].leading.volume) == ("A dawn", None)
    assert chapters[0].leading.url == "https://a.test/1"


@pytest.mark.slow
@given(st.lists(RELEASES, max_size=6), st.randoms())
def test_the_order_of_the_listing_changes_nothing(releases: list[Release], random: Random) -> None:
    shuffled = random.sample(releases, len(releases))

    chapters, problems = chapters_of(releases, source_id="series:a")
    shuffled_chapters, shuffled_problems = chapters_of(shuffled, source_id="series:a")

    assert shuffled_chapters == chapters
    assert len(shuffled_problems) == len(problems)
    assert [fingerprint(c) for c in shuffled_chapters] == [fingerprint(c) for c in chapters]


def test_the_fingerprint_ignores_the_order_of_releases_and_covers_every_fact() -> None:
    (chapter,), _ = chapters_of([a_release(), a_release(language="pl")], source_id="series:a")
    turned = chapter_of(chapter.key, chapter.releases[::-1])
    second = chapter.releases[1]
    others = [
        chapter_of(chapter.key, [replace(chapter.leading, title="Dusk"), second]),
        chapter_of(chapter.key, [replace(chapter.leading, volume=None), second]),
        chapter_of(chapter.key, chapter.releases[:1]),
    ]

    assert fingerprint(turned) == fingerprint(chapter)
    assert len({fingerprint(chapter), *map(fingerprint, others)}) == 4


@pytest.mark.slow
@given(st.lists(RELEASES, min_size=1, max_size=4))
def test_the_fingerprint_matches_the_one_in_existing_rows(releases: list[Release]) -> None:
    """Any other format would mark every chapter of every source as changed."""

    def canonical(value: Any) -> str:
        return json.dumps(value, sort_keys=True, separators=(",", ":"))

    chapters, _ = chapters_of(releases, source_id="series:a")

    for chapter in chapters:
        release_texts = sorted(canonical(release_as_dict(release)) for release in chapter.releases)
        facts = canonical([chapter.key, release_as_dict(chapter.releases[0]), release_texts])
        assert fingerprint(chapter) == hashlib.sha256(facts.encode("ascii")).hexdigest()


@pytest.mark.slow
@given(RELEASES)
def test_a_release_survives_json(release: Release) -> None:
    document = json.loads(json.dumps(release_as_dict(release)))

    assert release_from_dict(document) == release


def test_times_are_written_in_utc() -> None:
    tokyo = timezone(timedelta(hours=9))

    document = release_as_dict(a_release(published_at=datetime(2026, 3, 1, 21, tzinfo=tokyo)))

    assert document["published_at"] == "2026-03-01T12:00:00+00:00"
    assert document["number"] == "1"


def test_a_time_at_the_edge_of_the_calendar_is_clamped() -> None:
    edge = datetime.min.replace(tzinfo=timezone(timedelta(hours=9)))

    chapters, _ = chapters_of([a_release(published_at=edge)], source_id="series:a")

    assert chapters[0].leading.published_at == datetime.min.replace(tzinfo=UTC)
