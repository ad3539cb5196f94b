"""The states of website analyses: phases with their tasks, answers, progress and priorities."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType

from sqlalchemy import ColumnElement, Select, func, select

from ingestion_pipeline.store.tables import website_analyses


class AnalysisStatus(StrEnum):
    """The state of an analysis; the last two are final."""

    NOT_STARTED = "not-started"
    PROMPT_FORMING = "prompt-forming"
    MODEL_ANALYSIS = "model-analysis"
    COMPLETED = "completed"
    FAILED = "failed"

    @property
    def is_final(self) -> bool:
        """Return whether the analysis has ended."""
        return self in {AnalysisStatus.COMPLETED, AnalysisStatus.FAILED}


class AnswerStatus(StrEnum):
    """The state of a provider's answer to one prompt."""

    ANSWERED = "answered"
    FAILED = "failed"


Pair = tuple[int, str]  # the prompt's number, and the provider


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderAnswer:
    """A row of `website_answers`: one provider's answer to one prompt, or why there is none."""

    prompt_index: int
    prompt: str
    provider: str
    model: str
    status: AnswerStatus
    is_direct: bool = False
    model_version: str | None = None
    answer: str | None = None
    cited_urls: tuple[str, ...] = ()
    error: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: Decimal | None = None
    sentiment: str | None = None

    @property
    def pair(self) -> Pair:
        """Return the key of the answer: prompt number and provider."""
        return self.prompt_index, self.provider


def newest_analyses(*those: ColumnElement[bool]) -> Select[int]:
    """Select the id of the newest of these analyses of each website."""
    return select(func.max(website_analyses.c.id)).where(*those).group_by(website_analyses.c.source_id)


IS_COMPLETE = website_analyses.c.status == AnalysisStatus.COMPLETED.value


# Kinds of tasks, one per phase; their dedupe key is the analysis.
WEBSITE_INFO = "website_info"
WEBSITE_PROMPTS = "website_prompts"
WEBSITE_ANALYSIS = "website_analysis"


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One phase: the name of its queue, the kind of its tasks, the states before and after it."""

    queue: str
    kind: str
    status: AnalysisStatus
    after: AnalysisStatus
    progress_percent: int  # when it has ended
    message: str  # shown while it is running


# In the order in which they are served.
PHASES = (
    Phase(
        queue="website-analysis",
        kind=WEBSITE_INFO,
        status=AnalysisStatus.NOT_STARTED,
        after=AnalysisStatus.PROMPT_FORMING,
        progress_percent=30,
        message="reading the website",
    ),
    Phase(
        queue="prompt-forming",
        kind=WEBSITE_PROMPTS,
        status=AnalysisStatus.PROMPT_FORMING,
        after=AnalysisStatus.MODEL_ANALYSIS,
        progress_percent=50,
        message="forming prompts",
    ),
    Phase(
        queue="model-analysis",
        kind=WEBSITE_ANALYSIS,
        status=AnalysisStatus.MODEL_ANALYSIS,
        after=AnalysisStatus.COMPLETED,
        progress_percent=100,
        message="asking providers",
    ),
)
KINDS = tuple(phase.kind for phase in PHASES)
BY_KIND: Mapping[str, Phase] = MappingProxyType({phase.kind: phase for phase in PHASES})
BY_STATUS: Mapping[AnalysisStatus, Phase] = MappingProxyType({phase.status: phase for phase in PHASES})

STARTED_PERCENT = 10

BASE_PRIORITY = 5
_FRESH = timedelta(hours=1)
_RECENT = timedelta(hours=6)
_TASK_PRIORITY = 100  # tasks are served by the smaller number, analyses by the greater


def dedupe_key(analysis_id: int) -> str:
    """Return the dedupe key of an analysis' tasks: one active task of each kind."""
    return f"analysis:{analysis_id}"


def analysis_priority(
    *, created_at: datetime, now: datetime, retries: int = 0, is_recurring: bool = False, is_manual: bool = False
) -> int:
    """Return how soon an analysis is served: the greater the sooner, never below 0."""
    age = now - created_at
    points = BASE_PRIORITY - retries
    points += 3 if age < _FRESH else 1 if age < _RECENT else 0
    points += 2 if is_recurring else 0
    points += 1 if is_manual else 0
    return max(points, 0)


def task_priority(priority: int) -> int:
    """Return the priority for the task queue, which serves the smaller number first."""
    return _TASK_PRIORITY - priority


def asking_percent(done: int, providers: int) -> int:
    """Return the progress in the last phase when that many of the providers are done."""
    return 60 + 30 * done // max(providers, 1)
