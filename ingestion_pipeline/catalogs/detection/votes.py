"""Votes of a model: each answer counts once, and only more than half of them decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Choice = TypeVar("Choice", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally(Generic[Choice]):
    """How a vote went; `winner` is None where it decided nothing."""

    winner: Choice | None
    counts: tuple[tuple[Choice, int], ...]
    asked: int

    def __str__(self) -> str:
        """For people."""
        said = ", ".join(f"{choice} {count}" for choice, count in self.counts)
        return f"{said or 'no answer'} of {self.asked}"


def tally(votes: Sequence[Choice | None]) -> Tally[Choice]:
    """The choice of more than half of those who answered; a tie decides nothing.

    None is an answer that was not given: it is nobody's vote.
    """
    counted = Counter(vote for vote in votes if vote is not None)
    counts = sorted(counted.items(), key=lambda one: (-one[1], str(one[0])))
    given = sum(count for _, count in counts)
    winner = counts[0][0] if counts and counts[0][1] * 2 > given else None
    return Tally(winner=winner, counts=tuple(counts), asked=len(votes))
