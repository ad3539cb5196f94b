"""What the pages of one list have shown so far, by which a list that never ends is recognised."""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

MOST_PAGES_WITHOUT_NEWS = 3  # one may be empty or repeat another by mistake
MOST_REMEMBERED = (
    2_000  # the newest, four bytes each: a task's payload carries them to the next page
)
_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ListMemory:
    """Digests of what a list has shown, and how many pages in a row have added nothing to it."""

    digests: tuple[bytes, ...] = ()
    pages_without_news: int = 0

    @property
    def is_over(self) -> bool:
        """Whether the list goes on without anything new."""
        return self.pages_without_news >= MOST_PAGES_WITHOUT_NEWS

    def after(self, content: Iterable[str], *, least_news: int = 1) -> ListMemory:
        """Return the memory after a page that shows this; fewer than `least_news` are no news."""
        digests = dict.fromkeys(map(_digest, content))
        earlier = set(self.digests)
        new = [digest for digest in digests if digest not in earlier]
        return ListMemory(
            digests=(*self.digests, *new)[-MOST_REMEMBERED:],
            pages_without_news=0 if len(new) >= least_news else self.pages_without_news + 1,
        )

    def to_payload(self) -> dict[str, Any]:
        """Return it as a task's payload keeps it."""
        packed = b64encode(b"".join(self.digests)).decode()
        return {"digests": packed, "pages_without_news": self.pages_without_news}

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any]) -> ListMemory:
        """Return it from a task's payload."""
        packed = b64decode(payload["digests"])
        digests = (packed[at : at + _BYTES] for at in range(0, len(packed), _BYTES))
        return cls(digests=tuple(digests), pages_without_news=payload["pages_without_news"])


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=_BYTES).digest()
