"""The demo's series: chapters and their releases, given the state."""

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ingestion_pipeline.demo.state import DemoState

LIGHTHOUSE_ID = "5b0f6c1e-6d0e-4a53-9c5e-1f7a2d9c4e10"
SALT_ID = "c2a7e9d4-30b8-4f6a-8e21-7d5f0b9a6c33"

HARBOUR, NORTHERN = "Harbour Light Scans", "Northern Ferry"
EXTERNAL_NUMBER = "16"
WEEK, DAY, HOUR = timedelta(weeks=1), timedelta(days=1), timedelta(hours=1)

LIGHTHOUSE_ENDS_AT = datetime(2026, 10, 1, 12, tzinfo=UTC)
LIGHTHOUSE = (
    ("1", "The Island"),
    ("2", "The First Night"),
    ("3", "Oil and Wick"),
    ("4", "A Boat at Dawn"),
    ("5", "The Old Log Book"),
    ("6", "Fog"),
    ("7", "The Second Bell"),
    ("8", "What the Gulls Knew"),
    ("9", "The Inspector"),
    ("10", "Storm Glass"),
    ("10.5", "A Day Ashore"),
    ("11", "The Broken Stair"),
    ("12", "Letters"),
    ("13", "A Light Answers"),
    ("14", "The Sunken Road"),
    ("15", "Low Water"),
    ("16", "The Drowned Village"),
    ("17", "Bread & Brine"),
    ("17.5", "The Cat's Own Chapter"),
    ("18", "The Relief Ship"),
    ("19", "Nobody Aboard"),
    ("20", "The Lens"),
    ("21", "Three Long, One Short"),
    ("22", "The Keeper's Daughter"),
)
LAST_LIGHTHOUSE_NUMBER = 22
SECOND_GROUP_ENDS_AT = LIGHTHOUSE_ENDS_AT - 2 * WEEK  # it is slow, and never has the newest two
NEW_TITLES = ("A Ship Without a Name", "The Other Shore", "Mist", "Signal Fires")

SALT_ENDS_AT = datetime(2026, 9, 20, 9, tzinfo=UTC)
SALT = (
    ("1", "The Weighing House"),
    ("2", "Rust"),
    ("3", "The Salt Road"),
    ("4", "Hammer and Tongs"),
    ("5", "A Debt of Nails"),
    ("6", "The White Mountain"),
    ("7", "Quench"),
    ("8", "Two Brothers"),
    ("9", "The Toll Gate"),
    ("10", "Brittle"),
    ("11", "The Long Furnace"),
    ("12", "What the Anvil Heard"),
)

ORCHARD_ENDS_AT = datetime(2026, 9, 26, 20, tzinfo=UTC)
ORCHARD = (
    ("1", "Windfall"),
    ("2", "The Ladder"),
    ("3", "Owls"),
    ("4", "Grafting"),
    ("5", "First Frost"),
    ("6", "The Cider Press"),
    ("7", "Lanterns"),
    ("8", "Bare Branches"),
)

CLOCKMAKER_ENDS_AT = datetime(2026, 9, 28, 7, tzinfo=UTC)
CLOCKMAKER = (
    ("1", "The Shop on Brook Street"),
    ("2", "Mainspring"),
    ("3", "A Map Inside a Watch"),
    ("4", "The Hour Hand"),
    ("5", "Escapement"),
    ("6", "North by Noon"),
    ("6.5", "An Apprentice's Day"),
    ("7", "The Tower"),
    ("8", "Winding Down"),
    ("9", "Brass & Bone"),
    ("10", "The Second Map"),
    ("11", "Thirteen Strokes"),
    ("12", "Pendulum"),
)
LAST_CLOCKMAKER_NUMBER = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoChapter:
    """A chapter of a series; an unnumbered one is a oneshot."""

    number: str | None
    title: str
    published_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoUpload:
    """A release of a chapter, as the API lists it."""

    manga_id: str
    chapter: DemoChapter
    language: str
    group: str | None
    uploaded_at: datetime
    external_url: str | None = None

    @property
    def id(self) -> str:
        """Return the API's id of this release, derived from its content, hence stable."""
        return stable_uuid(self.manga_id, self.chapter.number, self.language, self.group)


def lighthouse_chapters(state: DemoState) -> list[DemoChapter]:
    """Return The Lighthouse Keeper, oldest first: shipped numbers, then one per mutation."""
    shipped = _weekly(LIGHTHOUSE, LIGHTHOUSE_ENDS_AT)
    return shipped + _mutated(state, after=LAST_LIGHTHOUSE_NUMBER, since=LIGHTHOUSE_ENDS_AT)


def clockmaker_chapters(state: DemoState) -> list[DemoChapter]:
    """Return The Clockmaker's Map, oldest first: shipped numbers, then one per mutation."""
    shipped = _weekly(CLOCKMAKER, CLOCKMAKER_ENDS_AT)
    return shipped + _mutated(state, after=LAST_CLOCKMAKER_NUMBER, since=CLOCKMAKER_ENDS_AT)


def lighthouse_uploads(state: DemoState) -> list[DemoUpload]:
    """Return every release of The Lighthouse Keeper, oldest first; most have two or three."""
    chapters = lighthouse_chapters(state)
    oneshot = DemoChapter(number=None, title="Before the Light", published_at=chapters[0].published_at - WEEK)
    uploads = [_upload(LIGHTHOUSE_ID, oneshot)]
    for chapter in chapters:
        uploads += _lighthouse_uploads_of(chapter)
    return sorted(uploads, key=lambda upload: (upload.uploaded_at, upload.id))


def salt_uploads(state: DemoState) -> list[DemoUpload]:
    """Return Salt and Iron, one release per number; nothing while the site is broken."""
    if state.is_broken:
        return []
    return [_upload(SALT_ID, chapter) for chapter in salt_chapters()]


def orchard_chapters() -> list[DemoChapter]:
    """Return The Orchard at Night, oldest first."""
    return _weekly(ORCHARD, ORCHARD_ENDS_AT)


def salt_chapters() -> list[DemoChapter]:
    """Return Salt and Iron, oldest first."""
    return _weekly(SALT, SALT_ENDS_AT)


def _mutated(state: DemoState, *, after: int, since: datetime) -> list[DemoChapter]:
    return [
        DemoChapter(
            number=str(after + nth),
            title=NEW_TITLES[(nth - 1) % len(NEW_TITLES)],
            # an hour apart, not a week: no mutation may date a chapter into the reader's future
            published_at=since + nth * HOUR,
        )
        for nth in range(1, state.new_chapters + 1)
    ]


def _weekly(titles: Sequence[tuple[str, str]], ends_at: datetime) -> list[DemoChapter]:
    return [
        DemoChapter(number=number, title=title, published_at=ends_at - weeks_before * WEEK)
        for weeks_before, (number, title) in zip(reversed(range(len(titles))), titles, strict=True)
    ]


def _lighthouse_uploads_of(chapter: DemoChapter) -> list[DemoUpload]:
    if chapter.number == EXTERNAL_NUMBER:
        return [_external_upload(chapter)]
    uploads = [_upload(LIGHTHOUSE_ID, chapter)]
    if chapter.published_at <= SECOND_GROUP_ENDS_AT:
        uploads.append(_upload(LIGHTHOUSE_ID, chapter, language="es", group=NORTHERN, late=DAY))
        if len(chapter.title) % 2 == 0:  # any fixed choice of about half the numbers will do
            uploads.append(_upload(LIGHTHOUSE_ID, chapter, group=NORTHERN, late=2 * DAY))
    return uploads


def _upload(
    manga_id: str, chapter: DemoChapter, *, language: str = "en", group: str = HARBOUR, late: timedelta = timedelta(0)
) -> DemoUpload:
    return DemoUpload(
        manga_id=manga_id, chapter=chapter, language=language, group=group, uploaded_at=chapter.published_at + late
    )


def _external_upload(chapter: DemoChapter) -> DemoUpload:
    """Return a release on its publisher's site: no group, no pages, an external URL."""
    return DemoUpload(
        manga_id=LIGHTHOUSE_ID,
        chapter=chapter,
        language="en",
        group=None,
        uploaded_at=chapter.published_at,
        external_url=f"https://publisher.demo.test/lighthouse/{chapter.number}",
    )


def stable_uuid(*parts: str | None) -> str:
    """Return the same id for the same parts, in every process."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(parts)))
