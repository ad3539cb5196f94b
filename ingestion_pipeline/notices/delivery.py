"""The deliverer: expands the outbox, then sends each due recipient one message at a time.

```
claim ──> seal the group ──> send ──> finish: sent · retried · dead-lettered
          one transaction             one transaction, which checks the fence
```
There is one task per recipient, so that one worker at a time sends to them and the caps hold.
A deliverer that dies after `seal`, or after the response, leaves a message that the next one
sends again: the same bytes under the same key. A finished message is never sent again.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from statistics import median
from uuid import uuid4

from sqlalchemy import Connection

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.handler import (
    Completed,
    EndedTask,
    Failed,
    Outcome,
    Skipped,
    TaskHandler,
    not_done,
    skipped,
)
from ingestion_pipeline.engine.worker_loop import WorkerLoop
from ingestion_pipeline.notices import queries
from ingestion_pipeline.notices.channels import Channel
from ingestion_pipeline.notices.expansion import Expanded, expand
from ingestion_pipeline.notices.message import Nothing, Plan, Send, WaitUntil, memory, message_of, plan, unreadable
from ingestion_pipeline.notices.queries import DELIVER, Sealed, ensure_tasks, next_due
from ingestion_pipeline.pages.politeness.host_leases import HostLease
from ingestion_pipeline.pages.politeness.hosts import LONGEST_WAIT
from ingestion_pipeline.settings import Settings, Work
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.database import SteadyClock
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter, LostClaim, Worker
from ingestion_pipeline.tasks.ended_tasks import DeadLetterEntry, DeadLetterTask, Retry, add_dead_letters
from ingestion_pipeline.tasks.errors import Permanent, WorkError
from ingestion_pipeline.tasks.task import Move, Task, failed, finished, rearmed

log = logging.getLogger(__name__)

CLAIMED_AHEAD = 5  # tasks claimed per concurrent delivery
DUE = ClaimFilter(kind=DELIVER)


@dataclass(slots=True)
class Delivered:
    """Result of a run; `delay_seconds` is the median time from detection to delivery."""

    expanded: Expanded
    messages: int = 0
    sent: int = 0
    retried: int = 0
    given_back: int = 0
    failed: int = 0
    lost: int = 0
    delay_seconds: float | None = None


@dataclass(slots=True, kw_only=True)
class DeliveryItem:
    """The claimed deliveries to a recipient, and the message that is sealed for them."""

    task: Task
    host: None = None  # a webhook needs no lease: one task per recipient keeps their messages apart
    source: None = None
    sealed: Sealed | None = None


class DeliveryHandler(TaskHandler[DeliveryItem, Move | None]):
    """Delivers to due recipients, one message at a time."""

    concurrency = 10  # recipients
    capacity = CLAIMED_AHEAD * concurrency
    transaction_size = 1  # a message that cannot be recorded affects no other

    def __init__(self, store: Store, settings: Settings, channel: Channel) -> None:
        self.policy: Work = settings.work.model_copy(update={"max_attempts": settings.notices.max_attempts})
        self.expanded = Expanded()
        self.delays: list[float] = []
        self.set_aside = 0
        self._store = store
        self._limits = settings.notices
        self._channel = channel
        self._grouping = timedelta(seconds=settings.notices.grouping_seconds)
        self._text_chapters = settings.notices.text_chapters

    def claim_requests(self, room: int, held: Sequence[DeliveryItem]) -> Sequence[tuple[ClaimFilter, int]]:
        """Claim due recipients; if nothing is being sent, expand the outbox and create missing tasks first."""
        if not held:
            self._expand()
        return [(DUE, room)]

    def _expand(self) -> None:
        while True:
            with self._store.begin() as connection:
                now = self._store.clock.now(connection)
                expanded = expand(connection, now=now, grouping=self._grouping)
            self.expanded += expanded
            if not expanded.handled:
                break
        with self._store.begin() as connection:
            ensure_tasks(connection, now=self._store.clock.now(connection), grouping=self._grouping)

    def next_due(self) -> datetime | None:
        """Return when the next message is due: a grouping window or a pause ends."""
        with self._store.read() as connection:
            return next_due(connection)

    def load(self, connection: Connection, tasks: Sequence[Task], *, now: datetime) -> Sequence[DeliveryItem]:  # noqa: ARG002
        """Return the tasks; their messages are sealed when they are sent."""
        return [DeliveryItem(task=task) for task in tasks]

    async def execute(self, item: DeliveryItem, host: HostLease | None) -> Move | None:  # noqa: ARG002 - no host
        """Seal and send the recipient's message; return the task's move if there is none to send."""
        prepared = await asyncio.to_thread(self._prepare, item.task)
        if isinstance(prepared, Move):
            return prepared
        sealed, now = prepared
        item.sealed = sealed
        message = message_of(sealed.delivery_id, sealed.to.id, sealed.entries, text_chapters=self._text_chapters)
        state = item.task.state
        if (state or {}).get("delivery_id") != sealed.delivery_id:  # of another message
            state = None
        await self._channel.send(sealed.to, message, now=now, state=state)
        return None

    def _prepare(self, task: Task) -> Move | tuple[Sealed, datetime]:
        """Return the sealed message to send, or the task's move if there is none."""
        with self._store.begin() as connection:
            now = self._store.clock.now(connection)
            if not claims.held(connection, [(task.id, task.fence)]):
                raise LostClaim(f"the deliveries to {task.dedupe_key} are another worker's now")
            to = queries.addressee(connection, task.dedupe_key)
            if to is None:
                return finished(task)
            delivery_id = queries.unfinished_delivery(connection, to.id)
            if delivery_id is None:
                decided = self._plan(connection, to.id, now)
                if not isinstance(decided, Send):
                    return _after(task, decided, now)
                delivery_id = str(uuid4())
                queries.seal(connection, decided.ids, delivery_id)
            sealed = queries.sealed_message(connection, to, delivery_id)
            if set_aside := self._set_aside(connection, task, sealed, now=now):
                sealed = queries.sealed_message(connection, to, delivery_id)
            move = None if sealed.ids else self._next(connection, task, now)
        self.set_aside += set_aside
        return (sealed, now) if move is None else move

    def persist(
        self, connection: Connection, outcomes: Sequence[Outcome[DeliveryItem, Move | None]], *, now: datetime
    ) -> Sequence[EndedTask]:
        """Record what was sent, and what was not."""
        return [self._persist(connection, outcome, now=now) for outcome in outcomes]

    def _persist(
        self, connection: Connection, outcome: Outcome[DeliveryItem, Move | None], *, now: datetime
    ) -> EndedTask:
        match outcome:
            case Completed(value=Move() as move):
                return EndedTask(move=move, count="without_message")
            case Completed(item=item):
                return self._sent(connection, item, now=now)
            case Skipped():
                return skipped(outcome)
            case Failed():
                return self._failed(connection, outcome, now=now)

    def _sent(self, connection: Connection, item: DeliveryItem, *, now: datetime) -> EndedTask:
        sealed = item.sealed
        if sealed is None:
            raise ValueError(f"task {item.task.id} has sent no message")
        queries.mark_reached(connection, sealed.to.id, now=now)
        queries.mark_sent(connection, sealed.to.id, sealed.delivery_id, now=now)
        self.delays += [
            (now - datetime.fromisoformat(payload["detected_at"])).total_seconds() for _, payload in sealed.entries
        ]
        return EndedTask(
            move=self._next(connection, item.task, now), count="messages", amounts={"sent": len(sealed.ids)}
        )

    def _failed(self, connection: Connection, failure: Failed[DeliveryItem], *, now: datetime) -> EndedTask:
        """Note the error; in the end mark the message as failed and pause deliveries to the recipient."""
        ended = not_done(failure)
        sealed = (failure.item and failure.item.sealed) or self._unfinished(connection, failure.task)
        if sealed is None:
            return ended
        to, error = sealed.to, failure.error
        log.warning("delivery failed recipient=%s: %s", to.id, error.text)
        if not isinstance(failure.decision, DeadLetterTask):
            queries.mark_unreached(connection, to.id, failures=to.failures, not_before=None, error=error.text)
            queries.note_error(connection, to.id, sealed.delivery_id, error.text)
            if not isinstance(failure.decision, Retry):
                return ended
            # what the channel needs for the next attempt of this message
            left = getattr(error, "state", None)
            state = failure.task.state if left is None else {"delivery_id": sealed.delivery_id, **left}
            return ended.with_move(state=state)
        move = self._give_up(connection, failure.task, sealed, error, now=now)
        payload = {**failure.task.payload, "delivery_id": sealed.delivery_id, "notices": len(sealed.ids)}
        entry = DeadLetterEntry(task=replace(failure.task, payload=payload), error=error, stack=failure.stack)
        return EndedTask(move=move, count="messages_failed", amounts={"failed": len(sealed.ids)}, dead_letter=entry)

    def _unfinished(self, connection: Connection, task: Task) -> Sealed | None:
        """Return the message that a lost worker left."""
        to = queries.addressee(connection, task.dedupe_key)
        delivery_id = queries.unfinished_delivery(connection, task.dedupe_key)
        if to is None or delivery_id is None:
            return None
        return queries.sealed_message(connection, to, delivery_id)

    def _give_up(self, connection: Connection, task: Task, sealed: Sealed, error: WorkError, *, now: datetime) -> Move:
        to, failures = sealed.to, sealed.to.failures + 1
        pause = min(self._limits.pause_seconds * 2 ** min(failures - 1, 62), self._limits.longest_pause_seconds)
        until = now + timedelta(seconds=pause)
        queries.mark_unreached(connection, to.id, failures=failures, not_before=until, error=error.text)
        queries.mark_failed(connection, to.id, sealed.delivery_id, error.text)
        has_more = queries.unfinished_delivery(connection, to.id) or queries.pending_notices(connection, to.id)
        return replace(_rearmed(task, until, error) if has_more else failed(task, error), state=None)

    def _set_aside(self, connection: Connection, task: Task, sealed: Sealed, *, now: datetime) -> int:
        """Dead-letter the notices that no message can be made of, and only those; return how many."""
        broken = unreadable(sealed.entries, text_chapters=self._text_chapters)
        if not broken:
            return 0
        reasons = {sealed.ids[at]: reason for at, reason in broken.items()}
        named = "; ".join(f"notice {sealed.ids[at]} ({sealed.entries[at][0]}): {why}" for at, why in broken.items())
        error = Permanent(f"no message can be made of {named}", code="bad_notice")
        queries.set_aside(connection, reasons)
        payload = {**task.payload, "notices": sorted(reasons)}
        add_dead_letters(connection, [DeadLetterEntry(task=replace(task, payload=payload), error=error)], now=now)
        log.warning("notices dead-lettered recipient=%s: %s", task.dedupe_key, error.text)
        return len(reasons)

    def _plan(self, connection: Connection, recipient: str, now: datetime) -> Plan:
        pending = queries.pending_notices(connection, recipient)
        if not pending:
            return Nothing()
        sent = queries.sent_messages(connection, recipient, since=now - memory(self._limits))
        return plan(pending, sent, limits=self._limits, now=now)

    def _next(self, connection: Connection, task: Task, now: datetime) -> Move:
        """Return the task's move to the recipient's next message, or to its end."""
        if queries.unfinished_delivery(connection, task.dedupe_key) is not None:
            return _rearmed(task, now)
        return _after(task, self._plan(connection, task.dedupe_key, now), now)


async def run_deliveries(
    ctx: RunContext, worker: Worker, channel: Channel, *, longest_wait: timedelta = LONGEST_WAIT
) -> Delivered:
    """Deliver what is due; a fatal error is raised after everything else was released."""
    handler = DeliveryHandler(ctx.store, ctx.settings, channel)
    clock = SteadyClock(await asyncio.to_thread(ctx.store.now))
    loop: WorkerLoop[DeliveryItem, Move | None] = WorkerLoop(
        ctx, worker, None, handler, clock=clock, longest_wait=longest_wait
    )
    counts = await loop.run()
    return Delivered(
        expanded=handler.expanded,
        messages=counts["messages"],
        sent=counts["sent"],
        retried=counts["retried"],
        given_back=counts["given_back"],
        failed=counts["failed"] + handler.set_aside,
        lost=counts["lost"],
        delay_seconds=median(handler.delays) if handler.delays else None,
    )


def _after(task: Task, decided: Plan, now: datetime) -> Move:
    """Return the task's move when there is no message to send now."""
    match decided:
        case Send():
            return _rearmed(task, now)
        case WaitUntil(until):
            return _rearmed(task, until)
        case Nothing():
            return replace(finished(task), state=None)


def _rearmed(task: Task, at: datetime, error: WorkError | None = None) -> Move:
    return replace(rearmed(task, not_before=at, priority=task.priority, error=error), state=None)
