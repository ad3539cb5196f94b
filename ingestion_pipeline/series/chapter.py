"""Chapters and their releases, grouped whatever the order listed; `chapter_labels` reads their numbers."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from itertools import islice, pairwise
from json.encoder import encode_basestring_ascii
from typing import Any

from ingestion_pipeline.reading.structured.items import Problem
from ingestion_pipeline.reading.text.plain_text import clean_text
from ingestion_pipeline.series.chapter_labels import chapter_number, number_text
from ingestion_pipeline.urls import without_secrets

MAX_LISTED = 100  # more missing numbers than anyone acts upon


def missing_numbers(numbers: Iterable[Decimal | None]) -> tuple[int, ...]:
    """Return the absent whole chapters below the highest, from 1, at most `MAX_LISTED` of them."""
    whole = [0, *sorted({int(number) for number in numbers if number is not None and number >= 1})]
    missing = (number for low, high in pairwise(whole) for number in range(low + 1, high))
    return tuple(islice(missing, MAX_LISTED))


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One row of a source's listing; several may share a number (languages, groups)."""

    number: Decimal | None
    title: str | None
    url: str | None
    language: str | None
    scanlation_group: str | None
    source_chapter_id: str | None
    volume: str | None
    published_at: datetime | None
    last_number: Decimal | None = None  # of a release that holds the chapters from `number` on

    def __post_init__(self) -> None:
        """Remove secrets from the addresses: private feeds put the user's token in each of them."""
        for name in ("url", "source_chapter_id"):
            if (address := getattr(self, name)) is not None and "://" in address:
                object.__setattr__(self, name, without_secrets(address))


MAX_OWN_ID_BYTES = 500  # longer ids are hashed: PostgreSQL indexes no key over 2,700
_NEVER = datetime.max.replace(tzinfo=UTC)
_TEXTS = ("title", "url", "language", "scanlation_group", "source_chapter_id", "volume")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """One chapter of one source; its facts are those of its leading release."""

    key: str
    releases: tuple[Release, ...]  # the leading one first

    @property
    def leading(self) -> Release:
        """Return the release that stands for the chapter."""
        return self.releases[0]

    @property
    def number(self) -> Decimal | None:
        """Return the number; all releases have it."""
        return self.releases[0].number


def chapters_of(releases: Sequence[Release], *, source_id: str) -> tuple[list[Chapter], list[Problem]]:
    """Return one chapter per number, lowest first, then the unnumbered, and the problems.

    Every release is in exactly one chapter. A release with neither number, id nor address cannot be
    recognised again: it is reported as a problem.
    """
    groups: dict[str, list[Release]] = {}
    problems: list[Problem] = []
    for position, release in enumerate(map(_cleaned, releases), start=1):
        key = _key(release, source_id)
        if key is None:
            message = (
                f"{release.title or 'untitled'!r} has neither number, id nor address;"
                " it is left out, since it could not be recognised again"
            )
            problems.append(Problem(where=f"release {position}", message=message))
        else:
            groups.setdefault(key, []).append(release)
    chapters = [chapter_of(key, group) for key, group in groups.items()]
    return sorted(chapters, key=_reading_order), problems


def chapter_of(key: str, releases: Sequence[Release]) -> Chapter:
    """Return the chapter made of these releases, each once."""
    ordered = releases if len(releases) == 1 else sorted(set(releases), key=_precedence)
    return Chapter(key=key, releases=tuple(ordered))


def own_id(release: Release) -> str:
    """Return the source's id of the release, else its address; empty if it has neither."""
    return release.source_chapter_id or release.url or ""


def with_stored_releases(chapter: Chapter, stored: Iterable[Release]) -> Chapter:
    """Add the stored releases that have left a feed's window to the listed chapter.

    Two releases are the same by id or address, language and group; the listed one is newer.
    """
    listed = {_identity(release) for release in chapter.releases}
    gone = [release for release in stored if _identity(release) not in listed]
    return chapter_of(chapter.key, [*chapter.releases, *gone])


def _identity(release: Release) -> tuple[str, str | None, str | None]:
    return own_id(release), release.language, release.scanlation_group


def fingerprint(chapter: Chapter) -> str:
    """Return a hash of every field of the chapter, independent of the order of its releases."""
    return _fingerprint(chapter, list(map(_canonical_json, chapter.releases)))


def as_stored(chapter: Chapter) -> tuple[str, str]:
    """Return the releases as a JSON list (each as in `release_as_dict`) and the fingerprint."""
    releases_json = list(map(_canonical_json, chapter.releases))
    return f"[{','.join(releases_json)}]", _fingerprint(chapter, releases_json)


def _fingerprint(chapter: Chapter, releases_json: Sequence[str]) -> str:
    if len(releases_json) == 1:  # most chapters have one release
        leading, every = releases_json[0], _quoted(releases_json[0])
    else:
        leading, every = _canonical_json(chapter.leading), ",".join(map(_quoted, sorted(releases_json)))
    facts = f"[{_quoted(chapter.key)},{leading},[{every}]]"
    return hashlib.sha256(facts.encode("ascii")).hexdigest()


def _canonical_json(release: Release) -> str:
    """Return `json.dumps(release_as_dict(...), sort_keys=True, separators=(",", ":"))`.

    Written by hand: it takes a fifth of the time.
    """
    number = None if release.number is None else number_text(release.number)
    moment = _in_utc(release.published_at)
    last = "" if release.last_number is None else f'"last_number":{_quoted(number_text(release.last_number))},'
    return (
        f'{{"language":{_quoted(release.language)},{last}"number":{_quoted(number)}'
        f',"published_at":{_quoted(moment.isoformat() if moment else None)}'
        f',"scanlation_group":{_quoted(release.scanlation_group)}'
        f',"source_chapter_id":{_quoted(release.source_chapter_id)}'
        f',"title":{_quoted(release.title)},"url":{_quoted(release.url)}'
        f',"volume":{_quoted(release.volume)}}}'
    )


def _quoted(text: str | None) -> str:
    return "null" if text is None else encode_basestring_ascii(text)


def release_as_dict(release: Release) -> dict[str, str | None]:
    """Return the release for JSON: number as text, time as ISO 8601 in UTC."""
    moment = _in_utc(release.published_at)
    return {
        "number": None if release.number is None else number_text(release.number),
        **({} if release.last_number is None else {"last_number": number_text(release.last_number)}),
        **{name: getattr(release, name) for name in _TEXTS},
        "published_at": moment.isoformat() if moment else None,
    }


def release_from_dict(fields: Mapping[str, str | None]) -> Release:
    """Return the release that `release_as_dict` wrote; an absent field is None."""
    number, published_at = fields.get("number"), fields.get("published_at")
    last_number = fields.get("last_number")
    return Release(
        number=Decimal(number) if number is not None else None,
        published_at=datetime.fromisoformat(published_at) if published_at else None,
        last_number=Decimal(last_number) if last_number is not None else None,
        **{name: fields.get(name) for name in _TEXTS},
    )


def _cleaned(release: Release) -> Release:
    """Return the release with clean texts; the same object if nothing changed, which is faster."""
    cleaned: dict[str, Any] = {
        "number": chapter_number(release.number),
        **{name: clean_text(getattr(release, name)) for name in _TEXTS},
        "published_at": _in_utc(release.published_at),
        "last_number": chapter_number(release.last_number),
    }
    is_clean = all(getattr(release, name) is value for name, value in cleaned.items())
    return release if is_clean else Release(**cleaned)


def _in_utc(moment: datetime | None) -> datetime | None:
    """Convert to UTC; a time without zone is taken as UTC."""
    if moment is None or moment.tzinfo is None:
        return moment and moment.replace(tzinfo=UTC)
    try:
        return moment.astimezone(UTC)
    except OverflowError:  # the first or last day of the calendar, in a zone that has left it
        return moment.replace(tzinfo=UTC)


def _key(release: Release, source_id: str) -> str | None:
    if key := key_of(release.number, release.last_number):
        return key
    id_ = own_id(release)
    if len(id_.encode()) > MAX_OWN_ID_BYTES:
        id_ = hashlib.sha256(id_.encode()).hexdigest()
    return f"{source_id}#{id_}" if id_ else None


def key_of(number: Decimal | None, last_number: Decimal | None) -> str | None:
    """Return the key of a numbered chapter, 45 or 10-12; None without a number."""
    if number is None:
        return None
    return number_text(number) if last_number is None else f"{number_text(number)}-{number_text(last_number)}"


def _precedence(release: Release) -> tuple[bool, datetime, str, str]:
    """Order releases: titled first, then the earliest, then by id, then by every field."""
    return release.title is None, release.published_at or _NEVER, own_id(release), _canonical_json(release)


def _reading_order(chapter: Chapter) -> tuple[bool, Decimal, str]:
    return chapter.number is None, chapter.number or Decimal(0), chapter.key
