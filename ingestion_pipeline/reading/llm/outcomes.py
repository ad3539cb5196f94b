"""What asking a model comes to: closed types, each with the tokens it took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar

from ingestion_pipeline.reading.llm.question import DroppedUrl
from ingestion_pipeline.tasks.errors import Permanent


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one call; cached ones are part of the input. Estimated if the server is silent."""

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
    """The model will not; the same model would not the next time either."""

    code: ClassVar[str] = "refused"
    model: str
    usage: Usage
    said: str = ""

    @property
    def problems(self) -> tuple[str, ...]:
        """For people: what it said."""
        return (f"it refused: {self.said}",)


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOff:
    """The answer ended at the limit of tokens; asked again it would end there again."""

    code: ClassVar[str] = "cut_off"
    model: str
    usage: Usage

    @property
    def problems(self) -> tuple[str, ...]:
        """For people: where it ended."""
        return (f"it was cut off after {self.usage.output_tokens} tokens",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Empty:
    """An answer without a word."""

    code: ClassVar[str] = "empty"
    model: str
    usage: Usage

    @property
    def problems(self) -> tuple[str, ...]:
        """For the model, when it is asked again."""
        return ("it was empty",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Malformed:
    """Words that are no JSON object."""

    code: ClassVar[str] = "malformed"
    model: str
    usage: Usage
    text: str
    problem: str

    @property
    def problems(self) -> tuple[str, ...]:
        """For the model, when it is asked again."""
        return (f"it is not JSON: {self.problem}",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Violated:
    """An object of another form than the schema's."""

    code: ClassVar[str] = "violated"
    model: str
    usage: Usage
    text: str
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """The server took the question for a bad one (too long, say) and answered nothing."""

    code: ClassVar[str] = "rejected"
    model: str
    usage: Usage
    message: str

    @property
    def problems(self) -> tuple[str, ...]:
        """For people: what the server said."""
        return (self.message,)


NoAnswer = AnswerRefused | CutOff | Empty | Malformed | Violated | Rejected


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """An object of the schema; values with URLs that the page lacks are null, and named.

    `before` is what was said before it, by this model or a cheaper one.
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
        """Tokens of all calls that led here."""
        return sum((one.usage for one in self.before), self.usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unanswered:
    """Every rung was tried; what each said, in order."""

    tries: tuple[NoAnswer, ...]

    @property
    def usage(self) -> Usage:
        """Tokens of all calls."""
        return sum((one.usage for one in self.tries), Usage())

    def as_error(self) -> Permanent:
        """The failure for a dead letter; its code is that of the last word."""
        last = self.tries[-1]
        said = "; ".join(last.problems)
        return Permanent(f"{last.model} gave no usable answer: {said}", code=f"model_{last.code}")


@dataclass(frozen=True, slots=True, kw_only=True)
class OverBudget:
    """The extraction's budget does not hold one more call; the caller cancels the extraction."""

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
