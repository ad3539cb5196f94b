"""The outcomes of asking a model: closed types, each with its token usage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar

from ingestion_pipeline.reading.llm.question import DroppedUrl
from ingestion_pipeline.tasks.errors import Permanent


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one call; cached ones are part of the input. Estimated if not counted."""

    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    is_estimated: bool = False

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            cached_input_tokens=self.cached_input_tokens + other.cached_input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            is_estimated=self.is_estimated or other.is_estimated,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRefused:
    """The model refused; the same model would refuse the next time too."""

    code: ClassVar[str] = "refused"
    model: str
    usage: Usage
    message: str = ""

    @property
    def problems(self) -> tuple[str, ...]:
        """Return the refusal, for people."""
        return (f"it refused: {self.message}",)


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOff:
    """The answer ended at the token limit; a repeated call would end there again."""

    code: ClassVar[str] = "cut_off"
    model: str
    usage: Usage

    @property
    def problems(self) -> tuple[str, ...]:
        """Return where it ended, for people."""
        return (f"it was cut off after {self.usage.output_tokens} tokens",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Empty:
    """An answer without text."""

    code: ClassVar[str] = "empty"
    model: str
    usage: Usage

    @property
    def problems(self) -> tuple[str, ...]:
        """Return the problem for the model, for the second request."""
        return ("it was empty",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Malformed:
    """Text that is no JSON object."""

    code: ClassVar[str] = "malformed"
    model: str
    usage: Usage
    text: str
    problem: str

    @property
    def problems(self) -> tuple[str, ...]:
        """Return the problem for the model, for the second request."""
        return (f"it is not JSON: {self.problem}",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Violated:
    """An object that breaks the schema."""

    code: ClassVar[str] = "violated"
    model: str
    usage: Usage
    text: str
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """The server rejected the request (too long, say) and answered nothing."""

    code: ClassVar[str] = "rejected"
    model: str
    usage: Usage
    message: str

    @property
    def problems(self) -> tuple[str, ...]:
        """Return the server's message, for people."""
        return (self.message,)


NoAnswer = AnswerRefused | CutOff | Empty | Malformed | Violated | Rejected


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """An object of the schema; values with URLs that the page lacks are null, and named.

    `before` are the failed outcomes before it, by this model or a cheaper one.
    """

    code: ClassVar[str] = "answered"
    model: str
    usage: Usage
    data: Mapping[str, object]
    dropped: tuple[DroppedUrl, ...] = ()
    before: tuple[NoAnswer, ...] = ()
    is_cached: bool = False

    @property
    def whole_usage(self) -> Usage:
        """Return the tokens of all calls that led here."""
        return sum((outcome.usage for outcome in self.before), self.usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unanswered:
    """Every tier was tried; the outcome of each, in order."""

    tries: tuple[NoAnswer, ...]

    @property
    def usage(self) -> Usage:
        """Return the tokens of all calls."""
        return sum((outcome.usage for outcome in self.tries), Usage())

    def as_error(self) -> Permanent:
        """Return the failure for a dead letter; its code is that of the last outcome."""
        last = self.tries[-1]
        problems = "; ".join(last.problems)
        return Permanent(f"{last.model} gave no usable answer: {problems}", code=f"model_{last.code}")


@dataclass(frozen=True, slots=True, kw_only=True)
class OverBudget:
    """The extraction's budget has no room for one more call; the caller cancels the extraction."""

    extraction_id: int
    limit_usd: Decimal
    held_usd: Decimal
    wanted_usd: Decimal

    def __str__(self) -> str:
        return (
            f"extraction {self.extraction_id} has taken {self.held_usd} of {self.limit_usd} dollars"
            f" and would need {self.wanted_usd} more; raise INGESTION_MODEL_BUDGET_USD"
        )


Answer = Answered | Unanswered | OverBudget
