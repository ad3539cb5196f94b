"""The words by which catalogues name a course's parts, which are data: `layouts/words.yaml`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from importlib import resources

import yaml
from pydantic import BaseModel, ConfigDict


class CoursePart(Enum):
    """What a label announces."""

    DESCRIPTION = "description"
    PREREQUISITES = "prerequisites"
    CREDITS = "credits"
    TITLE = "title"
    CODE = "code"
    OTHER = "other"
    UNNAMED = "unnamed"  # a label by its looks, and in no list of words


class _Labels(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    part: CoursePart
    labels: tuple[str, ...]


class _Words(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    labels: tuple[_Labels, ...]
    noise: tuple[str, ...]
    section_titles: tuple[str, ...]
    no_subjects: frozenset[str]


@lru_cache(maxsize=4_096)  # a catalogue has few labels, and many of each
def part_named(label: str) -> CoursePart | None:
    """What the label announces; None if it is none."""
    return next((part for part, pattern in _patterns() if pattern.fullmatch(label)), None)


def is_noise(line: str) -> bool:
    """Whether the line belongs to the page and not to a course."""
    return _noise().fullmatch(line) is not None


def names_section(line: str) -> bool:
    """Whether the line is the title of a page or of a part of it, and of no course."""
    return _sections().fullmatch(line.strip(" :.")) is not None


def names_subject(words: Sequence[str]) -> bool:
    """Whether the words before a number may name a subject."""
    return _words().no_subjects.isdisjoint(words)


@lru_cache(maxsize=1)
def _words() -> _Words:
    file = resources.files("ingestion_pipeline.catalogs.extraction") / "layouts" / "words.yaml"
    return _Words.model_validate(yaml.safe_load(file.read_text()))


@lru_cache(maxsize=1)
def _patterns() -> tuple[tuple[CoursePart, re.Pattern[str]], ...]:
    return tuple((group.part, _whole(group.labels)) for group in _words().labels)


@lru_cache(maxsize=1)
def _noise() -> re.Pattern[str]:
    return _any_of(_words().noise)


@lru_cache(maxsize=1)
def _sections() -> re.Pattern[str]:
    return _any_of(_words().section_titles)


def _whole(labels: Sequence[str]) -> re.Pattern[str]:
    return _any_of(labels, before="(?:course |class |module |unit |subject |paper )?")


def _any_of(patterns: Sequence[str], *, before: str = "") -> re.Pattern[str]:
    """Match any of the patterns at the start of a text."""
    choices = "|".join(f"(?:{pattern})" for pattern in patterns)
    return re.compile(rf"\A{before}(?:{choices})", re.IGNORECASE)


_WORDS = re.compile(r"[^\W_]+")
_PARTS = re.compile(r"[A-Z][a-z]+")  # of a choice's name: BachelorDegree


def words_of(text: str) -> str:
    """The words alone, between single blanks, one before and one after."""
    # B.S. and Ph.D. are written with stops, and are one word each.
    joined = re.sub(r"\b((?:\w{1,2}\.){2,})", lambda found: found[1].replace(".", ""), text)
    return f" {' '.join(_WORDS.findall(joined.casefold()))} "


def has_phrase(text: str, phrases: Iterable[str]) -> bool:
    """Whether one of the phrases stands in the text."""
    words = words_of(text)
    return any(words_of(phrase) in words for phrase in phrases)


def choice_by_phrase(text: str, choices: Mapping[str, Iterable[str]]) -> str | None:
    """The first choice of which a phrase stands in the text."""
    words = words_of(text)
    found = (
        choice
        for choice, phrases in choices.items()
        if any(words_of(phrase) in words for phrase in phrases)
    )
    return next(found, None)


def choice_by_name(text: str, choices: Iterable[str]) -> str | None:
    """The choice that is written like the text: Bachelor Degree is BachelorDegree."""
    wanted = words_of(text).replace(" ", "")
    return next((choice for choice in choices if choice.casefold() == wanted), None)


def choice_in_words(text: str, choices: Iterable[str]) -> str | None:
    """The one choice whose name of several words is in the text: "3 semester hours"."""
    words = words_of(text)
    found = [choice for choice in choices if _is_named(choice, words)]
    return found[0] if len(found) == 1 else None


def _is_named(choice: str, words: str) -> bool:
    parts = _PARTS.findall(choice)
    phrase = " ".join(parts).casefold()
    return len(parts) > 1 and (f" {phrase} " in words or f" {phrase}s " in words)
