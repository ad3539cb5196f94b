"""How deep a document is, judged by its tags alone, before any parser gets it."""

from __future__ import annotations

from collections import Counter

from ingestion_pipeline.work.errors import Permanent


class OpenElements:
    """The open elements of a document that need not be well formed."""

    def __init__(self, max_depth: int) -> None:
        self._max_depth = max_depth
        self._names: list[str] = []
        self._open_count: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._names)

    def open(self, name: str) -> None:
        """Open another one.

        Raises:
            Permanent: `too_deep`.
        """
        self._names.append(name)
        self._open_count[name] += 1
        if len(self._names) > self._max_depth:
            raise Permanent(
                f"the body nests more than {self._max_depth} elements; it is not read",
                code="too_deep",
            )

    def close(self, name: str) -> None:
        """Close the innermost of that name and what it left open; a stray end means nothing."""
        closed = None
        while closed != name and self._open_count[name]:
            closed = self._names.pop()
            self._open_count[closed] -= 1
