"""The job seeker's profile, read from `profile.yaml`; all mistakes are reported at once."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Annotated, ClassVar, cast

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, Strict, StringConstraints, ValidationInfo, field_validator

from ingestion_pipeline.sources.declarations import BadField, FileModel, expect, quoted, validated
from ingestion_pipeline.sources.files import FileProblem, compose, construct, located, repeated_keys, unreadable

EXAMPLE = "profile.example.yaml"
MAX_FILE_BYTES = 1_000_000
COMMISSION_ONLY = (
    *("commission only", "commission-only", "100% commission"),
    *("straight commission", "purely commission", "commission based only"),
)
BUZZWORDS = ("rockstar", "rock star", "ninja", "guru", "work hard play hard", "like a family")
MAX_WORD_CHARACTERS = 200


class Allowed(StrEnum):
    """Whether a work mode is acceptable."""

    YES = "yes"
    NO = "no"
    HOME_CITY = "home_city"


def _is_word(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value.strip()) <= MAX_WORD_CHARACTERS


def _words(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{quoted(value)} is no list; write [one, another]")  # noqa: TRY004 - pydantic's kind of error
    words = cast("Sequence[str]", value)
    if wrong := [quoted(word) for word in words if not _is_word(word)]:
        rule = f"each must be a text of at most {MAX_WORD_CHARACTERS} characters; quote numbers and yes/no"
        raise ValueError(f"{', '.join(wrong)}: {rule}")
    return tuple(dict.fromkeys(word.strip() for word in words))


def _domains(domains: tuple[str, ...]) -> tuple[str, ...]:
    if wrong := [domain for domain in domains if "/" in domain or ":" in domain or "." not in domain]:
        raise ValueError("; ".join(f"{domain!r} is no domain; write jobs.example.com" for domain in wrong))
    return tuple(domain.lower() for domain in domains)


def _time_zone(name: str) -> str:
    from zoneinfo import available_timezones

    if name not in available_timezones():
        hint = "is no time zone; write its name, such as America/Los_Angeles or Europe/Berlin"
        raise ValueError(f"{quoted(name)} {hint}")
    return name


def _currency(code: str) -> str:
    if not re.fullmatch("[A-Z]{3}", code):
        raise ValueError(f"{quoted(code)} is no currency; write its code, such as USD")
    return code


def _yes_or_no(value: object) -> object:
    return {True: Allowed.YES, False: Allowed.NO}[value] if isinstance(value, bool) else value


def _as_map(value: object) -> object:
    if not isinstance(value, Mapping):
        raise ValueError("must be a map, such as `name: 3` indented under it")  # noqa: TRY004 - as above
    return cast("object", value)


_Text = Annotated[
    str,
    Strict(),
    StringConstraints(strip_whitespace=True, min_length=1),
    expect("{value} is no text; write one, or leave the key out"),
]
_Name = Annotated[
    str,
    Strict(),
    StringConstraints(strip_whitespace=True, min_length=1, max_length=MAX_WORD_CHARACTERS),
    expect("{value} is no text; quote it"),
]
_Words = Annotated[tuple[str, ...], BeforeValidator(_words, json_schema_input_type=list[str])]
_Rank = Annotated[int, Strict(), Field(ge=1, le=10), expect("{value} is none; write a whole number from 1 to 10")]
_Strike = Annotated[int, Strict(), Field(ge=1, le=100), expect("{value} is none; write a whole number from 1 to 100")]
_Point = Annotated[
    int, Strict(), Field(ge=-100, le=100), expect("{value} is none; write a whole number from -100 to 100")
]
_Ranks = Annotated[dict[_Name, _Rank], BeforeValidator(_as_map)]
_Strikes = Annotated[dict[_Name, _Strike], BeforeValidator(_as_map)]
_Points = Annotated[dict[_Name, _Point], BeforeValidator(_as_map)]
_Salary = Annotated[
    int,
    Strict(),
    Field(ge=0, le=100_000_000),
    expect("{value} is none; write a whole number from 0 to 100000000, without commas or k"),
]
_Mode = Annotated[Allowed, BeforeValidator(_yes_or_no), expect("{value} is none of yes, no, home_city")]


class _ProfilePart(FileModel):
    unknown_key: ClassVar[str] = "no key of it"
    not_a_mapping: ClassVar[str] = "must be a map of keys, indented under it"


class WorkModes(_ProfilePart):
    """Acceptable work modes; a listing that states none is never rejected for it."""

    remote: _Mode = Allowed.YES
    hybrid: _Mode = Allowed.HOME_CITY
    on_site: _Mode = Allowed.NO


class Seniority(_ProfilePart):
    """Levels by words of the title; `strikes` has points, and the first match counts."""

    wanted: _Words = ()
    unwanted: _Words = ()
    strikes: _Strikes = Field(default={})

    @field_validator("unwanted")
    @classmethod
    def _check_contradiction(cls, words: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        both = {word.lower() for word in words} & {word.lower() for word in info.data.get("wanted", ())}
        if both:
            raise ValueError("; ".join(f"{word!r} is wanted, too; take it out of one of them" for word in sorted(both)))
        return words


class StopLists(_ProfilePart):
    """What is not even fetched: parts of company names, domains, words of URL and title."""

    companies: _Words = ()
    domains: Annotated[_Words, AfterValidator(_domains)] = ()
    keywords: _Words = ()


class Technologies(_ProfilePart):
    """`required`: a strike if none is named; `undesired`: points; `forbidden`: a rejection."""

    required: _Words = ()
    undesired: _Strikes = Field(default={})
    forbidden: _Words = ()


class Profile(_ProfilePart):
    """A job seeker's preferences; skill ranks are 1 to 10, role points may be negative."""

    unknown_key: ClassVar[str] = "no key of a profile"

    skills: _Ranks = Field(default={})
    home_city: _Text | None = None
    time_zone: Annotated[_Text, AfterValidator(_time_zone)] | None = None
    currency: Annotated[_Text, AfterValidator(_currency)] = "USD"
    salary_floor: _Salary | None = None
    seniority: Seniority = Seniority()
    work_modes: WorkModes = WorkModes()
    job_types_unwanted: _Words = ()
    roles: _Points = Field(default={})
    stop: StopLists = StopLists()
    reject_keywords: _Words = ()
    technologies: Technologies = Technologies()
    buzzwords: _Words = BUZZWORDS
    commission_phrases: _Words = COMMISSION_ONLY

    @cached_property
    def hash(self) -> str:
        """Return a hash that changes when evaluations may change; the order of maps counts."""
        return hashlib.sha256(json.dumps(self.model_dump()).encode()).hexdigest()


# Used without a file: only the settings' limits filter.
EMPTY_PROFILE = Profile(work_modes=WorkModes(remote=Allowed.YES, hybrid=Allowed.YES, on_site=Allowed.YES))


@dataclass(frozen=True, slots=True, kw_only=True)
class NoProfile:
    """The file does not exist."""

    path: Path

    def __str__(self) -> str:
        """Return what is missing and how to fix it."""
        return (
            f"there is no profile at {self.path}: `ingest profile example > {self.path.name}`"
            " writes one to begin with, or name yours by the setting match.profile"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BadProfile:
    """A file that cannot be used, with all its problems."""

    path: Path
    problems: Sequence[FileProblem]

    def __str__(self) -> str:
        """Return a line per problem: file:line: key: what is wrong and what is accepted."""
        return "\n".join(str(problem) for problem in self.problems)


ProfileResult = Profile | NoProfile | BadProfile


def load_profile(path: Path) -> ProfileResult:
    """Return the complete profile, or why there is none."""
    try:
        body = path.read_bytes()
    except FileNotFoundError:
        return NoProfile(path=path)
    except OSError as error:
        return _unusable(path, f"{error.strerror or 'not readable'}; make it a file that we may read")
    if len(body) > MAX_FILE_BYTES:
        return _unusable(path, f"{len(body)} bytes; a profile has at most {MAX_FILE_BYTES}")
    return _read(path, body)


def _unusable(path: Path, message: str) -> BadProfile:
    return BadProfile(path=path, problems=[FileProblem(path=path.name, line=1, field="file", message=message)])


def _read(path: Path, body: bytes) -> Profile | BadProfile:
    try:
        root = compose(body)
        raw: object = None if root is None else construct(root)
    except (yaml.YAMLError, ValueError, TypeError) as error:
        return BadProfile(path=path, problems=[unreadable(path.name, body, error)])
    if root is None or not isinstance(raw, dict):
        return _unusable(path, "must hold keys such as skills: and home_city:; `ingest profile example` shows all")
    profile, bad = validated(Profile, cast("object", raw))
    bad += [BadField(key, "stands twice; keep one of them") for key, _ in repeated_keys(root)]
    if "skills" not in raw:
        bad.append(BadField("skills", "is missing: nothing can be scored; write `Python: 10` under it"))
    if profile is not None and not bad:
        return profile
    return BadProfile(path=path, problems=sorted(located(path.name, root, bad), key=lambda problem: problem.line))


def example_profile() -> str:
    """Return the example file: every key with its meaning."""
    return resources.files(__package__ or "").joinpath(EXAMPLE).read_text()
