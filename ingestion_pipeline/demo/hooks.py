"""The webhook receiver of the demo's followers.

It accepts only messages signed with the follower's key, each once by its id, and stores what it
accepted across restarts.
"""

import base64
import binascii
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from email.message import Message
from pathlib import Path
from typing import Any, cast

from ingestion_pipeline.demo.content import DemoContent, plain
from ingestion_pipeline.demo.state import DemoStateError, write_atomically

HOOKS_HOST = "hooks.demo.test"
MAX_MESSAGE_BYTES = 1_000_000  # a message of a thousand chapters has a quarter of it
TOLERANCE_SECONDS = 300  # the Standard Webhooks libraries' own: an older message may be a replay

SecretOf = Callable[[str], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inbox:
    """What a follower's hook received: the title of each message by its id, oldest first."""

    taken: Mapping[str, str] = field(default_factory=dict[str, str])
    repeats: int = 0
    refused: int = 0


class Receiver:
    """The handler for `hooks.demo.test/FOLLOWER`; `secret_of` returns the followers' keys."""

    def __init__(self, home: Path, secret_of: SecretOf, *, now: Callable[[], float] = time.time) -> None:
        self._home = home
        self._secret_of = secret_of
        self._now = now
        self._lock = threading.Lock()

    def receive(self, path: str, headers: Message, body: bytes) -> DemoContent:
        """Accept a genuine message once and store it before the response; a repeat is a success, too."""
        follower = path.removeprefix("/")
        secret = self._secret_of(follower)
        if secret is None:
            return plain(404, f"There is no follower {follower!r} here")
        title = _title(body) if is_genuine(headers, body, secret, now=self._now()) else None
        try:
            with self._lock:
                return self._note(follower, headers["webhook-id"], title)
        except DemoStateError as error:
            return plain(500, str(error))

    def _note(self, follower: str, message_id: str, title: str | None) -> DemoContent:
        inboxes = read_inboxes(self._home)
        before = inboxes.get(follower, Inbox())
        if title is None:
            after, page = replace(before, refused=before.refused + 1), plain(401, "Not genuine")
        elif message_id in before.taken:
            after, page = replace(before, repeats=before.repeats + 1), plain(200, "Taken before")
        else:
            after = replace(before, taken={**before.taken, message_id: title})
            page = plain(200, "Taken")
        document = {name: asdict(inbox) for name, inbox in {**inboxes, follower: after}.items()}
        write_atomically(inbox_file(self._home), json.dumps(document, indent=2) + "\n")
        return page


def is_genuine(headers: Message, body: bytes, secret: str, *, now: float) -> bool:
    """Return whether the message has a recent valid signature (Standard Webhooks, version 1)."""
    message_id, sent_at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not message_id or not sent_at.isdecimal() or abs(now - int(sent_at)) > TOLERANCE_SECONDS:
        return False
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except binascii.Error:
        return False
    signed = f"{message_id}.{sent_at}.".encode() + body
    expected = b"v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256))
    signatures = headers.get("webhook-signature", "").split()
    return any(hmac.compare_digest(expected, signature.encode()) for signature in signatures)


def inbox_file(home: Path) -> Path:
    """Return where the hooks of the site in `home` store what they received."""
    return home / "demo" / "inboxes.json"


def read_inboxes(home: Path) -> dict[str, Inbox]:
    """Return what every follower's hook received so far; a damaged file is an error."""
    path = inbox_file(home)
    try:
        document = cast("dict[str, dict[str, Any]]", json.loads(path.read_bytes()))
        return {name: Inbox(**inbox) for name, inbox in document.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError) as error:
        raise DemoStateError(
            f"{path} does not hold the demo's inboxes ({error}); delete it to begin with empty ones"
        ) from error


def _title(body: bytes) -> str:
    """Return the title of the message."""
    try:
        return str(json.loads(body)["title"])
    except (ValueError, TypeError, KeyError):
        return "a message without a title"
