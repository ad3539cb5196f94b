"""Language models: ask questions about a page, return answers by schema, pay at most once.

The configured model is called only if no answer is cached, under budgets, and with every request in
the ledger. Grounding the values of an answer, and using them, does not belong here.
"""

# pyright: reportUnusedImport=false

from ingestion_pipeline.reading.llm.client import BOTH, ModelClient, ModelTier, open_model
from ingestion_pipeline.reading.llm.ledger import Billing
from ingestion_pipeline.reading.llm.question import (
    Answer,
    Answered,
    AnswerSchema,
    BadSchema,
    Fault,
    NoAnswer,
    OverBudget,
    PageText,
    Prompt,
    Question,
    Unanswered,
    Usage,
)
