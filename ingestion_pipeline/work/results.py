"""What became of claimed work, whatever the work is: done or failed, and how many ended how."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Generic, Protocol, Self, TypeVar

from ingestion_pipeline.work.errors import WorkError
from ingestion_pipeline.work.task import Task


class ClaimedTask(Protocol):
    """Work that is ours to do."""

    @property
    def task(self) -> Task:
        """The claim."""
        ...


Work_co = TypeVar("Work_co", bound=ClaimedTask, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(Generic[Work_co]):
    """Some claimed work, and what became of it."""

    work: Work_co

    @property
    def task(self) -> Task:
        """The claim."""
        return self.work.task


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedResult(Result[Work_co]):
    """Work that came to nothing: this time, or for good."""

    error: WorkError
    stack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Numbers that are added up."""

    def __add__(self, other: Self) -> Self:
        """Counted together."""
        names = [one.name for one in fields(self)]
        return type(self)(**{name: getattr(self, name) + getattr(other, name) for name in names})
