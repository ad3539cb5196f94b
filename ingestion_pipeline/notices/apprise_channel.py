"""Mail and the operator's own services, by Apprise.

`notify:` goes to every service of INGESTION_NOTIFY_URLS, `mailto:` to the addressee through the
mail service among them. The services are the operator's, so the address guard does not apply; no
part of their URLs is ever shown.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from functools import cache
from typing import Any, cast
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from ingestion_pipeline.notices.message import Message
from ingestion_pipeline.notices.rows import Addressee
from ingestion_pipeline.sources.recipient import OWN_SERVICES
from ingestion_pipeline.work.errors import Permanent, Transient

REACHED = "reached"  # in a task's state: the services that have the message already
_MAIL_SCHEMES = {"mailto", "mailtos"}
_ADDRESSED = {"to", "cc", "bcc"}


class PartlySent(Transient):
    """Some services took the message; the next attempt is for the others."""

    def __init__(self, message: str, *, reached: Sequence[str]) -> None:
        super().__init__(message, code="notify")
        self.state = {REACHED: sorted(reached)}


class AppriseChannel:
    """Sends through the operator's services, in threads: Apprise blocks."""

    def __init__(self, urls: Sequence[str], *, deadline_seconds: float = 30.0) -> None:
        self._urls = tuple(urls)
        self._deadline_seconds = deadline_seconds

    async def send(
        self,
        to: Addressee,
        message: Message,
        *,
        now: datetime,  # noqa: ARG002 - every channel takes it
        state: Mapping[str, object] | None = None,
    ) -> str:
        """How many services took it; those that have it from an earlier attempt are left out."""
        urls = self._urls_for(to.address)
        done = set(cast("Sequence[str]", (state or {}).get(REACHED, ())))
        said: list[str] = []
        for url in urls:
            if _fingerprint(url) in done:
                continue
            problem = await self._notify(url, message)
            if problem is None:
                done.add(_fingerprint(url))
            else:
                said.append(problem)
        if said:
            told = f"{len(said)} of {len(urls)} services did not take it: {'; '.join(said)}"
            raise PartlySent(told, reached=list(done))
        return f"taken by {len(urls)} of your services"

    def _urls_for(self, address: str) -> list[str]:
        if not self._urls:
            said = f"{address} needs a service: set INGESTION_NOTIFY_URLS to your Apprise URLs"
            raise Permanent(said, code="no_service")
        if address == OWN_SERVICES:
            return list(self._urls)
        mail = [url for url in self._urls if urlsplit(url).scheme.lower() in _MAIL_SCHEMES]
        if not mail:
            said = f"{address} needs a mail service: add mailto://... to INGESTION_NOTIFY_URLS"
            raise Permanent(said, code="no_service")
        return [_addressed(mail[0], address.partition(":")[2])]

    async def _notify(self, url: str, message: Message) -> str | None:
        """None if the service took it, else why not."""
        try:
            async with asyncio.timeout(self._deadline_seconds):
                return await asyncio.to_thread(_notify, url, message)
        except TimeoutError:
            return f"{_shown(url)}: no answer within {self._deadline_seconds:g} seconds"


def _notify(url: str, message: Message) -> str | None:
    import apprise

    _listen()
    _heard.set(lines := [])
    service: Any = apprise.Apprise()
    if not service.add(url):
        return f"{_shown(url)}: Apprise does not understand the URL"
    taken = service.notify(
        title=message.title, body=message.text, body_format=apprise.NotifyFormat.TEXT
    )
    return None if taken else f"{_shown(url)}: {_without_secrets(lines, url) or 'not taken'}"


# By context, which Apprise hands on to its threads: messages go to several services at a time.
_heard: ContextVar[list[str]] = ContextVar("heard")


class _Listener(logging.Handler):
    """Keeps what Apprise says for whoever asked it to do something."""

    def emit(self, record: logging.LogRecord) -> None:
        _heard.get([]).append(record.getMessage())


@cache
def _listen() -> None:
    """Apprise is heard by us alone: it writes URLs with their tokens into its log."""
    theirs = logging.getLogger("apprise")
    theirs.addHandler(_Listener(logging.WARNING))
    theirs.propagate = False


def _addressed(url: str, addressee: str) -> str:
    """The operator's mail URL, to this addressee alone."""
    parts = urlsplit(url)
    query = [(k, v) for k, v in parse_qsl(parts.query) if k.lower() not in _ADDRESSED]
    return urlunsplit(parts._replace(path="", query=urlencode([*query, ("to", addressee)])))


def _shown(url: str) -> str:
    return urlsplit(url).scheme + "://..."


def _fingerprint(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()[:16]


def _without_secrets(lines: Sequence[str], url: str) -> str:
    """The last thing Apprise said, with every part of the URL struck out but a mail server's name.

    In tgram://TOKEN/..., slack://TOKEN/... and their like the host is a secret as well.
    """
    said = lines[-1] if lines else ""
    parts = urlsplit(url)
    secrets = [url, *re.split("[/@:]", parts.path), *parts.fragment.split("/")]
    secrets += [value for _, value in parse_qsl(parts.query)]
    where, _, host = parts.netloc.rpartition("@")
    is_mail = parts.scheme.lower() in _MAIL_SCHEMES
    secrets += re.split("[:@]", where if is_mail else parts.netloc)
    secrets += [] if is_mail else [host, parts.netloc]
    spelled = {each for one in secrets if one for each in (one, unquote(one))}
    for one in sorted(spelled, key=len, reverse=True):
        said = said.replace(one, "***")
    return said
