"""The job seeker's profile, read from `profile.yaml`; all mistakes are reported at once."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any, TypeGuard, cast

import yaml

from ingestion_pipeline.sources.files import compose, construct

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
    """Whether a work mode is acceptable."""

    YES = "yes"
    NO = "no"
    HOME_CITY = "home_city"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkModes:
    """Acceptable work modes; a listing that states none is never rejected for it."""

    remote: Allowed = Allowed.YES
    hybrid: Allowed = Allowed.HOME_CITY
    on_site: Allowed = Allowed.NO


@dataclass(frozen=True, slots=True, kw_only=True)
class Seniority:
    """Levels by words of the title; `strikes` has points, and the first match counts."""

    wanted: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()
    strikes: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True, kw_only=True)
class StopLists:
    """What is not even fetched: parts of company names, domains, words of URL and title."""

    companies: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Technologies:
    """`required`: a strike if none is named; `undesired`: points; `forbidden`: a rejection."""

    required: tuple[str, ...] = ()
    undesired: Mapping[str, int] = field(default_factory=dict[str, int])
    forbidden: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A job seeker's preferences; skill ranks are 1 to 10, role points may be negative."""

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
        """Return a hash that changes when evaluations may change; the order of maps counts."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()


# Used without a file: only the settings' limits filter.
EMPTY_PROFILE = Profile(work_modes=WorkModes(remote=Allowed.YES, hybrid=Allowed.YES, on_site=Allowed.YES))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileProblem:
    """One mistake in the file, with its line and key."""

    line: int
    key: str
    message: str


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
    problems: Sequence[ProfileProblem]

    def __str__(self) -> str:
        """Return a line per problem: file:line: key: what is wrong and what is accepted."""
        name = self.path.name
        return "\n".join(f"{name}:{problem.line}: {problem.key}: {problem.message}" for problem in self.problems)


ProfileResult = Profile | NoProfile | BadProfile


def load_profile(path: Path) -> ProfileResult:
    """Return the complete profile, or why there is none."""
    try:
        body = path.read_bytes()
    except FileNotFoundError:
        return NoProfile(path=path)
    except OSError as error:
        message = f"{error.strerror or 'not readable'}; make it a file that we may read"
        return BadProfile(path=path, problems=[ProfileProblem(line=1, key="file", message=message)])
    if len(body) > MAX_FILE_BYTES:
        message = f"{len(body)} bytes; a profile has at most {MAX_FILE_BYTES}"
        return BadProfile(path=path, problems=[ProfileProblem(line=1, key="file", message=message)])
    result = read_profile(body)
    return result if isinstance(result, Profile) else BadProfile(path=path, problems=result)


def example_profile() -> str:
    """Return the example file: every key with its meaning."""
    return resources.files(__package__ or "").joinpath(EXAMPLE).read_text()


MAX_RANK = 10
MAX_POINTS = 100
MAX_SALARY = 100_000_000
MAX_WORD_CHARACTERS = 200


def read_profile(body: bytes) -> Profile | list[ProfileProblem]:
    """Return the profile that the file states, or everything that is wrong with it."""
    try:
        root = compose(body)
        raw: object = None if root is None else construct(root)
    except (yaml.YAMLError, ValueError, TypeError) as error:
        return [_unreadable(error)]
    if root is None or not isinstance(root, yaml.MappingNode) or not isinstance(raw, dict):
        message = "must hold keys such as skills: and home_city:; `ingest profile example` shows all"
        return [ProfileProblem(line=1, key="file", message=message)]
    reader = _Reader(cast("dict[object, object]", raw), _lines(root))
    profile = reader.profile()
    return sorted(reader.problems, key=lambda problem: problem.line) or profile


def _unreadable(error: Exception) -> ProfileProblem:
    mark = getattr(error, "problem_mark", None)
    reason = getattr(error, "problem", None) or str(error).partition("\n")[0]
    message = f"not readable as YAML: {reason}; quote what holds : or #"
    return ProfileProblem(line=mark.line + 1 if mark else 1, key="yaml", message=message)


def _lines(node: yaml.Node, path: str = "") -> dict[str, int]:
    """Return the line of each key; a repeated key is there with a star."""
    lines: dict[str, int] = {}
    if not isinstance(node, yaml.MappingNode):
        return lines
    for key, value in cast("list[tuple[yaml.Node, yaml.Node]]", node.value):
        name = f"{path}.{key.value}" if path else str(key.value)
        lines[f"{name}*" if name in lines else name] = key.start_mark.line + 1
        lines |= _lines(value, name)
    return lines


class _Part:
    """One map of the file, read key by key; problems go into the shared list."""

    def __init__(
        self, raw: Mapping[object, object], lines: Mapping[str, int], problems: list[ProfileProblem], path: str = ""
    ) -> None:
        self._raw = raw
        self._lines = lines
        self.problems = problems
        self._path = path
        self._read_keys: list[str] = []

    def part(self, key: str) -> _Part:
        value = self._value(key)
        if value is not None and not isinstance(value, dict):
            self.refuse(key, "must be a map of keys, indented under it")
            value = None
        inner = cast("dict[object, object]", value or {})
        return _Part(inner, self._lines, self.problems, self._name(key))

    def refuse(self, key: str, message: str) -> None:
        name = self._name(key)
        line = self._lines.get(name) or self._lines.get(self._path, 1)
        self.problems.append(ProfileProblem(line=line, key=name, message=message))

    def text(self, key: str) -> str | None:
        value = self._value(key)
        if value is None or (isinstance(value, str) and value.strip()):
            return value.strip() if value else None
        self.refuse(key, f"{_shown(value)} is no text; write one, or leave the key out")
        return None

    def integer(self, key: str, allowed: range) -> int | None:
        value = self._value(key)
        if value is None or _is_whole(value, allowed):
            return cast("int | None", value)
        accepted = f"a whole number from {allowed[0]} to {allowed[-1]}, without commas or k"
        self.refuse(key, f"{_shown(value)} is none; write {accepted}")
        return None

    def words(self, key: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        value = self._value(key)
        if value is None:
            return default
        if not isinstance(value, list):
            self.refuse(key, f"{_shown(value)} is no list; write [one, another]")
            return default
        items = cast("list[object]", value)
        words = [item.strip() for item in items if _is_word(item)]
        for item in items:
            if not _is_word(item):
                rule = "each must be a text of at most 200 characters; quote numbers and yes/no"
                self.refuse(key, f"{_shown(item)}: {rule}")
        return tuple(dict.fromkeys(words))

    def points(self, key: str, allowed: range) -> dict[str, int]:
        value = self._value(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.refuse(key, "must be a map, such as `name: 3` indented under it")
            return {}
        points: dict[str, int] = {}
        for name, number in cast("dict[object, object]", value).items():
            if not _is_word(name):
                self.refuse(key, f"{_shown(name)} is no text; quote it")
            elif not _is_whole(number, allowed):
                accepted = f"a whole number from {allowed[0]} to {allowed[-1]}"
                self.refuse(f"{key}.{name}", f"{_shown(number)} is none; write {accepted}")
            else:
                points[name.strip()] = cast("int", number)
        return points

    def allowed(self, key: str, default: Allowed) -> Allowed:
        value = self._value(key)
        if value is None:
            return default
        if isinstance(value, bool):
            return Allowed.YES if value else Allowed.NO
        if isinstance(value, str) and value in set(Allowed):
            return Allowed(value)
        self.refuse(key, f"{_shown(value)} is none of yes, no, home_city")
        return default

    def finish(self) -> None:
        """Report unknown and repeated keys."""
        accepted = ", ".join(self._read_keys)
        for key in self._raw:
            name = self._name(str(key))
            if key not in self._read_keys:
                self.refuse(str(key), f"no key of {self._path or 'a profile'}; there are: {accepted}")
            if f"{name}*" in self._lines:
                self.refuse(str(key), "stands twice; keep one of them")

    def _name(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def _value(self, key: str) -> object:
        self._read_keys.append(key)
        return self._raw.get(key)


class _Reader(_Part):
    """The whole file."""

    def __init__(self, raw: Mapping[object, object], lines: Mapping[str, int]) -> None:
        super().__init__(raw, lines, [])

    def profile(self) -> Profile:
        ranks = range(1, MAX_RANK + 1)
        read = Profile(
            skills=self.points("skills", ranks),
            home_city=self.text("home_city"),
            time_zone=self._time_zone(),
            currency=self._currency(),
            salary_floor=self.integer("salary_floor", range(MAX_SALARY + 1)),
            seniority=self._seniority(),
            work_modes=self._work_modes(),
            job_types_unwanted=self.words("job_types_unwanted"),
            roles=self.points("roles", range(-MAX_POINTS, MAX_POINTS + 1)),
            stop=self._stop(),
            reject_keywords=self.words("reject_keywords"),
            technologies=self._technologies(),
            buzzwords=self.words("buzzwords", BUZZWORDS),
            commission_phrases=self.words("commission_phrases", COMMISSION_ONLY),
        )
        self.finish()
        if not read.skills and "skills" not in self._raw:
            self.refuse("skills", "is missing: nothing can be scored; write `Python: 10` under it")
        return read

    def _time_zone(self) -> str | None:
        from zoneinfo import available_timezones

        name = self.text("time_zone")
        if name is None or name in available_timezones():
            return name
        hint = "is no time zone; write its name, such as America/Los_Angeles or Europe/Berlin"
        self.refuse("time_zone", f"{_shown(name)} {hint}")
        return None

    def _currency(self) -> str:
        code = self.text("currency")
        if code is None or re.fullmatch("[A-Z]{3}", code):
            return code or "USD"
        self.refuse("currency", f"{_shown(code)} is no currency; write its code, such as USD")
        return "USD"

    def _seniority(self) -> Seniority:
        part = self.part("seniority")
        read = Seniority(
            wanted=part.words("wanted"),
            unwanted=part.words("unwanted"),
            strikes=part.points("strikes", range(1, MAX_POINTS + 1)),
        )
        part.finish()
        both = {word.lower() for word in read.wanted} & {word.lower() for word in read.unwanted}
        for word in sorted(both):
            part.refuse("unwanted", f"{word!r} is wanted, too; take it out of one of them")
        return read

    def _work_modes(self) -> WorkModes:
        part, usual = self.part("work_modes"), WorkModes()
        read = WorkModes(
            remote=part.allowed("remote", usual.remote),
            hybrid=part.allowed("hybrid", usual.hybrid),
            on_site=part.allowed("on_site", usual.on_site),
        )
        part.finish()
        return read

    def _stop(self) -> StopLists:
        part = self.part("stop")
        read = StopLists(
            companies=part.words("companies"),
            domains=tuple(domain.lower() for domain in part.words("domains")),
            keywords=part.words("keywords"),
        )
        part.finish()
        for domain in read.domains:
            if "/" in domain or ":" in domain or "." not in domain:
                part.refuse("domains", f"{domain!r} is no domain; write jobs.example.com")
        return read

    def _technologies(self) -> Technologies:
        part = self.part("technologies")
        read = Technologies(
            required=part.words("required"),
            undesired=part.points("undesired", range(1, MAX_POINTS + 1)),
            forbidden=part.words("forbidden"),
        )
        part.finish()
        return read


def _is_word(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and 0 < len(value.strip()) <= MAX_WORD_CHARACTERS


def _is_whole(value: object, allowed: range) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value in allowed


def _shown(value: Any) -> str:  # noqa: ANN401 - whatever the file says
    return repr(value)[:80]
