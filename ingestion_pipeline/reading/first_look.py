"""One quick look at a text: may a pattern that is slow to look for stand in it at all?

An alternation that ignores case is tried by `re` at each character, which took a page longer than
to parse it; re2 goes through the text once. The look must see at least what the pattern sees, and
may see more: whoever is told yes looks again.
"""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from typing import Any


class QuickCheck:
    """A pattern in re2's syntax, in small letters, to be found in a folded text."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern

    def sees(self, text: str) -> bool:
        """Whether the pattern stands anywhere in the text, in whatever case."""
        return self._compiled.search(folded(text).encode("utf-8", "replace")) is not None

    @cached_property
    def _compiled(self) -> Any:  # noqa: ANN401 - re2 has no types
        re2: Any = import_module("re2")
        return re2.compile(self._pattern.encode())


def folded(text: str) -> str:
    """The text in small letters: what `re` takes for the same letter is the same here."""
    if text.isascii():
        return text.lower()
    return text.replace("\u0130", "i").replace("\u0131", "i").casefold()
