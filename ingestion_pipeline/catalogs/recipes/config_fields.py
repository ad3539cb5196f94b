"""Typed access to the fields of a configuration; every problem is collected."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeVar, cast

from ingestion_pipeline.catalogs.recipes.patterns import BadPattern, LinkPattern
from ingestion_pipeline.urls import BadUrl, checked_url

MAX_CHARACTERS = 500  # of a selector or pattern; a longer one is a mistake

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")

Choice = TypeVar("Choice", bound=StrEnum)


def as_mapping(value: object) -> Mapping[str, Any] | None:
    """Return the value if it is a mapping, else None."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else None


class ConfigFields:
    """A mapping of the configuration at `path`; its problems are appended to `problems`."""

    def __init__(self, raw: Mapping[str, Any], path: str, problems: list[str]) -> None:
        self._raw = raw
        self._path = path
        self._problems = problems

    def has(self, key: str) -> bool:
        """Whether the key is set."""
        return self._raw.get(key) is not None

    def value(self, key: str) -> object:
        """Return the raw value of the key."""
        return self._raw.get(key)

    def refuse(self, key: str, why: str) -> None:
        """Add a problem under the full key, once."""
        problem = f"{self._path}.{key}: {why}"
        if problem not in self._problems:
            self._problems.append(problem)

    def refuse_key(self, key: str, why: str) -> None:
        """Add a problem if the key is set."""
        if self.has(key):
            self.refuse(key, why)

    def refuse_unknown(self, allowed: Sequence[str]) -> None:
        """Add a problem for each key that is not allowed."""
        for key in self._raw:
            if key not in allowed:
                self.refuse(str(key)[:80], f"unknown key; there are: {', '.join(allowed)}")

    def text(self, key: str) -> str | None:
        """Return a text that is not blank; None if it is not set."""
        value = self._raw.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or not value.strip():
            self.refuse(key, f"must be text, not {_shown(value)}")
            return None
        if len(value) > MAX_CHARACTERS:
            self.refuse(key, f"has more than {MAX_CHARACTERS} characters")
            return None
        return value.strip()

    def flag(self, key: str) -> bool:
        """Return true or false; false if it is not set."""
        value = self._raw.get(key)
        if value is not None and not isinstance(value, bool):
            self.refuse(key, f"must be true or false, not {_shown(value)}")
        return value is True

    def number(self, key: str, default: float, *, least: float, most: float, above_least: bool = False) -> float:
        """Return a number within bounds; the default if it is not set."""
        value = self._raw.get(key)
        if value is None:
            return default
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not least <= value <= most or (above_least and value == least):
            bounds = f"{'more than' if above_least else 'at least'} {least:g}, at most {most:g}"
            self.refuse(key, f"must be a number, {bounds}; not {_shown(value)}")
            return default
        return value

    def choice(self, key: str, choices: type[Choice]) -> Choice | None:
        """Return one of the choices; the key is required."""
        value = self._raw.get(key)
        if value in list(choices):
            return choices(value)
        choice_list = f"there are: {', '.join(choices)}"
        problem = "is missing" if value is None else f"{_shown(value)} is none"
        self.refuse(key, f"{problem}; {choice_list}")
        return None

    def selector(self, key: str) -> str | None:
        """Return a CSS selector; None if it is not set."""
        text = self.text(key)
        if text is None:
            return None
        from selectolax.lexbor import LexborHTMLParser, SelectolaxError  # imported only where it is needed

        try:
            LexborHTMLParser("<p>").css(text)
        except SelectolaxError:
            self.refuse(key, f"{text!r} is no CSS selector")
            return None
        return text

    def pattern(self, key: str, *, is_exact: bool) -> LinkPattern | None:
        """Return an RE2 pattern for link targets; None if it is not set."""
        text = self.text(key)
        if text is None:
            return None
        try:
            return LinkPattern(text, is_exact=is_exact).checked()
        except BadPattern as error:
            self.refuse(key, str(error))
            return None

    def url_template(self, key: str, text: str) -> bool:
        """Whether the URL counts by {offset}; add a problem if it has no number placeholder."""
        names = _PLACEHOLDER.findall(text)
        if unknown := [name for name in names if name not in {"page_num", "offset", "limit"}]:
            self.refuse(key, f"{{{unknown[0]}}} is unknown; there are {{page_num}}, {{offset}}")
        counts = [name for name in names if name in {"page_num", "offset"}]
        if len(counts) != 1:
            self.refuse(key, "must have one {page_num} or one {offset} where the number goes")
        if text and not text.startswith(("/", "?")):
            try:
                checked_url(_PLACEHOLDER.sub("1", text))
            except BadUrl as error:
                self.refuse(key, str(error))
        return "offset" in counts

    def inner(self, key: str) -> ConfigFields | None:
        """Return the mapping under the key; None if it is not set."""
        value = self._raw.get(key)
        if value is None:
            return None
        mapping = as_mapping(value)
        if mapping is None:
            self.refuse(key, f"must be a mapping, not {_shown(value)}")
            return None
        return ConfigFields(mapping, f"{self._path}.{key}", self._problems)


def _shown(value: object) -> str:
    return f"{value!r}"[:80]
