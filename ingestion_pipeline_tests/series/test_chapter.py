"""Chapters: their numbers, from labels of real sites too, and their releases, grouped whatever the order listed."""

import hashlib
import json
import re
import time
import unicodedata
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.series import chapter_number
from ingestion_pipeline.series.chapter import (
    Release,
    chapter_of,
    chapters_of,
    fingerprint,
    missing_numbers,
    release_as_dict,
    release_from_dict,
)
from ingestion_pipeline.series.chapter_labels import chapter_numbers, number_text, volume_text
from ingestion_pipeline.sources import recognize_platform
from ingestion_pipeline.urls import canonical_url
from ingestion_pipeline_tests import builders
from ingestion_pipeline_tests.samples import sample

EXPECTED = yaml.safe_load((Path(__file__).parent / "expected" / "chapter_labels.yaml").read_text())
NUMBERS = st.decimals(min_value=0, max_value=999_999_999, places=5)


def from_mihon(number: float) -> Decimal | None:
    """Convert a number of Mihon, which writes -1 for an unknown one."""
    return None if number == -1 else Decimal(str(number))


@pytest.mark.parametrize(("label", "series_title", "number"), [*EXPECTED["labels"], (Decimal("1E+2"), None, "100")])
def test_a_label_names_its_number(label: str | Decimal | float, series_title: str | None, number: str) -> None:
    assert chapter_number(label, series_title) == Decimal(number)


@pytest.mark.parametrize(
    "label",
    [
        pytest.param(None, id="none"),
        pytest.param("", id="empty"),
        pytest.param("Foo", id="no-digit"),
        pytest.param("²", id="superscript"),
        pytest.param("-1", id="negative-text"),
        pytest.param(-1, id="negative"),
        pytest.param(Decimal("-0.5"), id="negative-decimal"),
        pytest.param(float("nan"), id="nan"),
        pytest.param(float("inf"), id="infinity"),
        pytest.param(Decimal("sNaN"), id="signalling-nan"),
        pytest.param(True, id="truth"),
        pytest.param("Chapter 1234567890", id="ten-digits"),
        pytest.param("Ch. 1.000001", id="six-decimals"),
        pytest.param(10**5000, id="huge"),
        pytest.param(Decimal("1E-999999"), id="tiny"),
    ],
)
def test_a_label_without_a_chapter_number_gives_none(label: str | Decimal | float | None) -> None:
    assert chapter_number(label) is None


@pytest.mark.parametrize(("label", "volume"), EXPECTED["volumes"])
def test_a_label_names_its_volume_and_a_version_or_season_is_none(label: str, volume: str | None) -> None:
    assert volume_text(label) == volume


def test_a_volume_in_the_series_title_is_not_the_chapters_volume() -> None:
    assert volume_text("Band 9 Chapter 2", "Band 9") is None
    assert volume_text("Band 9 Vol. 1 Chapter 2", "Band 9") == "1"


def test_every_vector_of_mihon_holds() -> None:
    vectors = json.loads(sample("manga/chapter_numbers/mihon_chapter_recognition.json").read_text())

    wrong = [
        vector
        for vector in vectors
        if chapter_number(vector["chapter_name"], vector["series_title"]) != from_mihon(vector["expected"])
    ]

    assert len(vectors) == 57
    assert wrong == []


def test_45_is_one_number_however_it_is_written() -> None:
    spellings = ["45", "45.0", "045", "45.00", 45, 45.0, Decimal("45.000"), "Ch. 45", "+45"]

    assert {str(chapter_number(spelling)) for spelling in spellings} == {"45"}
    assert chapter_number("45.5") != chapter_number("45")


@given(NUMBERS)
def test_the_canonical_form_is_idempotent_and_equal(number: Decimal) -> None:
    once = Decimal(number_text(number))

    assert once == number
    assert Decimal(number_text(once)).as_tuple() == once.as_tuple()


@given(NUMBERS, st.integers(0, 5), st.integers(0, 5))
def test_padding_zeros_change_nothing(number: Decimal, leading: int, trailing: int) -> None:
    text = number_text(number)
    padded = "0" * leading + text + ("0" * trailing if "." in text else "." + "0" * (trailing + 1))

    assert chapter_number(padded) == chapter_number(text) == number
    assert str(chapter_number(padded)) == text


@given(st.text(max_size=80), st.none() | st.text(max_size=20))
def test_any_label_gives_a_canonical_number_or_none(label: str, series_title: str | None) -> None:
    number = chapter_number(label, series_title)

    assert number is None or (0 <= number < 10**9 and number_text(number) == str(number))


@pytest.mark.parametrize(
    ("number", "text"), [("45", "45"), ("45.50", "45.5"), ("1E+2", "100"), ("100", "100"), ("0.00001", "0.00001")]
)
def test_a_number_is_written_without_exponent_or_trailing_zeros(number: str, text: str) -> None:
    assert number_text(Decimal(number)) == text


@pytest.mark.parametrize(
    "label",
    ["9" * 10_000, "1." * 5_000, "1a" * 5_000, "vol " * 3_000 + "1 2", "1" + " " * 10_000 + "x"],
    ids=["digits", "dots", "letters", "tags", "spaces"],
)
def test_a_hostile_label_is_parsed_in_bounded_time(label: str) -> None:
    started = time.thread_time()

    for _ in range(10):
        chapter_number(label, label)

    assert time.thread_time() - started < 1


def test_the_length_limit_never_cuts_a_number_in_two() -> None:
    assert chapter_number("x" * 990 + " 1234567 y") == Decimal(1234567)
    assert chapter_number("x" * 995 + " 1234567 y") is None


def test_missing_chapters_are_counted_as_mihon_counts_them() -> None:
    table = json.loads(sample("manga/chapter_numbers/mihon_missing_chapters.json").read_text())

    for row in table["missing_count"]:
        numbers = [from_mihon(number) for number in row["chapter_numbers"]]
        assert len(missing_numbers(numbers)) == row["expected_missing"]


def test_missing_numbers_are_listed_up_to_a_limit() -> None:
    assert missing_numbers([Decimal(1), Decimal("2.2"), Decimal(6), None]) == (3, 4, 5)
    assert len(missing_numbers([Decimal(999_999_999)])) == 100


# By file name and by site: the number that is parsed, where it is not the expected one.
MISREAD_FILES: dict[str, str] = {name: row["number"] for name, row in EXPECTED["misread_files"].items()}
SITE_NUMBERS: dict[str, str | None] = dict.fromkeys(EXPECTED["sites_with_number_1"], "1") | EXPECTED["site_numbers"]


def comictagger() -> list[dict[str, Any]]:
    return json.loads(sample("manga/chapter_numbers/comictagger_filenames.json").read_text())


def sites() -> list[dict[str, Any]]:
    return json.loads(sample("manga/sites/haruneko_series_and_chapters.json").read_text())


def number(text: str | None) -> Decimal | None:
    return Decimal(text.replace("½", "0.5")) if text else None


def expected_number(row: dict[str, Any]) -> Decimal | None:
    """Return the number of the table, else the only number in the label."""
    digits = re.findall(r"\d+(?:[.,]\d+)*", unicodedata.normalize("NFKC", row["chapter_title"]))
    return number(SITE_NUMBERS.get(row["site"], digits[0] if digits else None))


def test_59_of_65_comic_file_names_give_the_expected_number() -> None:
    vectors = comictagger()

    wrong = {
        vector["filename"]
        for vector in vectors
        if vector["filename"] not in MISREAD_FILES
        and chapter_number(vector["filename"], vector["expected"]["series"]) != number(vector["expected"]["issue"])
    }

    assert wrong == set()
    assert (len(vectors) - len(MISREAD_FILES), len(vectors)) == (59, 65)


def test_a_comic_file_name_that_is_no_chapter_label_is_parsed_as_a_label() -> None:
    parsed = {
        vector["filename"]: chapter_number(vector["filename"], vector["expected"]["series"])
        for vector in comictagger()
        if vector["filename"] in MISREAD_FILES
    }

    assert parsed == {name: number(text) for name, text in MISREAD_FILES.items()}


def test_every_site_label_gives_the_expected_number() -> None:
    rows = sites()

    wrong = {
        row["site"]: chapter_number(row["chapter_title"], row["series_title"])
        for row in rows
        if chapter_number(row["chapter_title"], row["series_title"]) != expected_number(row)
    }

    assert wrong == {}
    assert (len(rows), sum(expected_number(row) is None for row in rows)) == (623, 31)


@pytest.mark.parametrize(("label", "first", "last", "volume"), EXPECTED["varied_labels"])
def test_a_side_story_range_part_or_spelled_number_is_read(
    label: str, first: str | None, last: str | None, volume: str | None
) -> None:
    assert chapter_numbers(label) == (number(first), number(last))
    assert chapter_number(label) == number(first)
    assert volume_text(label) == volume


def test_a_range_directly_behind_ch_is_a_decimal_for_the_contract_and_a_range_for_lists() -> None:
    assert chapter_number("Ch.191-200 Read Online") == Decimal("191.2")
    assert chapter_numbers("Ch.191-200 Read Online") == (Decimal(191), Decimal(200))


def test_a_release_of_several_chapters_is_a_chapter_of_its_own_that_keeps_both_ends() -> None:
    several = a_release(number=Decimal(10), last_number=Decimal(12))

    chapters, _ = chapters_of([several, a_release(number=Decimal(10))], source_id="series:a")

    assert [chapter.key for chapter in chapters] == ["10", "10-12"]
    assert release_from_dict(release_as_dict(several)) == several


def test_urls_of_real_sites_have_one_canonical_form_and_platform() -> None:
    recognised: dict[str, str] = {}
    for row in sites():
        url = canonical_url(row["series_url"])
        assert canonical_url(url) == url
        if platform := recognize_platform(row["series_url"]):
            recognised[row["site"]] = platform.name
            assert platform == recognize_platform(url)

    assert recognised == {"MangaDex": "mangadex"}


@pytest.mark.parametrize(("label", "series_title", "expected"), EXPECTED["labels_by_rule"])
def test_a_label_is_parsed_by_rule(label: str, series_title: str | None, expected: str | None) -> None:
    assert chapter_number(label, series_title) == number(expected)


NOON = builders.NOON


a_release = partial(
    builders.a_release,
    title="Dawn",
    url="https://a.test/1",
    scanlation_group="North",
    source_chapter_id="first",
    volume="1",
)


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
