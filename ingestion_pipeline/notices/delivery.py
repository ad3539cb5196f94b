"""The deliverer: expands the outbox, then sends each due recipient one message at a time.

```
claim ──> seal the group ──> send ──> finish: sent · retried · dead-lettered
          one transaction             one transaction, which checks the fence
```
There is one task per recipient, so that one worker at a time sends to them and the caps hold.
A deliverer that dies after `seal`, or after the response, leaves a message that the next one
sends again: the same bytes under the same key. A finished message is never sent again.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from random import Random
from statistics import median
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from ingestion_pipeline.notices import rows
from ingestion_pipeline.notices.channels import Channel
from ingestion_pipeline.notices.expansion import Expanded, expand
from ingestion_pipeline.notices.message import message_of, unreadable
from ingestion_pipeline.notices.planning import Nothing, Plan, Send, WaitUntil, memory, plan
from ingestion_pipeline.notices.rows import Addressee, Sealed
from ingestion_pipeline.notices.tasks import DELIVER, ensure_tasks, next_due
from ingestion_pipeline.settings import Settings, Work
from ingestion_pipeline.store import Store
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.dead_letters import DeadLetterEntry, add_dead_letters
from ingestion_pipeline.tasks.errors import Fatal, Permanent, Resource, WorkError, classify
from ingestion_pipeline.tasks.retry import DeadLetterTask, ReleaseTask, Retry, after_failure
from ingestion_pipeline.tasks.task import Move, Task, failed, finished, rearmed, released, retried
from ingestion_pipeline.tasks.worker import Worker

log = logging.getLogger(__name__)

LONGEST_WAIT = timedelta(seconds=30)  # a run waits for what is due that soon, as polls do
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


class Deliverer:
    """Delivers to due recipients until none is left or the time is over."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        worker: Worker,
        channel: Channel,
        *,
        random: Random,
        patience: timedelta = LONGEST_WAIT,
    ) -> None:
        self._store = store
        self._limits = settings.notices
        self._work: Work = settings.work.model_copy(update={"max_attempts": settings.notices.max_attempts})
        self._worker = worker
        self._channel = channel
        self._random = random
        self._patience = patience
        self._ends = time.monotonic() + settings.polling.slice_seconds
        self._grouping = timedelta(seconds=settings.notices.grouping_seconds)
        self._text_chapters = settings.notices.text_chapters
        self._done = Delivered(expanded=Expanded())
        self._delays: list[float] = []
        self._open: dict[int, Task] = {}

    async def run(self) -> Delivered:
        """Deliver what is due; a fatal error is raised after everything else was released."""
        alive = asyncio.create_task(self._worker.keep_alive())
        serving: set[asyncio.Task[None]] = set()
        try:
            await self._drain(serving)
        finally:
            alive.cancel()
            for running in serving:
                running.cancel()
            await asyncio.gather(*serving, return_exceptions=True)
            self._release_open()
        if self._delays:
            self._done.delay_seconds = median(self._delays)
        return self._done

    async def _drain(self, serving: set[asyncio.Task[None]]) -> None:
        room = asyncio.Semaphore(self._limits.concurrency)
        await asyncio.to_thread(self._expand)
        while True:
            few = len(serving) < self._limits.concurrency
            claimed = await asyncio.to_thread(self._claim) if few and self._has_time() else []
            serving |= {asyncio.create_task(self._serve(task, room)) for task in claimed}
            if serving:
                ended, _ = await asyncio.wait(serving, return_when=asyncio.FIRST_COMPLETED)
                serving -= ended
                for ended_task in ended:
                    ended_task.result()
            elif not await asyncio.to_thread(self._expand) and not await self._wait_for_more():
                return

    def _has_time(self) -> bool:
        return time.monotonic() < self._ends and self._worker.may_start()

    def _expand(self) -> bool:
        """Expand the outbox and create missing tasks; return whether there was anything."""
        before = self._done.expanded.handled
        while True:
            with self._store.begin() as connection:
                now = self._store.clock.now(connection)
                expanded = expand(connection, now=now, grouping=self._grouping)
            self._done.expanded += expanded
            if not expanded.handled:
                break
        with self._store.begin() as connection:
            now = self._store.clock.now(connection)
            made = ensure_tasks(connection, now=now, grouping=self._grouping)
        return bool(made) or self._done.expanded.handled > before

    def _claim(self) -> list[Task]:
        claimed = self._worker.claim(DUE, limit=CLAIMED_AHEAD * self._limits.concurrency)
        self._open |= {task.id: task for task in claimed}
        return claimed

    async def _wait_for_more(self) -> bool:
        """Wait for a task that is due soon (grouping window, retry); False if none is."""
        with self._store.read() as connection:
            due, now = next_due(connection), self._store.clock.now(connection)
        if due is None or due - now > self._patience or not self._has_time():
            return False
        await asyncio.sleep(max((due - now).total_seconds(), 0) + 0.01)
        return True

    async def _serve(self, task: Task, room: asyncio.Semaphore) -> None:
        async with room:
            if not self._has_time():
                return  # released at the end
            await self._serve_now(task)
        self._open.pop(task.id, None)

    async def _serve_now(self, task: Task) -> None:
        prepared = await asyncio.to_thread(self._begin, task)
        if prepared is not None:
            to, sealed, now = prepared
            try:
                await self._send(task, to, sealed, now)
            except Exception as error:
                await asyncio.to_thread(self._fail, task, to, sealed, error)
                if isinstance(classify(error), Fatal):
                    raise
            else:
                await asyncio.to_thread(self._succeed, task, to, sealed)

    async def _send(self, task: Task, to: Addressee, sealed: Sealed, now: datetime) -> None:
        if task.attempts > self._limits.max_attempts:
            reason = f"worker lost {task.attempts - 1} times on this message"
            raise Permanent(reason, code="worker_lost")
        message = message_of(
            sealed.delivery_id,
            to.id,
            list(zip(sealed.kinds, sealed.payloads, strict=True)),
            text_chapters=self._text_chapters,
        )
        state = task.state if (task.state or {}).get("delivery_id") == sealed.delivery_id else None
        await self._channel.send(to, message, now=now, state=state)

    def _begin(self, task: Task) -> tuple[Addressee, Sealed, datetime] | None:
        """Return the sealed message to send; None if there is none, and the task was updated."""
        with self._store.begin() as connection:
            now = self._store.clock.now(connection)
            if not claims.held(connection, [(task.id, task.fence)]):
                self._done.lost += 1
                return None
            to = rows.addressee(connection, task.dedupe_key)
            if to is None:
                claims.apply(connection, [finished(task)], now=now)
                return None
            delivery_id = rows.unfinished_delivery(connection, to.id)
            if delivery_id is None:
                match decided := self._plan(connection, to.id, now):
                    case Send(ids):
                        delivery_id = str(uuid4())
                        rows.seal(connection, ids, delivery_id)
                    case WaitUntil() | Nothing():
                        claims.apply(connection, [_after(task, decided, now)], now=now)
                        return None
            sealed = rows.sealed_message(connection, to.id, delivery_id)
            if self._set_aside(connection, task, sealed, now=now):
                sealed = rows.sealed_message(connection, to.id, delivery_id)
            if not sealed.ids:
                claims.apply(connection, [self._next(connection, task, now)], now=now)
                return None
            return to, sealed, now

    def _set_aside(self, connection: Connection, task: Task, sealed: Sealed, *, now: datetime) -> bool:
        """Dead-letter the notices that no message can be made of, and only those."""
        entries = list(zip(sealed.kinds, sealed.payloads, strict=True))
        broken = unreadable(entries, text_chapters=self._text_chapters)
        if not broken:
            return False
        reasons = {sealed.ids[at]: reason for at, reason in broken.items()}
        named = "; ".join(f"notice {sealed.ids[at]} ({sealed.kinds[at]}): {why}" for at, why in broken.items())
        error = Permanent(f"no message can be made of {named}", code="bad_notice")
        rows.set_aside(connection, reasons)
        payload = {**task.payload, "notices": sorted(reasons)}
        add_dead_letters(connection, [DeadLetterEntry(task=replace(task, payload=payload), error=error)], now=now)
        self._done.failed += len(reasons)
        log.warning("notices dead-lettered recipient=%s: %s", task.dedupe_key, error.text)
        return True

    def _plan(self, connection: Connection, recipient: str, now: datetime) -> Plan:
        pending = rows.pending_notices(connection, recipient)
        if not pending:
            return Nothing()
        sent = rows.sent_messages(connection, recipient, since=now - memory(self._limits))
        return plan(pending, sent, limits=self._limits, now=now)

    def _next(self, connection: Connection, task: Task, now: datetime) -> Move:
        """Return the task's move to the recipient's next message, or to its end."""
        if rows.unfinished_delivery(connection, task.dedupe_key) is not None:
            return _rearmed(task, now)
        return _after(task, self._plan(connection, task.dedupe_key, now), now)

    def _succeed(self, task: Task, to: Addressee, sealed: Sealed) -> None:
        with self._store.begin() as connection:
            now = self._store.clock.now(connection)
            if not claims.held(connection, [(task.id, task.fence)]):
                self._done.lost += 1  # the worker that has it now sends it again, under the same key
                return
            rows.mark_reached(connection, to.id, now=now)
            rows.mark_sent(connection, to.id, sealed.delivery_id, now=now)
            claims.apply(connection, [self._next(connection, task, now)], now=now)
        self._done.messages += 1
        self._done.sent += len(sealed.ids)
        self._delays += [_delay(payload, now) for payload in sealed.payloads]

    def _fail(self, task: Task, to: Addressee, sealed: Sealed, error: Exception) -> None:
        """Retry, release or dead-letter, by the class of the error and the attempts."""
        work_error = classify(error)
        with self._store.begin() as connection:
            now = self._store.clock.now(connection)
            if not claims.held(connection, [(task.id, task.fence)]):
                self._done.lost += 1
                return
            match after_failure(task, work_error, now=now, policy=self._work, random=self._random):
                case Retry(not_before):
                    self._note(connection, to, sealed, work_error)
                    moved = retried(task, work_error, not_before=not_before)
                    state = _state(task, sealed, error)
                    claims.apply(connection, [replace(moved, state=state)], now=now)
                    self._done.retried += 1
                case ReleaseTask(not_before):
                    self._note(connection, to, sealed, work_error)
                    moved = released(task, work_error, not_before=not_before)
                    claims.apply(connection, [moved], now=now)
                    self._done.given_back += 1
                case DeadLetterTask():
                    stack = "".join(traceback.format_exception(error, limit=-20))
                    self._give_up(
                        connection,
                        task,
                        to,
                        sealed,
                        DeadLetterEntry(task=_dead_letter_task(task, sealed), error=work_error, stack=stack),
                        now=now,
                    )
                    self._done.failed += len(sealed.ids)
        log.warning("delivery failed recipient=%s: %s", to.id, work_error.text)

    def _note(self, connection: Connection, to: Addressee, sealed: Sealed, error: WorkError) -> None:
        rows.mark_unreached(connection, to.id, failures=to.failures, not_before=None, error=error.text)
        rows.note_error(connection, to.id, sealed.delivery_id, error.text)

    def _give_up(
        self,
        connection: Connection,
        task: Task,
        to: Addressee,
        sealed: Sealed,
        entry: DeadLetterEntry,
        *,
        now: datetime,
    ) -> None:
        """Mark the message as failed and pause deliveries to the recipient."""
        error, failures = entry.error, to.failures + 1
        pause = min(self._limits.pause_seconds * 2 ** min(failures - 1, 62), self._limits.longest_pause_seconds)
        until = now + timedelta(seconds=pause)
        rows.mark_unreached(connection, to.id, failures=failures, not_before=until, error=error.text)
        rows.mark_failed(connection, to.id, sealed.delivery_id, error.text)
        add_dead_letters(connection, [entry], now=now)
        has_more = rows.unfinished_delivery(connection, to.id) or rows.pending_notices(connection, to.id)
        ended = _rearmed(task, until, error) if has_more else failed(task, error)
        claims.apply(connection, [replace(ended, state=None)], now=now)

    def _release_open(self) -> None:
        """Release unfinished claims, so that they cost no attempt and wait for no lease."""
        if not self._open:
            return
        # Without the database nothing can be released: the leases expire by themselves.
        with suppress(SQLAlchemyError), self._store.begin() as connection:
            now = self._store.clock.now(connection)
            stopped = Resource("the run was stopped", until=now, code="stopped")
            mine = claims.held(connection, [(task.id, task.fence) for task in self._open.values()])
            back = [task for task in self._open.values() if task.id in mine]
            moves = [released(task, stopped, not_before=now) for task in back]
            claims.apply(connection, moves, now=now)


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
    move = rearmed(task, not_before=at, priority=task.priority, error=error)
    return replace(move, state=None)


def _state(task: Task, sealed: Sealed, error: Exception) -> Mapping[str, Any] | None:
    """Return the state that the channel needs for the next attempt of this message."""
    left = getattr(error, "state", None)
    if left is None:
        return task.state
    return {"delivery_id": sealed.delivery_id, **left}


def _dead_letter_task(task: Task, sealed: Sealed) -> Task:
    """Return the task with message id and number of notices in its payload."""
    details = {"delivery_id": sealed.delivery_id, "notices": len(sealed.ids)}
    return replace(task, payload={**task.payload, **details})


def _delay(payload: Mapping[str, Any], now: datetime) -> float:
    return (now - datetime.fromisoformat(payload["detected_at"])).total_seconds()
