"""The keys of a profile, checked one by one: what is wrong is collected, never raised at once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeGuard, cast

import yaml

from ingestion_pipeline.companies.matching.profile import (
    BUZZWORDS,
    COMMISSION_ONLY,
    Allowed,
    Profile,
    ProfileProblem,
    Seniority,
    StopLists,
    Technologies,
    WorkModes,
)
from ingestion_pipeline.sources.yaml_nodes import compose, construct

MAX_RANK = 10
MAX_POINTS = 100
MAX_SALARY = 100_000_000
MAX_WORD_CHARACTERS = 200


def read_profile(body: bytes) -> Profile | list[ProfileProblem]:
    """The profile that the file states, or everything that is wrong with it."""
    try:
        root = compose(body)
        raw: object = None if root is None else construct(root)
    except (yaml.YAMLError, ValueError, TypeError) as error:
        return [_unreadable(error)]
    if root is None or not isinstance(root, yaml.MappingNode) or not isinstance(raw, dict):
        said = "must hold keys such as skills: and home_city:; `ingest profile example` shows all"
        return [ProfileProblem(line=1, key="file", message=said)]
    reader = _Reader(cast("dict[object, object]", raw), _lines(root))
    profile = reader.profile()
    return sorted(reader.problems, key=lambda one: one.line) or profile


def _unreadable(error: Exception) -> ProfileProblem:
    mark = getattr(error, "problem_mark", None)
    said = getattr(error, "problem", None) or str(error).partition("\n")[0]
    message = f"not readable as YAML: {said}; quote what holds : or #"
    return ProfileProblem(line=mark.line + 1 if mark else 1, key="yaml", message=message)


def _lines(node: yaml.Node, path: str = "") -> dict[str, int]:
    """Where each key stands; a key that stands twice is there with a star."""
    found: dict[str, int] = {}
    if not isinstance(node, yaml.MappingNode):
        return found
    for key, value in cast("list[tuple[yaml.Node, yaml.Node]]", node.value):
        name = f"{path}.{key.value}" if path else str(key.value)
        found[f"{name}*" if name in found else name] = key.start_mark.line + 1
        found |= _lines(value, name)
    return found


class _Part:
    """One map of the file, read key by key; problems go into the list of the whole."""

    def __init__(
        self,
        raw: Mapping[object, object],
        lines: Mapping[str, int],
        problems: list[ProfileProblem],
        path: str = "",
    ) -> None:
        self._raw = raw
        self._lines = lines
        self.problems = problems
        self._path = path
        self._asked: list[str] = []

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
        said = f"a whole number from {allowed[0]} to {allowed[-1]}, without commas or k"
        self.refuse(key, f"{_shown(value)} is none; write {said}")
        return None

    def words(self, key: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        value = self._value(key)
        if value is None:
            return default
        if not isinstance(value, list):
            self.refuse(key, f"{_shown(value)} is no list; write [one, another]")
            return default
        items = cast("list[object]", value)
        words = [one.strip() for one in items if _is_word(one)]
        for one in items:
            if not _is_word(one):
                said = "each must be a text of at most 200 characters; quote numbers and yes/no"
                self.refuse(key, f"{_shown(one)}: {said}")
        return tuple(dict.fromkeys(words))

    def points(self, key: str, allowed: range) -> dict[str, int]:
        value = self._value(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.refuse(key, "must be a map, such as `name: 3` indented under it")
            return {}
        found: dict[str, int] = {}
        for name, number in cast("dict[object, object]", value).items():
            if not _is_word(name):
                self.refuse(key, f"{_shown(name)} is no text; quote it")
            elif not _is_whole(number, allowed):
                said = f"a whole number from {allowed[0]} to {allowed[-1]}"
                self.refuse(f"{key}.{name}", f"{_shown(number)} is none; write {said}")
            else:
                found[name.strip()] = cast("int", number)
        return found

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
        """Keys that mean nothing, or that stand twice."""
        known = ", ".join(self._asked)
        for key in self._raw:
            name = self._name(str(key))
            if key not in self._asked:
                self.refuse(str(key), f"no key of {self._path or 'a profile'}; there are: {known}")
            if f"{name}*" in self._lines:
                self.refuse(str(key), "stands twice; keep one of them")

    def _name(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def _value(self, key: str) -> object:
        self._asked.append(key)
        return self._raw.get(key)


class _Reader(_Part):
    """The file as a whole."""

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
        said = "is no time zone; write its name, such as America/Los_Angeles or Europe/Berlin"
        self.refuse("time_zone", f"{_shown(name)} {said}")
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
        both = {one.lower() for one in read.wanted} & {one.lower() for one in read.unwanted}
        for one in sorted(both):
            part.refuse("unwanted", f"{one!r} is wanted, too; take it out of one of them")
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
            domains=tuple(one.lower() for one in part.words("domains")),
            keywords=part.words("keywords"),
        )
        part.finish()
        for one in read.domains:
            if "/" in one or ":" in one or "." not in one:
                part.refuse("domains", f"{one!r} is no domain; write jobs.example.com")
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
