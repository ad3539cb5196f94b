"""Batches of questions to a model as tasks: reserve, submit, poll, settle; each step is resumed where it was left.

```
claim ──> reserve ──> upload ──> note that it is submitted ──> submit ──> note its id ──> poll ··· settle ──> end
```
A worker that dies after `submit` leaves a batch whose id nobody noted: the next one finds it by the key in its
metadata, and submits only what the provider does not have. Lines are settled with their answers, some in each
transaction; a line that is settled is not settled again.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import Connection, func, select

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.handler import (
    Completed,
    EndedTask,
    Outcome,
    Skipped,
    TaskHandler,
    completed,
    not_done,
    skipped,
)
from ingestion_pipeline.engine.worker_loop import WorkerLoop
from ingestion_pipeline.pages.politeness.host_leases import HostLease
from ingestion_pipeline.reading.llm import batch_lines
from ingestion_pipeline.reading.llm.batch_lines import MODEL_BATCH, ModelBatch
from ingestion_pipeline.reading.llm.batch_server import BatchServer, NoBatches
from ingestion_pipeline.reading.llm.client import UNCONFIGURED_WAIT
from ingestion_pipeline.reading.llm.ledger import Ledger
from ingestion_pipeline.reading.llm.wire import BadModelRequest, Exchange
from ingestion_pipeline.store.database import SteadyClock
from ingestion_pipeline.store.tables import ACTIVE, tasks
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter, LostClaim, Worker, is_any_claimable
from ingestion_pipeline.tasks.ended_tasks import DeadLetterTask
from ingestion_pipeline.tasks.errors import Resource
from ingestion_pipeline.tasks.task import Task

log = logging.getLogger(__name__)

POLLED_EVERY = 0.1  # of its age: an answer comes at most a tenth later, and a day takes some eighty polls
WAITS = timedelta(seconds=20)  # of a run for a batch; another run takes less than that to start
LOST, EMPTY, UNSENT = "batch_lost", "empty", "unsent"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBatchItem:
    """A claimed batch."""

    task: Task
    batch: ModelBatch
    host: None = None  # a model's server needs no lease
    source: None = None


BatchOutcome = Outcome[ModelBatchItem, str]


class ModelBatchHandler(TaskHandler[ModelBatchItem, str]):
    """Submits batches and settles their lines; the value is how the batch ended."""

    concurrency = 4
    capacity = 8
    transaction_size = 1

    def __init__(self, ctx: RunContext, server: BatchServer | None) -> None:
        self.policy = ctx.settings.work
        self._store = ctx.store
        self._server = server
        self._ledger = Ledger(ctx.store, ctx.settings)
        self._wait = timedelta(seconds=ctx.settings.models.batch_seconds)

    def claim_requests(self, room: int, held: Sequence[ModelBatchItem]) -> Sequence[tuple[ClaimFilter, int]]:  # noqa: ARG002
        """Claim due batches."""
        return [(ClaimFilter(kind=MODEL_BATCH), room)]

    def next_due(self) -> datetime | None:
        """Return when the next batch is due: to be sent, or to be polled."""
        with self._store.read() as connection:
            return connection.scalar(select(func.min(tasks.c.not_before)).where(ACTIVE, tasks.c.kind == MODEL_BATCH))

    def load(
        self,
        connection: Connection,
        tasks: Sequence[Task],
        *,
        now: datetime,
    ) -> Sequence[ModelBatchItem | Skipped[ModelBatchItem]]:
        """Return the batches of the tasks; work is made due that began to wait as its batch ended."""
        batch_lines.wake_waiting(connection, now=now)
        ids = {task.id: task.payload.get("batch", 0) for task in tasks}
        batches = batch_lines.load_batches(connection, ids.values())
        return [
            ModelBatchItem(task=task, batch=batch)
            if (batch := batches.get(ids[task.id])) is not None and batch.status != batch_lines.ENDED
            else Skipped(task=task, reason="its batch has ended or was deleted")
            for task in tasks
        ]

    async def execute(self, item: ModelBatchItem, host: HostLease | None) -> str:  # noqa: ARG002 - no host
        """Take the batch as far as the provider lets it; return how it ended.

        Raises:
            Resource: the provider is not done, is busy or refuses the key.
            LostClaim: another worker has the batch.
        """
        if self._server is None:
            until = self._store.now() + UNCONFIGURED_WAIT
            raise Resource("no model configured: set OPENAI_API_KEY or OPENAI_BASE_URL", until=until, code="no_model")
        if self._server.base_url != item.batch.provider:  # its replies are out of reach
            return await self._finish(item, LOST)
        batch = item.batch
        if batch.remote_id is None and self._store.now() - batch.created_at > batch_lines.LONGEST_WAIT:
            # Nobody waits longer for a provider that takes no batch; what may have been submitted may be charged.
            return await self._finish(item, LOST if batch.status == batch_lines.SUBMITTING else UNSENT)
        try:
            return await self._advance(item, self._server)
        except NoBatches as error:
            log.warning("batch refused server=%s: %s; its questions are sent at once", self._server.base_url, error)
            return await self._finish(item, batch_lines.UNSUPPORTED)

    async def _advance(self, item: ModelBatchItem, server: BatchServer) -> str:
        batch = item.batch
        if batch.status == batch_lines.OPEN:
            batch = await self._note(item, batch, status=batch_lines.RESERVED)
        if batch.status == batch_lines.RESERVED:
            while await asyncio.to_thread(self._reserve, item):
                pass
        if batch.remote_id is None:
            batch = await self._submit(item, batch, server)
        if batch.remote_id is None:
            return EMPTY
        remote = await server.status(batch.remote_id)
        now = self._store.now()
        age = now - (batch.submitted_at or now)
        if remote is None or age > 2 * batch_lines.LONGEST_WAIT:
            return await self._finish(item, LOST)
        if not remote.is_final:
            wait = max(self._wait, POLLED_EVERY * age)
            raise Resource(f"its batch is {remote.status}", until=now + wait, code="model_batch_pending")
        replies = await server.replies(remote, batch.answer_format)
        outcome = await self._finish(item, remote.status, replies)
        await server.delete_files([*remote.files, *filter(None, [batch.remote_file_id])])
        return outcome

    async def _submit(self, item: ModelBatchItem, batch: ModelBatch, server: BatchServer) -> ModelBatch:
        """Return the batch as submitted; without a remote id if there is nothing to submit."""
        remote_ids: list[str] = []
        if batch.status == batch_lines.SUBMITTING:  # a worker died in between
            remote_ids = await server.find(batch.key, since=batch.created_at)
        for twice in remote_ids[1:]:
            await server.cancel(twice)
        if not remote_ids:
            requests = await asyncio.to_thread(self._requests, batch)
            if not requests:
                return batch
            file_id = batch.remote_file_id or await server.upload(batch.key, requests)
            batch = await self._note(item, batch, status=batch_lines.SUBMITTING, remote_file_id=file_id)
            remote_ids = [await server.submit(batch.key, file_id, batch.answer_format)]
        try:
            now = self._store.now()
            return await self._note(
                item, batch, status=batch_lines.SUBMITTED, remote_id=remote_ids[0], submitted_at=now
            )
        except LostClaim:
            await self._withdraw(batch, remote_ids[0], server)
            raise

    async def _withdraw(self, batch: ModelBatch, remote_id: str, server: BatchServer) -> None:
        """Cancel what was submitted after another worker had taken the batch and submitted it."""
        with self._store.read() as connection:
            noted = batch_lines.load_batches(connection, [batch.id]).get(batch.id)
        if noted is not None and noted.remote_id not in {None, remote_id}:
            await server.cancel(remote_id)

    async def _note(self, item: ModelBatchItem, batch: ModelBatch, **values: object) -> ModelBatch:
        def write() -> ModelBatch:
            with self._store.begin() as connection:
                _check_claim(connection, item)
                batch_lines.update_batch(connection, batch.id, **values)
                return batch_lines.load_batches(connection, [batch.id])[batch.id]

        return await asyncio.to_thread(write)

    def _reserve(self, item: ModelBatchItem) -> int:
        with self._store.begin() as connection:
            _check_claim(connection, item)
            now = self._store.clock.now(connection)
            return batch_lines.reserve_lines(connection, self._ledger, item.batch, wait=self._wait, now=now)

    def _requests(self, batch: ModelBatch) -> bytes:
        with self._store.read() as connection:
            return batch_lines.requests_of(connection, batch)

    async def _finish(self, item: ModelBatchItem, outcome: str, replies: Mapping[str, Exchange] | None = None) -> str:
        """Settle every line, by its reply if there is one."""

        def settle() -> int:
            with self._store.begin() as connection:
                _check_claim(connection, item)
                now = self._store.clock.now(connection)
                missing = _no_reply(outcome)
                return batch_lines.settle_lines(connection, self._ledger, item.batch, replies or {}, missing, now=now)

        while await asyncio.to_thread(settle):
            pass
        return outcome

    def persist(
        self, connection: Connection, outcomes: Sequence[BatchOutcome], *, now: datetime
    ) -> Sequence[EndedTask]:
        """End the batches, and make the work due that waits for their lines."""
        return [self._ended(connection, outcome, now) for outcome in outcomes]

    def _ended(self, connection: Connection, outcome: BatchOutcome, now: datetime) -> EndedTask:
        if isinstance(outcome, Completed):
            batch_lines.end_batch(connection, outcome.item.batch.id, outcome.value, now=now)
            woken = batch_lines.wake_waiting(connection, now=now)
            return replace(completed(outcome.task, "batches"), amounts={"woken": woken})
        if isinstance(outcome, Skipped):
            return skipped(outcome)
        if isinstance(outcome.decision, DeadLetterTask) and outcome.item is not None:
            # What waits for it is asked at once; what was sent may be charged.
            batch, missing = outcome.item.batch, _no_reply(LOST)
            while batch_lines.settle_lines(connection, self._ledger, batch, {}, missing, now=now):
                pass
            batch_lines.end_batch(connection, batch.id, outcome.error.code[:40], now=now)
            batch_lines.wake_waiting(connection, now=now)
        return not_done(outcome)


def _no_reply(outcome: str) -> BadModelRequest:
    """Return the reply of lines that the provider did not answer; it is paid only if nobody knows."""
    return BadModelRequest(code=outcome, message="", may_be_charged=outcome == LOST)


def _check_claim(connection: Connection, item: ModelBatchItem) -> None:
    """Raise unless this worker still has the claim; lock it until the transaction ends."""
    if not claims.held(connection, [(item.task.id, item.task.fence)]):
        raise LostClaim(f"task {item.task.id} is another worker's now; nothing was sent or stored")


async def run_model_batches(ctx: RunContext, worker: Worker, *, seconds: float | None = None) -> Counter[str]:
    """Send and settle due batches in this run; return counts."""
    clock = SteadyClock(await asyncio.to_thread(ctx.store.now))
    async with AsyncExitStack() as stack:
        server = BatchServer(ctx.store, ctx.settings) if ctx.settings.has_model else None
        if server is not None:
            stack.push_async_callback(server.close)
        handler = ModelBatchHandler(ctx, server)
        loop: WorkerLoop[ModelBatchItem, str] = WorkerLoop(
            ctx, worker, None, handler, clock=clock, seconds=seconds, longest_wait=WAITS
        )
        return await loop.run()


def is_batch_due(connection: Connection, *, now: datetime) -> bool:
    """Return whether a batch can be sent or polled now."""
    return is_any_claimable(connection, MODEL_BATCH, now=now)
