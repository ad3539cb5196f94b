"""Recognize the words for a course's parts, from `layouts/words.yaml`, and choices by phrase."""

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from importlib import resources

import yaml
from pydantic import BaseModel, ConfigDict


class CoursePart(Enum):
    """The part of a course that a label names."""

    DESCRIPTION = "description"
    PREREQUISITES = "prerequisites"
    CREDITS = "credits"
    TITLE = "title"
    CODE = "code"
    OTHER = "other"
    UNNAMED = "unnamed"  # formatted like a label, and in no word list


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
    """Return the part that the label names; None if it is no label."""
    return next((part for part, pattern in _patterns() if pattern.fullmatch(label)), None)


def is_noise(line: str) -> bool:
    """Return whether the line belongs to the page and not to a course."""
    return _noise().fullmatch(line) is not None


def names_section(line: str) -> bool:
    """Return whether the line is the title of a page or section, and not of a course."""
    return _sections().fullmatch(line.strip(" :.")) is not None


def names_subject(words: Sequence[str]) -> bool:
    """Return whether the words before a number may name a subject."""
    return _words().no_subjects.isdisjoint(words)


@lru_cache(maxsize=1)
def _words() -> _Words:
    file = resources.files("ingestion_pipeline.catalogs.extraction") / "layouts" / "words.yaml"
    return _Words.model_validate(yaml.safe_load(file.read_text()))


@lru_cache(maxsize=1)
def _patterns() -> tuple[tuple[CoursePart, re.Pattern[str]], ...]:
    before = "(?:course |class |module |unit |subject |paper )?"
    return tuple((group.part, _any_of(group.labels, before=before)) for group in _words().labels)


@lru_cache(maxsize=1)
def _noise() -> re.Pattern[str]:
    return _any_of(_words().noise)


@lru_cache(maxsize=1)
def _sections() -> re.Pattern[str]:
    return _any_of(_words().section_titles)


def _any_of(patterns: Sequence[str], *, before: str = "") -> re.Pattern[str]:
    """Compile a pattern that matches any of the patterns at the start of a text."""
    choices = "|".join(f"(?:{pattern})" for pattern in patterns)
    return re.compile(rf"\A{before}(?:{choices})", re.IGNORECASE)


_WORDS = re.compile(r"[^\W_]+")
_PARTS = re.compile(r"[A-Z][a-z]+")  # of a choice's name: BachelorDegree


def words_of(text: str) -> str:
    """Return the lower-case words, separated and surrounded by single blanks."""
    # B.S. and Ph.D. are one word each.
    joined = re.sub(r"\b((?:\w{1,2}\.){2,})", lambda match: match[1].replace(".", ""), text)
    return f" {' '.join(_WORDS.findall(joined.casefold()))} "


def has_phrase(text: str, phrases: Iterable[str]) -> bool:
    """Return whether one of the phrases is in the text."""
    words = words_of(text)
    return any(words_of(phrase) in words for phrase in phrases)


def choice_by_phrase(text: str, choices: Mapping[str, Iterable[str]]) -> str | None:
    """Return the first choice with a phrase in the text."""
    words = words_of(text)
    matches = (choice for choice, phrases in choices.items() if any(words_of(phrase) in words for phrase in phrases))
    return next(matches, None)


def choice_by_name(text: str, choices: Iterable[str]) -> str | None:
    """Return the choice whose name is the text: Bachelor Degree is BachelorDegree."""
    name = words_of(text).replace(" ", "")
    return next((choice for choice in choices if choice.casefold() == name), None)


def choice_in_words(text: str, choices: Iterable[str]) -> str | None:
    """Return the one choice whose name of several words is in the text: "3 semester hours"."""
    words = words_of(text)
    phrases = {choice: " ".join(_PARTS.findall(choice)).casefold() for choice in choices}
    matches = [
        choice
        for choice, phrase in phrases.items()
        if " " in phrase and (f" {phrase} " in words or f" {phrase}s " in words)
    ]
    return matches[0] if len(matches) == 1 else None
