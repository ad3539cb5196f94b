"""Secrets of requests: read by the name of a variable, seen on the wire and nowhere else.

What is stored, logged or told of a request never holds one: not its URL, not its errors.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from urllib.parse import quote

from ingestion_pipeline.pages.request import Request, Secret, SecretPlace
from ingestion_pipeline.urls import host_of
from ingestion_pipeline.work.errors import Resource, WorkError

Secrets = Callable[[str], str | None]
"""The value of an environment variable; None if it is not set."""

# What this program itself is configured by is nobody else's to send.
OUR_OWN = re.compile(r"(?:INGESTION|OPENAI|DAGSTER|PG|AWS)_?.*|PATH|HOME", re.IGNORECASE)
VARIABLE = re.compile("[A-Za-z_][A-Za-z0-9_]{0,99}")
ASK_AGAIN = timedelta(hours=1)


def no_secrets(variable: str) -> str | None:  # noqa: ARG001  there are none
    """For who has none to give."""
    return None


def is_usable(variable: str) -> bool:
    """Whether a source may name this variable."""
    return bool(VARIABLE.fullmatch(variable)) and not OUR_OWN.fullmatch(variable)


def secret_of(request: Request, url: str, secrets: Secrets, *, now: datetime) -> str | None:
    """The value to send to `url`; None without one, and wherever a redirect led to another host.

    Raises:
        Resource: `no_secret`; nobody has set the variable, which is no fault of the source.
    """
    wanted = request.secret
    if wanted is None or _origin(url) != _origin(request.url):
        return None
    value = secrets(wanted.variable) if is_usable(wanted.variable) else None
    if value and value.isascii() and value.isprintable():
        return value
    raise Resource(
        f"the environment variable {wanted.variable} that its config names is not set, or is no"
        " plain text; set it where the runs are",
        until=now + ASK_AGAIN,
        code="no_secret",
    )


def _origin(url: str) -> tuple[str, str]:
    return url.partition(":")[0].lower(), host_of(url)


def with_secret(
    url: str, headers: dict[str, str], secret: Secret | None, value: str | None
) -> tuple[str, dict[str, str]]:
    """URL and headers as they go on the wire."""
    if secret is None or value is None:
        return url, headers
    match secret.place:
        case SecretPlace.BEARER:
            return url, headers | {"Authorization": f"Bearer {value}"}
        case SecretPlace.HEADER:
            return url, headers | {secret.name: value}
        case SecretPlace.QUERY:
            mark = "&" if "?" in url else "?"
            return f"{url}{mark}{quote(secret.name, safe='')}={quote(value, safe='')}", headers


@asynccontextmanager
async def kept_from_errors(value: str | None) -> AsyncGenerator[None, None]:
    """An error that would tell the value tells everything else."""
    try:
        yield
    except WorkError as error:
        if value is None or not _tells(error, value):
            raise
        error.args = (_without(str(error), value),)
        raise error from None  # what it came from tells it, too


def _tells(error: BaseException | None, value: str) -> bool:
    while error is not None:
        if any(one in str(error) for one in (value, quote(value, safe=""))):
            return True
        error = error.__cause__ or error.__context__
    return False


def _without(text: str, value: str) -> str:
    return text.replace(value, "...").replace(quote(value, safe=""), "...")
