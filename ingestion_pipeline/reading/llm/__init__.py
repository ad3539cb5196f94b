"""Questions about a page enter; answers by schema leave, paid for at most once.

A question is asked of the configured language model only where no answer is kept, under budgets,
and with every request in the ledger. What a page's values are worth (grounding), and what becomes
of them, does not belong here.
"""

from ingestion_pipeline.reading.llm.budgets import Billing
from ingestion_pipeline.reading.llm.client import BOTH, ModelClient, ModelTier
from ingestion_pipeline.reading.llm.outcomes import (
    Answer,
    Answered,
    AnswerRefused,
    CutOff,
    Empty,
    Malformed,
    NoAnswer,
    OverBudget,
    Rejected,
    Unanswered,
    Usage,
    Violated,
)
from ingestion_pipeline.reading.llm.question import PageText, Prompt, Question
from ingestion_pipeline.reading.llm.schema import AnswerSchema, BadSchema

__all__ = [
    "BOTH",
    "Answer",
    "AnswerRefused",
    "AnswerSchema",
    "Answered",
    "BadSchema",
    "Billing",
    "CutOff",
    "Empty",
    "Malformed",
    "ModelClient",
    "ModelTier",
    "NoAnswer",
    "OverBudget",
    "PageText",
    "Prompt",
    "Question",
    "Rejected",
    "Unanswered",
    "Usage",
    "Violated",
]
