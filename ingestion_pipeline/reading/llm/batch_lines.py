"""Questions that wait for an answer at half the price: collected in batches, reserved and settled line by line.

```
open ──> reserved ──> submitting ──> submitted ──> ended
```
A line is named by the cache key of its question, which is its custom_id at the provider. Its answer is stored where
answers to questions are cached, with its cost in the ledger; whoever waits for it finds it there. A line without a
usable answer ends with its outcome, and its question is asked at once.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from sqlalchemy import ColumnElement, Connection, delete, insert, select, text, update

from ingestion_pipeline.reading.llm.ledger import (
    Billing,
    InFlight,
    Ledger,
    NewCall,
    Reserved,
    cache_answer,
    cached_answers,
    counted_usage,
    estimated_usage,
)
from ingestion_pipeline.reading.llm.question import MAX_OUTPUT_TOKENS, Answered, AnswerSchema, Fault, NoAnswer, Usage
from ingestion_pipeline.reading.llm.wire import (
    FORGOTTEN_AFTER,
    AnswerFormat,
    BadModelRequest,
    Exchange,
    ServerReply,
    classify_reply,
)
from ingestion_pipeline.store.statements import insert_into
from ingestion_pipeline.store.tables import FRONTIER, model_batch_lines, model_batches, tasks
from ingestion_pipeline.tasks.errors import Resource
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline.tasks.task import NewTask, TaskStatus

MODEL_BATCH = "model_batch"  # the kind of a batch's task, and the error code of work whose question waits in one
FORMATS = frozenset({AnswerFormat.RESPONSES, AnswerFormat.CHAT_SCHEMA})  # whose requests hold the schema
LOCK = 0xBA7C4  # id of the advisory lock of who opens a batch; reserved
MAX_LINES = 1_000  # of a batch: a file of some 50 MB; providers take 50,000 lines and 200 MB
LINES_AT_ONCE = 100  # reserved or settled in one transaction, which holds the counters of the budgets
LONGEST_WAIT = timedelta(hours=25)  # providers end a batch after 24 hours
UNSUPPORTED, BUDGET, ANSWERED = "unsupported", "budget", "answered"
OPEN, RESERVED, SUBMITTING, SUBMITTED, ENDED = "open", "reserved", "submitting", "submitted", "ended"
lines = model_batch_lines.c


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBatch:
    """A batch as it was read."""

    id: int
    provider: str
    model: str
    answer_format: AnswerFormat
    status: str
    key: str
    remote_file_id: str | None
    remote_id: str | None
    created_at: datetime
    submitted_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLine:
    """A line of a batch; without an outcome it waits. Once it is sent, it is paid for."""

    is_sent: bool
    outcome: str | None
    reply: str | None
    problems: tuple[str, ...]

    def failed_answer(self, model: str) -> NoAnswer | None:
        """Return the model's unusable answer; None if it gave none at all."""
        if self.reply is None:
            return None
        return NoAnswer(
            fault=Fault(self.outcome or ""), model=model, usage=Usage(), problems=self.problems, text=self.reply
        )


def waiting(now: datetime) -> Resource:
    """Return the error of work whose question waits in a batch; the end of the batch makes its task due."""
    message = "its question waits in a batch of the model; the answer comes within a day"
    return Resource(message, until=now + LONGEST_WAIT, code=MODEL_BATCH)


def find_line(connection: Connection, cache_key: str) -> BatchLine | None:
    """Return the line of a question; None if it is in no batch."""
    row = connection.execute(select(model_batch_lines).where(lines.cache_key == cache_key)).one_or_none()
    if row is None:
        return None
    is_sent = row.call_id is not None and row.outcome is None
    return BatchLine(is_sent=is_sent, outcome=row.outcome, reply=row.reply, problems=tuple(row.problems or ()))


def is_refused(connection: Connection, provider: str, *, now: datetime) -> bool:
    """Return whether the server has answered lately that it has no batches."""
    query = select(model_batches.c.id).where(
        model_batches.c.status == ENDED,
        model_batches.c.provider == provider,
        model_batches.c.outcome == UNSUPPORTED,
        model_batches.c.ended_at > now - FORGOTTEN_AFTER,
    )
    return connection.execute(query.limit(1)).first() is not None


def add_line(
    connection: Connection, call: NewCall, request: Mapping[str, Any], *, wait: timedelta, now: datetime
) -> None:
    """Add the question to the open batch of its model, or to a new one with its task; once, however often called."""
    batch_id = _open_batch(connection, call.provider, call.model, call.format, wait=wait, now=now)
    row = {
        "cache_key": call.cache_key,
        "batch_id": batch_id,
        "source_id": call.billing.source_id,
        "page_id": call.billing.page_id,
        "extraction_id": call.billing.extraction_id,
        "call_site": call.billing.call_site,
        "prompt_version": call.prompt_version,
        "request": dict(request),
        "created_at": now,
    }
    statement = insert_into(connection, model_batch_lines).values(row)
    added = connection.execute(statement.on_conflict_do_nothing(index_elements=["cache_key"])).rowcount
    _count(connection, batch_id, added)


def _open_batch(
    connection: Connection, provider: str, model: str, answer_format: str, *, wait: timedelta, now: datetime
) -> int:
    batches = model_batches.c
    query = select(batches.id).where(
        batches.status == OPEN,
        batches.provider == provider,
        batches.model == model,
        batches.format == answer_format,
        batches.line_count < MAX_LINES,
    )
    # Locked, so that none is added to a batch that is being reserved.
    query = query.order_by(batches.id).limit(1).with_for_update()
    existing = connection.execute(query).scalar()
    if existing is None and connection.dialect.name == "postgresql":
        # Transactions that ask at the same time share the batch of the first one.
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
        existing = connection.execute(query).scalar()
    if existing is not None:
        return existing
    row = {"provider": provider, "model": model, "format": answer_format, "created_at": now}
    new = insert(model_batches).values(row | {"status": OPEN, "key": str(uuid4()), "line_count": 0})
    batch_id = connection.execute(new.returning(batches.id)).scalar_one()
    task = NewTask(
        kind=MODEL_BATCH, dedupe_key=f"{MODEL_BATCH}:{batch_id}", not_before=now + wait, payload={"batch": batch_id}
    )
    insert_tasks(connection, [task], now=now)
    return batch_id


def _count(connection: Connection, batch_id: int, added: int) -> None:
    statement = update(model_batches).where(model_batches.c.id == batch_id)
    connection.execute(statement.values(line_count=model_batches.c.line_count + added))


def load_batches(connection: Connection, ids: Collection[int]) -> dict[int, ModelBatch]:
    """Return these batches by id."""
    names = ("id", "provider", "model", "status", "key", "remote_file_id", "remote_id", "created_at", "submitted_at")
    rows = connection.execute(select(model_batches).where(model_batches.c.id.in_(ids)))
    return {
        row.id: ModelBatch(answer_format=AnswerFormat(row.format), **{name: getattr(row, name) for name in names})
        for row in rows
    }


def update_batch(connection: Connection, batch_id: int, **values: object) -> None:
    """Write a step of the batch."""
    connection.execute(update(model_batches).where(model_batches.c.id == batch_id).values(**values))


def reserve_lines(connection: Connection, ledger: Ledger, batch: ModelBatch, *, wait: timedelta, now: datetime) -> int:
    """Reserve the expected costs of the next lines; return how many lines were handled.

    A line that others' reserves leave no room for moves to a later batch; one beyond a budget ends.
    """
    query = select(model_batch_lines).where(
        lines.batch_id == batch.id, lines.call_id.is_(None), lines.outcome.is_(None)
    )
    rows = connection.execute(query.order_by(lines.created_at, lines.cache_key).limit(LINES_AT_ONCE)).all()
    answered = cached_answers(connection, [row.cache_key for row in rows])
    for row in rows:
        if row.cache_key in answered:
            _end_line(connection, row.cache_key, ANSWERED)
            continue
        try:
            reserved = ledger.reserve_in(connection, _call(batch, row), now=now)
        except Resource:  # the money of a period
            reserved = None
        if isinstance(reserved, Reserved):
            values: dict[str, object] = {"call_id": reserved.call_id}
        elif isinstance(reserved, InFlight):
            later = _open_batch(connection, batch.provider, batch.model, batch.answer_format.value, wait=wait, now=now)
            _count(connection, later, 1)
            values = {"batch_id": later}
        else:
            _end_line(connection, row.cache_key, BUDGET)
            continue
        connection.execute(update(model_batch_lines).where(lines.cache_key == row.cache_key).values(values))
    return len(rows)


def _call(batch: ModelBatch, row: Any) -> NewCall:  # noqa: ANN401 - a row
    billing = Billing(
        call_site=row.call_site, source_id=row.source_id, page_id=row.page_id, extraction_id=row.extraction_id
    )
    return NewCall(
        billing=billing,
        provider=batch.provider,
        model=batch.model,
        format=batch.answer_format.value,
        cache_key=row.cache_key,
        prompt_version=row.prompt_version,
        estimate=_estimate(row.request),
        in_batch=True,
    )


def _estimate(request: Mapping[str, Any]) -> Usage:
    size = len(json.dumps(request, ensure_ascii=False).encode())
    tokens = request.get("max_output_tokens") or request.get("max_tokens") or MAX_OUTPUT_TOKENS
    return estimated_usage(input_bytes=size, output_tokens=tokens)


def _is_in_flight(batch: ModelBatch) -> ColumnElement[bool]:
    return (lines.batch_id == batch.id) & lines.call_id.is_not(None) & lines.outcome.is_(None)


def requests_of(connection: Connection, batch: ModelBatch) -> bytes:
    """Return the file of the batch: the request of each reserved line as JSON."""
    path = "/v1/responses" if batch.answer_format is AnswerFormat.RESPONSES else "/v1/chat/completions"
    query = select(lines.cache_key, lines.request).where(_is_in_flight(batch)).order_by(lines.cache_key)
    entries = (
        {"custom_id": row.cache_key, "method": "POST", "url": path, "body": {**row.request, "model": batch.model}}
        for row in connection.execute(query)
    )
    return b"".join(json.dumps(entry, ensure_ascii=False).encode() + b"\n" for entry in entries)


def settle_lines(
    connection: Connection,
    ledger: Ledger,
    batch: ModelBatch,
    replies: Mapping[str, Exchange],
    missing: Exchange,
    *,
    now: datetime,
) -> int:
    """Settle the next lines by their replies, `missing` for those without one; return how many."""
    query = select(model_batch_lines).where(_is_in_flight(batch)).order_by(lines.cache_key).limit(LINES_AT_ONCE)
    rows = connection.execute(query).all()
    for row in rows:
        reserved = ledger.reserved_before(connection, row.call_id, _estimate(row.request))
        reply = replies.get(row.cache_key, missing)
        if not isinstance(reply, ServerReply):
            is_charged = isinstance(reply, BadModelRequest) and reply.may_be_charged
            ledger.fail_in(connection, reserved, reply.code, may_be_charged=is_charged, latency_ms=None)
            _end_line(connection, row.cache_key, reply.code)
            continue
        usage = counted_usage(reply.usage, reply.text + (reply.refusal or ""), reserved.estimate)
        schema = _schema_of(row.request, batch.answer_format)
        outcome = classify_reply(reply, schema, batch.model, batch.answer_format, usage)
        if isinstance(outcome, Answered):
            version = row.prompt_version
            cache_answer(connection, row.cache_key, outcome.data, model=batch.model, prompt_version=version, now=now)
            _end_line(connection, row.cache_key, ANSWERED)
            ledger.settle_in(connection, reserved, usage, ANSWERED, latency_ms=None)
        else:
            _end_line(connection, row.cache_key, outcome.fault, reply=outcome.text, problems=outcome.problems)
            ledger.settle_in(connection, reserved, usage, outcome.fault, latency_ms=None)
    return len(rows)


def _schema_of(request: Mapping[str, Any], answer_format: AnswerFormat) -> AnswerSchema:
    is_response = answer_format is AnswerFormat.RESPONSES
    form = request["text"]["format"] if is_response else request["response_format"]["json_schema"]
    return AnswerSchema(name=form["name"], schema=form["schema"])


def _end_line(
    connection: Connection, cache_key: str, outcome: str, *, reply: str | None = None, problems: Sequence[str] = ()
) -> None:
    values = {"outcome": str(outcome), "reply": reply, "problems": list(problems) or None, "request": None}
    connection.execute(update(model_batch_lines).where(lines.cache_key == cache_key).values(values))


def end_batch(connection: Connection, batch_id: int, outcome: str, *, now: datetime) -> None:
    """End the batch; its answered lines are deleted, since their answers are stored."""
    unsent = lines.batch_id == batch_id, lines.outcome.is_(None)
    connection.execute(update(model_batch_lines).where(*unsent).values(outcome=outcome, request=None))
    connection.execute(delete(model_batch_lines).where(lines.batch_id == batch_id, lines.outcome == ANSWERED))
    update_batch(connection, batch_id, status=ENDED, outcome=outcome, ended_at=now)


def wake_waiting(connection: Connection, *, now: datetime) -> int:
    """Make the work due whose questions wait in no batch any more; return how many tasks that is."""
    in_flight = select(lines.cache_key).where(lines.outcome.is_(None), lines.source_id == tasks.c.source_id)
    of_page = in_flight.where(lines.page_id == tasks.c.payload["page"].as_integer())
    of_source = in_flight.where(lines.page_id.is_(None))
    later = (
        select(tasks.c.id)
        .where(
            FRONTIER,
            tasks.c.status == TaskStatus.PENDING.value,
            tasks.c.error_code == MODEL_BATCH,
            tasks.c.not_before > now,
            ~of_page.exists(),
            ~of_source.exists(),
        )
        .with_for_update(skip_locked=True)  # a locked task is being changed by its worker
        .cte("later")
    )
    return connection.execute(update(tasks).where(tasks.c.id.in_(select(later.c.id))).values(not_before=now)).rowcount


def drop_unsent(connection: Connection, extraction_ids: Collection[int]) -> int:
    """Delete the questions of these extractions that are not sent yet; return how many."""
    is_unsent = lines.call_id.is_(None) & lines.outcome.is_(None)
    return connection.execute(
        delete(model_batch_lines).where(lines.extraction_id.in_(extraction_ids), is_unsent)
    ).rowcount


def old_batches(connection: Connection, before: datetime) -> int:
    """Delete batches that ended before that time, with their lines; return how many."""
    old = select(model_batches.c.id).where(model_batches.c.status == ENDED, model_batches.c.ended_at < before)
    connection.execute(delete(model_batch_lines).where(lines.batch_id.in_(old)))
    return connection.execute(delete(model_batches).where(model_batches.c.id.in_(old))).rowcount
