"""What an answer that is no content means for the work that asked: a failure of its own class.

None of them passes by asking again soon, and a wall is never evaded: they are permanent. A wall
disables its source (see `WALL_CODES`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import assert_never

from ingestion_pipeline.pages.appearance import (
    Appearance,
    BlockedPage,
    Content,
    EmptyShell,
    LoginPage,
    SoftNotFound,
    WrongType,
    appearance_of,
    plain_appearance,
)
from ingestion_pipeline.pages.system import StoredPage
from ingestion_pipeline.urls import without_credentials
from ingestion_pipeline.work.errors import Permanent, WorkError

MAY_BE_A_WALL = frozenset({401, 403, 503})  # 429 is a matter of pace, whatever its page says
WALL_BYTES = 65_536  # of a refusal's body; walls of real sites have 2 to 30 kB


def refusal_of(seen: Appearance, url: str) -> Permanent | None:
    """The failure that this appearance is; None for content."""
    shown = without_credentials(url)
    match seen:
        case Content():
            return None
        case SoftNotFound(reason):
            return Permanent(f"{shown} says there is no such page: {reason}", code="soft_not_found")
        case LoginPage(reason):
            return Permanent(
                f"{shown} wants a login: {reason}; nothing behind it is fetched", code="login_wall"
            )
        case BlockedPage(reason):
            return Permanent(
                f"{shown} keeps robots out: {reason}; ask its owner for a way in", code="bot_wall"
            )
        case EmptyShell(reason):
            return needs_browser(url, reason)
        case WrongType(reason):
            return Permanent(f"{shown} is no web page: {reason}", code="wrong_type")
        case _:
            assert_never(seen)


def needs_browser(url: str, reason: str) -> Permanent:
    """There is no browser to show the page with, or nothing that would use one."""
    return Permanent(
        f"{without_credentials(url)} needs a browser: {reason}; `ingest doctor` says whether there"
        " is one and how to get it",
        code="needs_browser",
    )


def empty_in_a_browser(seen: EmptyShell, url: str) -> Permanent:
    """The browser has shown the page, and there was still nothing."""
    return Permanent(
        f"{without_credentials(url)} stays empty even in a browser: {seen.reason};"
        " give it a longer load wait, or a step that makes it show itself",
        code="empty_shell",
    )


def wall_of(url: str, status: int, headers: Mapping[str, str], body: bytes) -> Permanent | None:
    """The wall that a refused request met, if it was one and not a plain refusal."""
    try:
        seen = appearance_of(url, status, headers, body)
    except WorkError:  # a bomb: whatever it is, the refusal stands
        return None
    return refusal_of(seen, url) if isinstance(seen, BlockedPage | LoginPage) else None


def wall_by_headers(url: str, headers: Mapping[str, str]) -> Permanent | None:
    """The wall that names itself in a header, whatever the status."""
    seen = plain_appearance(headers, b"")
    return refusal_of(seen, url) if isinstance(seen, BlockedPage) else None


def explained(pages: Sequence[StoredPage], error: WorkError | None) -> WorkError | None:
    """Why pages could not be read, or held nothing, if one of them is a thing served instead.

    Asked only then: a page with records is content, whatever else it looks like.
    """
    for page in pages:
        headers = {"content-type": page.content_type} if page.content_type else {}
        try:
            refusal = refusal_of(appearance_of(page.url, 200, headers, page.body), page.url)
        except WorkError:
            continue
        if refusal is not None:
            said = f"{refusal.text}; as a list: {error.text}" if error else refusal.text
            return Permanent(said, code=refusal.code)
    return error
