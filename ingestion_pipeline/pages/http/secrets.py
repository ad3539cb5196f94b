"""Secrets of requests: read by the name of a variable, used on the wire and nowhere else.

What is stored, logged or reported of a request never contains one: not its URL, not its errors, nor
what a server repeats of it.
"""

import re
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from html import escape
from json import dumps
from urllib.parse import quote, quote_plus

from ingestion_pipeline.pages.http.request import Fetched, Request, Secret, SecretPlace
from ingestion_pipeline.tasks.errors import Resource, WorkError
from ingestion_pipeline.urls import host_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """The secrets that an operator allows: each variable with the host it may be sent to.

    A source only names a variable; otherwise anyone who can add a source could send any variable
    anywhere. `read` returns the value of a variable; None if it is not set.
    """

    allowed: Collection[tuple[str, str]] = ()
    read: Callable[[str], str | None] = field(default=lambda _: None)


NO_SECRETS = Secrets()
# Our own configuration is never sent.
OUR_OWN = re.compile(r"(?:INGESTION|OPENAI|DAGSTER|PG|AWS)_?.*|PATH|HOME", re.IGNORECASE)
VARIABLE = re.compile("[A-Za-z_][A-Za-z0-9_]{0,99}")
ASK_AGAIN = timedelta(hours=1)


def is_usable(variable: str) -> bool:
    """Return whether a source may name this variable."""
    return bool(VARIABLE.fullmatch(variable)) and not OUR_OWN.fullmatch(variable)


def secret_of(request: Request, url: str, secrets: Secrets, *, now: datetime) -> str | None:
    """Return the value to send to `url`; None without one, or if a redirect left the host.

    Raises:
        Resource: `no_secret`; the variable is not allowed or not set: no fault of the source.
    """
    secret = request.secret
    if secret is None or _origin(url) != _origin(request.url):
        return None
    variable, host = secret.variable, host_of(url)
    reason = f"may not be sent to {host}; add {variable}@{host} to INGESTION_SECRETS"
    if is_usable(variable) and (variable, host) in secrets.allowed:
        value = secrets.read(variable)
        if value and value.isascii() and value.isprintable():
            return value
        reason = "is not set, or is no plain text; set it"
    raise Resource(
        f"the environment variable {variable} that its config names {reason} where the runs are",
        until=now + ASK_AGAIN,
        code="no_secret",
    )


def _origin(url: str) -> tuple[str, str]:
    return url.partition(":")[0].lower(), host_of(url)


def with_secret(
    url: str, headers: dict[str, str], secret: Secret | None, value: str | None
) -> tuple[str, dict[str, str]]:
    """Return URL and headers with the secret, as they are sent."""
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


@contextmanager
def redacted_errors(value: str | None) -> Generator[None, None, None]:
    """Remove the value from the text of errors."""
    try:
        yield
    except WorkError as error:
        if value is None or not _reveals(error, value):
            raise
        error.args = (_redact(str(error), value),)
        raise error from None  # its cause contains the value, too


def without_secret(answer: Fetched, value: str | None) -> Fetched:
    """Replace the secret in a response by dots; then its validators are dropped."""
    if value is None:
        return answer
    headers = "\n".join(filter(None, (answer.etag, answer.last_modified, answer.content_type)))
    forms = _forms(value)
    if not any(form in headers or form.encode() in answer.body for form in forms):
        return answer
    body = answer.body
    for form in forms:
        body = body.replace(form.encode(), b"...")
    kind = answer.content_type and _redact(answer.content_type, value)
    return replace(answer, body=body, content_type=kind, etag=None, last_modified=None)


def _forms(value: str) -> tuple[str, ...]:
    """Return the secret as sent, as URL-encoded, and as JSON and HTML write it."""
    written = (value, quote(value, safe=""), quote_plus(value), dumps(value)[1:-1], escape(value))
    return tuple(dict.fromkeys((*written, dumps(value)[1:-1].replace("/", r"\/"))))


def _reveals(error: BaseException | None, value: str) -> bool:
    while error is not None:
        if any(form in str(error) for form in _forms(value)):
            return True
        error = error.__cause__ or error.__context__
    return False


def _redact(text: str, value: str) -> str:
    for form in _forms(value):
        text = text.replace(form, "...")
    return text
