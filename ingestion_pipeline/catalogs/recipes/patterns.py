"""Patterns that a recipe gives for link targets: RE2, which no page can make slow."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

_LOOK_AROUND = re.compile(r"\(\?(?:<?[=!])")


class BadPattern(ValueError):
    """A pattern that cannot be used; the message has the place and what is wrong there."""


@dataclass(frozen=True, slots=True)
class LinkPattern:
    """Matches a part of a link's target; with `is_exact` that part alone is the link."""

    text: str
    is_exact: bool = False

    def checked(self) -> LinkPattern:
        """The pattern itself.

        Raises:
            BadPattern: it is no RE2 pattern.
        """
        _compiled(self.text)
        return self

    def find(self, target: str) -> str | None:
        """What of the target is followed; None if it does not match."""
        found = _compiled(self.text).search(target)
        if found is None or not found[0]:
            return None
        return found[0] if self.is_exact else target

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Where it matches in a text, from left to right."""
        return [one.span() for one in _compiled(self.text).finditer(text) if one[0]]


@lru_cache(maxsize=1_000)
def _compiled(text: str) -> Any:  # noqa: ANN401 - re2 has no annotations
    # Only who declares or follows links pays for it; it has no annotations.
    re2: Any = import_module("re2")
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(text, options)
    except re2.error as error:
        raise BadPattern(_explained(text, error)) from None


def _explained(text: str, error: Exception) -> str:
    """RE2 names the part it did not understand; people want to know where it stands."""
    raw = error.args[0] if error.args else ""
    said = raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)
    part = said.rpartition(": ")[2]
    at = text.find(part) if part else -1
    place = f" at character {at + 1}" if at >= 0 else ""
    cure = "; RE2 has no look-ahead or look-behind" if _LOOK_AROUND.search(text) else ""
    return f"{text[:200]!r} is no RE2 pattern{place}: {said}{cure}"
