"""What fits whoever looks for work: read from `profile.yaml`, all its mistakes at once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cached_property
from importlib import resources
from pathlib import Path

EXAMPLE = "profile.example.yaml"
MAX_FILE_BYTES = 1_000_000
COMMISSION_ONLY = (
    "commission only",
    "commission-only",
    "100% commission",
    "straight commission",
    "purely commission",
    "commission based only",
)
BUZZWORDS = ("rockstar", "rock star", "ninja", "guru", "work hard play hard", "like a family")


class Allowed(StrEnum):
    """Whether a way of working is wanted."""

    YES = "yes"
    NO = "no"
    HOME_CITY = "home_city"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkModes:
    """Where one would work; what a listing does not state is never held against it."""

    remote: Allowed = Allowed.YES
    hybrid: Allowed = Allowed.HOME_CITY
    on_site: Allowed = Allowed.NO


@dataclass(frozen=True, slots=True, kw_only=True)
class Seniority:
    """Levels by words of the title: `strikes` has points, and the first that is found counts."""

    wanted: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()
    strikes: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True, kw_only=True)
class StopLists:
    """What is not even fetched: parts of companies' names, domains, words of URL and title."""

    companies: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Technologies:
    """Without any of `required`: a strike; `undesired` has points; `forbidden` is the end."""

    required: tuple[str, ...] = ()
    undesired: Mapping[str, int] = field(default_factory=dict[str, int])
    forbidden: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One person's wishes; ranks of skills are from 1 to 10, points of roles may be negative."""

    skills: Mapping[str, int] = field(default_factory=dict[str, int])
    home_city: str | None = None
    time_zone: str | None = None
    currency: str = "USD"
    salary_floor: int | None = None
    seniority: Seniority = field(default_factory=Seniority)
    work_modes: WorkModes = field(default_factory=WorkModes)
    job_types_unwanted: tuple[str, ...] = ()
    roles: Mapping[str, int] = field(default_factory=dict[str, int])
    stop: StopLists = field(default_factory=StopLists)
    reject_keywords: tuple[str, ...] = ()
    technologies: Technologies = field(default_factory=Technologies)
    buzzwords: tuple[str, ...] = BUZZWORDS
    commission_phrases: tuple[str, ...] = COMMISSION_ONLY

    @cached_property
    def hash(self) -> str:
        """The same as long as every listing is judged the same; the order of its maps counts."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()


# Without a file nobody has said what he wants: only the settings' numbers filter.
NOBODY = Profile(
    work_modes=WorkModes(remote=Allowed.YES, hybrid=Allowed.YES, on_site=Allowed.YES),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileProblem:
    """One mistake, where an editor can jump to it."""

    line: int
    key: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoProfile:
    """There is no file."""

    path: Path

    def __str__(self) -> str:
        """What is missing, and the cure."""
        return (
            f"there is no profile at {self.path}: `ingest profile example > {self.path.name}`"
            " writes one to begin with, or name yours by the setting match.profile"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BadProfile:
    """A file that cannot be used, with all that is wrong with it."""

    path: Path
    problems: Sequence[ProfileProblem]

    def __str__(self) -> str:
        """A line for each mistake: file:line: key: what is wrong and what is accepted."""
        name = self.path.name
        return "\n".join(f"{name}:{one.line}: {one.key}: {one.message}" for one in self.problems)


FoundProfile = Profile | NoProfile | BadProfile


def load_profile(path: Path) -> FoundProfile:
    """The profile, or why there is none; never half of one."""
    from ingestion_pipeline.companies.matching.profile_reader import read_profile

    try:
        body = path.read_bytes()
    except FileNotFoundError:
        return NoProfile(path=path)
    except OSError as error:
        said = f"{error.strerror or 'not readable'}; make it a file that we may read"
        return BadProfile(path=path, problems=[ProfileProblem(line=1, key="file", message=said)])
    if len(body) > MAX_FILE_BYTES:
        said = f"{len(body)} bytes; a profile has at most {MAX_FILE_BYTES}"
        return BadProfile(path=path, problems=[ProfileProblem(line=1, key="file", message=said)])
    found = read_profile(body)
    return found if isinstance(found, Profile) else BadProfile(path=path, problems=found)


def example_profile() -> str:
    """The example that is shipped: every key, with what it means."""
    return resources.files(__package__ or "").joinpath(EXAMPLE).read_text()
