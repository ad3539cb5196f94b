"""A request for one page with its secret, the two answers that are not errors, and the errors of status codes.

A secret is read by the name of its variable and used on the wire only. What is stored, logged or reported of a
request never contains one: not its URL, not its errors, not its answer.
"""

import re
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from html import escape
from json import dumps
from urllib.parse import quote, quote_plus

from ingestion_pipeline.tasks.ended_tasks import retry_after
from ingestion_pipeline.tasks.errors import Permanent, Resource, Transient, WorkError
from ingestion_pipeline.urls import host_of, without_credentials


class SecretPlace(StrEnum):
    """Where a server expects the secret."""

    BEARER = "bearer"
    HEADER = "header"
    QUERY = "query"


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """A secret by the name of its environment variable; its value is only used on the wire.

    `name` is that of the header or parameter; a bearer token needs none.
    """

    place: SecretPlace
    variable: str
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One GET, or one POST of a JSON `body`; `etag` and `last_modified` make it conditional.

    They belong to one URL: `validated_url`, or if that is not known the request's own. `page` is
    its place in a feed; if `may_be_missing`, a 404 ends the feed.
    """

    url: str
    accept: str = "*/*"
    etag: str | None = None
    last_modified: str | None = None
    validated_url: str | None = None
    body: bytes | None = None
    page: int = 1
    may_be_missing: bool = False
    secret: Secret | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A whole body that arrived within every limit."""

    url: str
    final_url: str
    status_code: int
    body: bytes
    content_type: str | None
    etag: str | None
    last_modified: str | None
    rights: Mapping[str, str] = field(default_factory=dict[str, str])  # what its headers say about its use


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchanged:
    """The server confirmed that our copy is current (304)."""

    url: str
    etag: str | None
    last_modified: str | None


Answer = Fetched | Unchanged


@dataclass(frozen=True, slots=True)
class Start:
    """Any response, with the start of its body if it is a success; lower-case header names."""

    status_code: int
    headers: Mapping[str, str]
    body: bytes


MAX_VALIDATOR_CHARS = 1000  # an ETag that is longer is not kept: the next poll is then a full one


def conditions(request: Request, *, is_its_own: bool) -> dict[str, str]:
    """Return the conditional headers for one hop; `is_its_own` if the validators belong to it.

    The modification date of one page says nothing about another that a redirect leads to. An ETag identifies its
    content: it is sent to other hops as well, unless it is known to come from another hop.
    """
    headers: dict[str, str] = {}
    etag, changed_at = validator(request.etag), validator(request.last_modified)
    if etag and (is_its_own or request.validated_url is None):
        headers["If-None-Match"] = etag
    if changed_at and is_its_own:
        headers["If-Modified-Since"] = changed_at
    return headers


def unchanged(request: Request, headers: Mapping[str, str], *, is_its_own: bool) -> Unchanged:
    """Return what a 304 means; `Transient` if the request was not conditional."""
    if not conditions(request, is_its_own=is_its_own):
        raise Transient(
            f"{without_credentials(request.url)} answered 304 to a request without conditions", code="bad_304"
        )
    return Unchanged(
        url=request.url,
        etag=validator(headers.get("etag")) or request.etag,
        last_modified=validator(headers.get("last-modified")) or request.last_modified,
    )


def validator(value: str | None) -> str | None:
    """Return an ETag or date that can be sent back; anything odd is dropped."""
    if value and len(value) <= MAX_VALIDATOR_CHARS and value.isascii() and value.isprintable():
        return value
    return None


BLOCKED_FOR = timedelta(hours=4)  # after a 403 or a 407, unless the settings say otherwise
RATE_LIMITED_FOR = timedelta(seconds=60)  # after a 429 that names no time
RATE_LIMIT_MINIMUM = timedelta(seconds=1)  # a 429 costs no attempt: "again at once" would spin
_BLOCKED = frozenset({403, 407})
_TRANSIENT_4XX = frozenset({408, 425})


def status_error(
    status: int, headers: Mapping[str, str], url: str, now: datetime, *, blocked_for: timedelta = BLOCKED_FOR
) -> WorkError | None:
    """Return the failure for `status`; None for a success. Header names are lower case."""
    if 200 <= status < 300:  # noqa: PLR2004 - the success class of HTTP
        return None
    answered, code = f"{without_credentials(url)} answered {status}", f"http_{status}"
    wait = retry_after(headers.get("retry-after"), now=now)
    if status == 429:  # noqa: PLR2004
        until = now + max(RATE_LIMITED_FOR if wait is None else wait, RATE_LIMIT_MINIMUM)
        text = f"{answered}: next request after {until:%Y-%m-%d %H:%M:%S} UTC"
        return Resource(text, until=until, code="rate_limited")
    if status in _BLOCKED:
        text = f"{answered}: it blocks us; next request in {blocked_for}"
        return Transient(text, code=code, retry_after=blocked_for)
    if status in _TRANSIENT_4XX or status >= 500 or status < 200:  # noqa: PLR2004
        return Transient(answered, code=code, retry_after=wait)
    advice = "; the source can be retired" if status == 410 else ""  # noqa: PLR2004
    return Permanent(f"{answered}{advice}", code=code)


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
