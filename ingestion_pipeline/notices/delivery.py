"""The deliverer: expands the outbox, then serves whoever is due, a message at a time each.

```
claim ──> seal the group ──> send ──> finish: sent · retried · given up
          one transaction             one transaction, which checks the fence
```
There is one task per recipient, so that one worker at a time serves them and the caps hold.
A deliverer that dies after `seal` leaves a message that the next one sends again, the same bytes
under the same key; one that dies after the answer, too. What was finished is never sent again.
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
CLAIMED_AHEAD = 5  # for each recipient served at a time
DUE = ClaimFilter(kind=DELIVER)


@dataclass(slots=True)
class Delivered:
    """What a deliverer came to; `delay_seconds` is the median from detection to delivery."""

    expanded: Expanded
    messages: int = 0
    sent: int = 0
    retried: int = 0
    given_back: int = 0
    failed: int = 0
    lost: int = 0
    delay_seconds: float | None = None


class Deliverer:
    """Serves due recipients until none is left or its time is over."""

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
        self._work: Work = settings.work.model_copy(
            update={"max_attempts": settings.notices.max_attempts}
        )
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
        """Drain what is due; a fatal error is raised when everything else was given back."""
        alive = asyncio.create_task(self._worker.keep_alive())
        serving: set[asyncio.Task[None]] = set()
        try:
            await self._drain(serving)
        finally:
            alive.cancel()
            for one in serving:
                one.cancel()
            await asyncio.gather(*serving, return_exceptions=True)
            self._give_back()
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
                for one in ended:
                    one.result()
            elif not await asyncio.to_thread(self._expand) and not await self._wait_for_more():
                return

    def _has_time(self) -> bool:
        return time.monotonic() < self._ends and self._worker.may_start()

    def _expand(self) -> bool:
        """Whether there was anything: outbox rows, or notices that nobody had a task for."""
        before = self._done.expanded.handled
        while True:
            with self._store.begin() as connection:
                now = self._store.clock.now(connection)
                came = expand(connection, now=now, grouping=self._grouping)
            self._done.expanded += came
            if not came.handled:
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
        """Whether something is due soon, and now is: a grouping window, a short retry."""
        with self._store.read() as connection:
            due, now = next_due(connection), self._store.clock.now(connection)
        if due is None or due - now > self._patience or not self._has_time():
            return False
        await asyncio.sleep(max((due - now).total_seconds(), 0) + 0.01)
        return True

    async def _serve(self, task: Task, room: asyncio.Semaphore) -> None:
        async with room:
            if not self._has_time():
                return  # given back at the end
            await self._serve_now(task)
        self._open.pop(task.id, None)

    async def _serve_now(self, task: Task) -> None:
        begun = await asyncio.to_thread(self._begin, task)
        if begun is not None:
            to, sealed, now = begun
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
            said = f"its deliverer died at all of {self._limits.max_attempts} attempts"
            raise Permanent(said, code="worker_lost")
        message = message_of(
            sealed.delivery_id,
            to.id,
            list(zip(sealed.kinds, sealed.payloads, strict=True)),
            text_chapters=self._text_chapters,
        )
        state = task.state if (task.state or {}).get("delivery_id") == sealed.delivery_id else None
        await self._channel.send(to, message, now=now, state=state)

    def _begin(self, task: Task) -> tuple[Addressee, Sealed, datetime] | None:
        """The sealed message to be sent; None when there is none yet, and the task waits again."""
        with self._store.begin() as connection:
            now = self._store.clock.now(connection)
            if not claims.held(connection, [(task.id, task.fence)]):
                self._done.lost += 1
                return None
            to = rows.addressee(connection, task.dedupe_key)
            if to is None:
                claims.apply(connection, [finished(task)], now=now)
                return None
            begun = rows.begun(connection, to.id)
            if begun is None:
                match decided := self._plan(connection, to.id, now):
                    case Send(ids):
                        begun = str(uuid4())
                        rows.seal(connection, ids, begun)
                    case WaitUntil() | Nothing():
                        claims.apply(connection, [_after(task, decided, now)], now=now)
                        return None
            sealed = rows.sealed_as(connection, to.id, begun)
            if self._set_aside(connection, task, sealed, now=now):
                sealed = rows.sealed_as(connection, to.id, begun)
            if not sealed.ids:
                claims.apply(connection, [self._next(connection, task, now)], now=now)
                return None
            return to, sealed, now

    def _set_aside(
        self, connection: Connection, task: Task, sealed: Sealed, *, now: datetime
    ) -> bool:
        """Dead-letter the notices that no message can be made of, and only those."""
        entries = list(zip(sealed.kinds, sealed.payloads, strict=True))
        broken = unreadable(entries, text_chapters=self._text_chapters)
        if not broken:
            return False
        reasons = {sealed.ids[at]: reason for at, reason in broken.items()}
        named = "; ".join(
            f"notice {sealed.ids[at]} ({sealed.kinds[at]}): {why}" for at, why in broken.items()
        )
        error = Permanent(f"no message can be made of {named}", code="bad_notice")
        rows.set_aside(connection, reasons)
        payload = {**task.payload, "notices": sorted(reasons)}
        add_dead_letters(
            connection, [DeadLetterEntry(task=replace(task, payload=payload), error=error)], now=now
        )
        self._done.failed += len(reasons)
        log.warning("notices set aside recipient=%s: %s", task.dedupe_key, error.text)
        return True

    def _plan(self, connection: Connection, recipient: str, now: datetime) -> Plan:
        waiting = rows.waiting(connection, recipient)
        if not waiting:
            return Nothing()
        went = rows.went(connection, recipient, since=now - memory(self._limits))
        return plan(waiting, went, limits=self._limits, now=now)

    def _next(self, connection: Connection, task: Task, now: datetime) -> Move:
        """The task waits for the recipient's next message, or ends."""
        if rows.begun(connection, task.dedupe_key) is not None:
            return _rearmed(task, now)
        return _after(task, self._plan(connection, task.dedupe_key, now), now)

    def _succeed(self, task: Task, to: Addressee, sealed: Sealed) -> None:
        with self._store.begin() as connection:
            now = self._store.clock.now(connection)
            if not claims.held(connection, [(task.id, task.fence)]):
                self._done.lost += 1  # whoever has it now sends it again, under the same key
                return
            rows.reached(connection, to.id, now=now)
            rows.mark_sent(connection, to.id, sealed.delivery_id, now=now)
            claims.apply(connection, [self._next(connection, task, now)], now=now)
        self._done.messages += 1
        self._done.sent += len(sealed.ids)
        self._delays += [_delay(one, now) for one in sealed.payloads]

    def _fail(self, task: Task, to: Addressee, sealed: Sealed, error: Exception) -> None:
        """Retried, given back or given up, as the error's class and the attempts decide."""
        said = classify(error)
        with self._store.begin() as connection:
            now = self._store.clock.now(connection)
            if not claims.held(connection, [(task.id, task.fence)]):
                self._done.lost += 1
                return
            match after_failure(task, said, now=now, policy=self._work, random=self._random):
                case Retry(not_before):
                    self._note(connection, to, sealed, said)
                    moved = retried(task, said, not_before=not_before)
                    state = _state(task, sealed, error)
                    claims.apply(connection, [replace(moved, state=state)], now=now)
                    self._done.retried += 1
                case ReleaseTask(not_before):
                    self._note(connection, to, sealed, said)
                    moved = released(task, said, not_before=not_before)
                    claims.apply(connection, [moved], now=now)
                    self._done.given_back += 1
                case DeadLetterTask():
                    stack = "".join(traceback.format_exception(error, limit=-20))
                    self._give_up(
                        connection,
                        task,
                        to,
                        sealed,
                        DeadLetterEntry(
                            task=_dead_letter_task(task, sealed), error=said, stack=stack
                        ),
                        now=now,
                    )
                    self._done.failed += len(sealed.ids)
        log.warning("no delivery to %s: %s", to.id, said.text)

    def _note(
        self, connection: Connection, to: Addressee, sealed: Sealed, error: WorkError
    ) -> None:
        rows.struck(connection, to.id, failures=to.failures, not_before=None, error=error.text)
        rows.note_error(connection, to.id, sealed.delivery_id, error.text)

    def _give_up(
        self,
        connection: Connection,
        task: Task,
        to: Addressee,
        sealed: Sealed,
        burial: DeadLetterEntry,
        *,
        now: datetime,
    ) -> None:
        """The message has failed, visibly; the recipient is left alone for a while."""
        error, failures = burial.error, to.failures + 1
        pause = min(
            self._limits.pause_seconds * 2 ** min(failures - 1, 62),
            self._limits.longest_pause_seconds,
        )
        until = now + timedelta(seconds=pause)
        rows.struck(connection, to.id, failures=failures, not_before=until, error=error.text)
        rows.mark_failed(connection, to.id, sealed.delivery_id, error.text)
        add_dead_letters(connection, [burial], now=now)
        has_more = rows.begun(connection, to.id) or rows.waiting(connection, to.id)
        ended = _rearmed(task, until, error) if has_more else failed(task, error)
        claims.apply(connection, [replace(ended, state=None)], now=now)

    def _give_back(self) -> None:
        """What was claimed and not finished costs no attempt and waits for nobody's lease."""
        if not self._open:
            return
        # A database that is lost gives nothing back: the leases end by themselves.
        with suppress(SQLAlchemyError), self._store.begin() as connection:
            now = self._store.clock.now(connection)
            stopped = Resource("the run was stopped", until=now, code="stopped")
            mine = claims.held(connection, [(one.id, one.fence) for one in self._open.values()])
            back = [one for one in self._open.values() if one.id in mine]
            moves = [released(one, stopped, not_before=now) for one in back]
            claims.apply(connection, moves, now=now)


def _after(task: Task, decided: Plan, now: datetime) -> Move:
    """What becomes of the task when no message is in hand."""
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
    """What the channel wants to know at the next attempt of this very message."""
    left = getattr(error, "state", None)
    if left is None:
        return task.state
    return {"delivery_id": sealed.delivery_id, **left}


def _dead_letter_task(task: Task, sealed: Sealed) -> Task:
    """The task as its dead letter tells of it: which message, of how many chapters."""
    told = {"delivery_id": sealed.delivery_id, "notices": len(sealed.ids)}
    return replace(task, payload={**task.payload, **told})


def _delay(payload: Mapping[str, Any], now: datetime) -> float:
    return (now - datetime.fromisoformat(payload["detected_at"])).total_seconds()
