"""A page and its response: rendering options, what is known of it, and whether content or a substitute was served.

Classification is careful by design: a misclassified page is a lost page. Each class needs a clear sign, and classes
by words alone need a page with next to nothing else on it.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from hashlib import sha256
from importlib import resources
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol, cast
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Discriminator, Field, Strict, StringConstraints, Tag

from ingestion_pipeline.pages.http.request import Fetched, Request
from ingestion_pipeline.pages.politeness.rights import Rights
from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline.reading.html.links import title_of
from ingestion_pipeline.reading.text.plain_text import clean_text
from ingestion_pipeline.sources.declarations import FileModel, Flag, Missing, expect, listed
from ingestion_pipeline.tasks.errors import Permanent, WorkError
from ingestion_pipeline.urls import without_credentials

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser

MAX_STEPS = 100

Selector = Annotated[  # only a browser can tell whether it is valid
    str,
    Strict(),
    StringConstraints(strip_whitespace=True, min_length=1, max_length=1_000),
    expect('must be a CSS selector such as "#list", at most 1000 characters, not {value}'),
    Missing('is missing: a CSS selector such as "#list"'),
]
_Wait = Annotated[float, Strict(), Field(gt=0, le=600), expect("must be seconds above 0 to 600, not {value}")]
_ClickWait = Annotated[float, Strict(), Field(gt=0, le=60), expect("must be seconds above 0 to 60, not {value}")]
_LoadWait = Annotated[float, Strict(), Field(ge=0, le=600), expect("must be seconds from 0 to 600, not {value}")]
_Limit = Annotated[int, Strict(), Field(gt=0, le=10_000), expect("must be a whole number from 1 to 10000, not {value}")]


class Click(FileModel):
    """Click the first matching element."""

    selector: Selector = Field(validation_alias="click")


class RenderWait(FileModel):
    """Wait for so many seconds."""

    seconds: _Wait = Field(validation_alias="wait_seconds")


def _step_tag(step: object) -> str | None:
    if isinstance(step, Click | RenderWait):
        return f"<{type(step).__name__}>"
    keys = list(cast("Mapping[object, object]", step)) if isinstance(step, Mapping) else []
    return {"click": "<Click>", "wait_seconds": "<RenderWait>"}.get(str(keys[0])) if len(keys) == 1 else None


def _few(steps: list[object]) -> list[object]:
    if len(steps) > MAX_STEPS:
        raise ValueError(f"has {len(steps)} steps; {MAX_STEPS} are the most")
    return steps


SetupStep = Annotated[
    Annotated[Click, Tag("<Click>")] | Annotated[RenderWait, Tag("<RenderWait>")],
    Discriminator(
        _step_tag,
        custom_error_type="step",
        custom_error_message='must be one step, {click: "SELECTOR"} or {wait_seconds: 2}',
    ),
]


_STEPS = listed('must be a list of steps: [{click: "SELECTOR"}, {wait_seconds: 2}]')


class ClickDiscovery(FileModel):
    """Click everything clickable inside `selector`, to find where it leads.

    More clickable elements than `limit` are an error: half of a catalogue looks like a whole one.
    """

    not_a_mapping: ClassVar[str] = "must be a mapping of selector, limit, wait_seconds"

    selector: Selector
    limit: _Limit = 300
    wait_seconds: _ClickWait = 30.0


class RenderingOptions(FileModel):
    """The steps after the page has loaded, in this order; none by default."""

    load_wait_seconds: _LoadWait = 0.0
    setup: Annotated[tuple[SetupStep, ...], BeforeValidator(_few), _STEPS] = ()
    content_selector: Selector | None = None
    discovery: ClickDiscovery | None = Field(default=None, validation_alias="click_discovery")
    screenshot: Flag = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """A rendered page: its DOM as UTF-8 HTML, and a screenshot."""

    page: Fetched
    screenshot: bytes | None = None
    discovered: tuple[str, ...] = ()


class Renderer(Protocol):
    """A browser; every failure is a classified `WorkError`."""

    async def render(
        self, url: str, rendering: RenderingOptions, *, check_url: Callable[[str], None] | None = None
    ) -> Rendered:
        """Return the page after its setup; `check_url` may refuse every document it leads to."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawledPage:
    """A page whose content is in the store; `url` is where its redirects led.

    `links` are set if the page was just parsed, or if clicks found some of them; `is_rendered` if a
    browser made the body.
    """

    url: str
    body: bytes
    content_type: str | None
    links: Sequence[str] | None = None
    is_rendered: bool = False
    rights: Rights | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPage:
    """A fetched page read from the content store; `url` is where its redirects led."""

    url: str
    body: bytes
    content_type: str | None
    fetched_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPage:
    """The newest snapshot of a page, by which an unchanged page is recognised.

    `final_url` is where redirects led, to which `etag` and `last_modified` belong. `served_hash` is
    of the bytes that plain HTTP served, `content_hash` of the cleaned text, `links_hash` of its
    links, `rendering_hash` of the rendering options.
    """

    snapshot_id: int
    content_hash: str
    final_url: str | None = None
    fetched_at: datetime | None = None
    served_hash: str | None = None
    etag: str | None = None
    last_modified: str | None = None
    rendered_at: datetime | None = None
    links_hash: str | None = None
    rendering_hash: str | None = None
    rights: Rights | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageVisit:
    """One page to fetch; `render` asks for a browser even if the page is no empty shell.

    `is_data` marks the response of an API or a sitemap: stored as it came, and checked by its
    parser. `changed_at` is when the page was last changed according to its site.
    """

    url: str
    known_page: KnownPage | None = None
    render: bool = False
    is_data: bool = False
    rendering: RenderingOptions = field(default_factory=RenderingOptions)
    changed_at: datetime | None = None

    @property
    def rendering_hash(self) -> str:
        """A hash that is equal as long as the rendering options are."""
        return sha256(repr((self.render, self.rendering)).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class SamePage:
    """Neither text nor links of the page have changed; the validators may have.

    `served_hash` and `rendered_at` are the values to recognise it by from now on, as in `KnownPage`.
    """

    url: str
    known_page: KnownPage
    etag: str | None
    last_modified: str | None
    served_hash: str | None = None
    rendered_at: datetime | None = None
    rights: Rights | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPage:
    """A page whose text or links are new.

    `links` are canonical URLs in page order, hidden ones last. `body` is what is stored as the page: the served bytes,
    or the rendered DOM if `is_rendered`. `text` and `markdown` are UTF-8, as stored.
    """

    url: str
    final_url: str
    status_code: int
    content_type: str | None
    etag: str | None
    last_modified: str | None
    body: bytes
    served_hash: str
    content_hash: str
    text: bytes
    canonical_url: str | None = None
    markdown: bytes | None = None
    links: tuple[str, ...] = ()
    is_rendered: bool = False
    screenshot: bytes | None = None
    discovered: tuple[str, ...] = ()
    rendering_hash: str | None = None
    rights: Rights | None = None  # what it and its site say about its use by machines
    may_ask_models: bool = True

    @property
    def links_hash(self) -> str:
        """A hash of every address it links to."""
        return links_hash((*self.links, *self.discovered))


PageAnswer = NewPage | SamePage


def links_hash(links: Iterable[str]) -> str:
    """Return a hash of the addresses in any order: pages shuffle what they advertise."""
    text = "\n".join(sorted(set(links)))
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def unless_known(request: Request, known_page: KnownPage | None) -> Request:
    """Return the request made conditional on the page having changed."""
    if known_page is None:
        return request
    # A browser may have been redirected by scripts; the validators belong to the plain response.
    validated_url = known_page.final_url if known_page.rendered_at is None else None
    return replace(request, etag=known_page.etag, last_modified=known_page.last_modified, validated_url=validated_url)


@dataclass(frozen=True, slots=True)
class Content:
    """An ordinary page."""


@dataclass(frozen=True, slots=True)
class NoContent:
    """A response that is no content; `reason` names the sign it was recognised by."""

    reason: str
    code: ClassVar[str]
    text: ClassVar[str]

    def error(self, url: str) -> Permanent:
        """Return the failure of the page at the URL."""
        return Permanent(self.text.format(url=without_credentials(url), reason=self.reason), code=self.code)


class SoftNotFound(NoContent):
    """A page that says there is no such page, though its status does not."""

    code = "soft_not_found"
    text = "{url} says there is no such page: {reason}"


class LoginPage(NoContent):
    """A login form where the page should be."""

    code = "login_wall"
    text = "{url} requires a login: {reason}; nothing behind it is fetched"


class BlockedPage(NoContent):
    """A check whether the visitor is a person; it is never evaded."""

    code = "bot_wall"
    text = "{url} keeps robots out: {reason}; ask its owner for a way in"


class EmptyShell(NoContent):
    """A page whose content needs JavaScript, and so a browser."""

    code = "empty_shell"
    text = (
        "{url} stays empty even in a browser: {reason}; raise load_wait_seconds, or add a setup step that"
        " makes it render"
    )


class WrongType(NoContent):
    """Something that is no web page, whatever its label."""

    code = "wrong_type"
    text = "{url} is no web page: {reason}"


ResponseClass = Content | NoContent

_LITTLE_TEXT = 1_500  # characters; blocked and error pages of real sites have 50 to 900
_NO_TEXT = 200  # characters of a shell: "Loading", a name, a line about cookies

_FILE = resources.files("ingestion_pipeline.pages.visits") / "response_signs.toml"
_SIGNS: Mapping[str, Any] = tomllib.loads(_FILE.read_text(encoding="utf-8"))
_MAGIC = {first.encode("latin-1"): media_type for first, media_type in _SIGNS["first_bytes"].items()}
_NO_PAGE = re.compile("|".join(_SIGNS["no_page"]))
_BLOCKED_TITLE = re.compile("|".join(_SIGNS["blocked_title"]), re.IGNORECASE)
_BLOCKED_SCRIPT = re.compile("|".join(_SIGNS["blocked_script"]))
_BLOCKED_WORDS = re.compile("|".join(_SIGNS["blocked_words"]), re.IGNORECASE | re.DOTALL)
_LOGIN_PATH = re.compile(
    r"/(?:log-?in|sign-?in|sso|oauth2?|saml2?|cas|auth(?:enticate|orize)?|idp|account/login)(?:[/.]|$)", re.IGNORECASE
)
_LOGIN_WORDS = re.compile("|".join(_SIGNS["login_words"]), re.IGNORECASE)
_NOT_FOUND = re.compile("|".join(_SIGNS["not_found"]), re.IGNORECASE)
_SEPARATOR = re.compile(r"(?<!\s)\s++[|–—:·»-]++\s++|(?:(?<!\s)\s++)?+[|»]\s*+")  # noqa: RUF001 - found in titles
_SHELL_ROOT = "#root, #app, #__next, #__nuxt, #main-app, #gatsby-focus-wrapper, app-root, #svelte"
_LOADING = re.compile(
    r"(?:loading|please wait|one moment(?: please)?|wird geladen|l[äa]dt|bitte warten"
    r"|chargement(?: en cours)?|veuillez patienter|cargando|caricamento|laden|загрузка)?\W*+",
    re.IGNORECASE,
)
_MARKUP = re.compile("<[a-z!]", re.IGNORECASE)
_SCRIPT = re.compile(r"<script[\s>/]", re.IGNORECASE)
_NOSCRIPT = re.compile(r"<noscript\b[^<>]*+>([^<]*+(?:<(?!/noscript)[^<]*+)*+)", re.IGNORECASE)
_SAYS_IT_NEEDS_SCRIPT = re.compile("|".join(_SIGNS["says_it_needs_script"]), re.IGNORECASE)
_NEEDS_SCRIPT = re.compile("|".join(_SIGNS["needs_script"]), re.IGNORECASE)


def classify_response(
    url: str, status: int, headers: Mapping[str, str], body: bytes, *, document: Document | None = None
) -> ResponseClass:
    """Classify a response with header names in lower case; `document` is its body, if read already."""
    if response_class := classify_raw(headers, body):
        return response_class
    if document is None:
        document = Document.of(body, headers.get("content-type"))
    return classify_parsed(url, status, document.html, document.visible_tree, utf8=document.visible_utf8)


def classify_raw(headers: Mapping[str, str], body: bytes) -> WrongType | BlockedPage | None:
    """Classify by first bytes and headers, before decoding; None if they are not enough."""
    content_type = headers.get("content-type")
    if media_type := _other_type(body, content_type):
        return WrongType(f"labelled {content_type or 'nothing'}, it is {media_type}")
    for name, actions in (("cf-mitigated", {"challenge"}), ("x-amzn-waf-action", {"challenge", "captcha"})):
        if (action := headers.get(name, "").lower()) in actions:
            return BlockedPage(f"the header {name} says: {action}")
    return None


def classify_parsed(
    url: str, status: int, html: str, tree: "LexborHTMLParser", *, utf8: bytes, is_rendered: bool = False
) -> ResponseClass:
    """Classify a page by its cleaned tree and `utf8_text`, without parsing it again.

    For a rendered page, short text is all that there is: it may be a short record.
    """
    # No character takes more than four bytes: most pages need not be decoded.
    if len(utf8) > 4 * _LITTLE_TEXT:
        return Content()
    text = utf8.decode()
    if len(text) > _LITTLE_TEXT or not _MARKUP.search(html):
        return Content()
    signals = _PageSignals(url, status, html, text, tree)
    checks = (*_CHECKS, _empty_when_rendered if is_rendered else _empty_shell)
    return next((response_class for check in checks if (response_class := check(signals))), Content())


@dataclass(frozen=True, slots=True)
class _PageSignals:
    """What is checked of a page with little text; its tree has no scripts and hidden parts."""

    url: str
    status: int
    html: str
    text: str
    tree: "LexborHTMLParser"

    @property
    def title(self) -> str:
        return title_of(self.tree) or ""

    @property
    def headline(self) -> str:
        heading = self.tree.css_first("h1")
        return clean_text(heading.text()) or "" if heading else ""


def _other_type(body: bytes, content_type: str | None) -> str | None:
    """Return the media type of what is clearly no page, by its first bytes, else by its label."""
    start = body[:16].lstrip(b"\r\n\t ")
    if start[:1] != b"<" and (media_type := _by_first_bytes(start, body)):
        return media_type
    label = (content_type or "").partition(";")[0].strip().lower()
    if not _NO_PAGE.match(label):
        return None
    is_markup = re.match(rb"\s*<(?:!doctype|html|head|body)", body[:200], re.IGNORECASE)
    return None if is_markup else label


def _by_first_bytes(start: bytes, body: bytes) -> str | None:
    if media_type := next((name for magic, name in _MAGIC.items() if start.startswith(magic)), None):
        return media_type
    if body[:4] == b"RIFF" and body[8:12] in {b"WEBP", b"WAVE", b"AVI "}:
        return "image/webp" if body[8:12] == b"WEBP" else "audio/wav"
    if body[4:8] == b"ftyp":
        return "video/mp4"
    return None


def _blocked_page(signals: _PageSignals) -> BlockedPage | None:
    title = signals.title.strip()
    is_titled = bool(_BLOCKED_TITLE.fullmatch(title))
    words = _BLOCKED_WORDS.search(signals.text)
    script = _BLOCKED_SCRIPT.search(signals.html)
    if is_titled and (script or words or signals.status in {403, 429, 503}):
        return BlockedPage(f"its title is {title[:80]!r}")
    if words and (script or signals.status in {403, 429, 503}):
        return BlockedPage(f"it says {clean_text(words[0])!r}")
    return None


def _login_page(signals: _PageSignals) -> LoginPage | None:
    if signals.tree.css_first("input[type='password' i]") is None:
        return None
    if signals.status in {401, 403}:
        return LoginPage(f"it answered {signals.status}, and asks for a password")
    if _LOGIN_PATH.search(_path(signals.url)):
        return LoginPage("its address is that of a login, and it asks for a password")
    heading = next((t for t in (signals.title, signals.headline) if _LOGIN_WORDS.search(t)), None)
    return LoginPage(f"it asks for a password under {heading[:80]!r}") if heading else None


def _soft_not_found(signals: _PageSignals) -> SoftNotFound | None:
    for heading in (signals.title, signals.headline):
        parts = [part.strip() for part in _SEPARATOR.split(heading)]
        if any(part and _NOT_FOUND.fullmatch(part) for part in parts):
            return SoftNotFound(f"it says {heading[:80]!r}")
    return None


def _empty_shell(signals: _PageSignals) -> EmptyShell | None:
    if len(signals.text) > _NO_TEXT or not _SCRIPT.search(signals.html):
        return None
    root = signals.tree.css_first(_SHELL_ROOT)
    if root is not None and len((root.text() or "").strip()) < _NO_TEXT // 4:
        return EmptyShell(f"its {root.tag} {root.id or ''} waits for a script to fill it")
    hint = _NEEDS_SCRIPT.search(" ".join(_NOSCRIPT.findall(signals.html)))
    if match := hint or _SAYS_IT_NEEDS_SCRIPT.search(signals.text):
        return EmptyShell(f"it says {clean_text(match[0])!r}")
    return None


def _empty_when_rendered(signals: _PageSignals) -> EmptyShell | None:
    is_loading = all(map(_LOADING.fullmatch, signals.text.splitlines()))
    return EmptyShell(f"it shows {signals.text[:80]!r}") if is_loading else None


_CHECKS: tuple[Callable[[_PageSignals], ResponseClass | None], ...] = (_blocked_page, _login_page, _soft_not_found)


def _path(url: str) -> str:
    try:
        return urlsplit(url).path
    except ValueError:
        return ""


MAY_BE_BLOCKED = frozenset({401, 403, 503})  # 429 is rate limiting, whatever its page says
BLOCKED_PAGE_BYTES = 65_536  # read of an error body; blocked pages of real sites have 2 to 30 kB


def error_for(response_class: ResponseClass, url: str) -> Permanent | None:
    """Return the failure for this response class; None for content."""
    if isinstance(response_class, EmptyShell):
        return needs_browser(url, response_class.reason)
    return response_class.error(url) if isinstance(response_class, NoContent) else None


def needs_browser(url: str, reason: str) -> Permanent:
    """Return the failure of a page that needs a browser where there is none."""
    return Permanent(
        f"{without_credentials(url)} needs a browser: {reason}; `ingest doctor` says whether there"
        " is one and how to get it",
        code="needs_browser",
    )


def blocked_page_error(url: str, status: int, headers: Mapping[str, str], body: bytes) -> Permanent | None:
    """Return the failure if an error response is a blocked or login page; None otherwise."""
    with suppress(WorkError):  # a bomb: the original error stands
        response_class = classify_response(url, status, headers, body)
        return error_for(response_class, url) if isinstance(response_class, BlockedPage | LoginPage) else None
    return None


def blocked_header_error(url: str, headers: Mapping[str, str]) -> Permanent | None:
    """Return the failure if a header marks a blocked page, whatever the status; None otherwise."""
    response_class = classify_raw(headers, b"")
    return error_for(response_class, url) if isinstance(response_class, BlockedPage) else None


def explain_failure(pages: Sequence[StoredPage], error: WorkError | None) -> WorkError | None:
    """Return a precise error if one of the unreadable or empty pages is something else.

    Called only then: a page with records is content, whatever else it looks like.
    """
    for page in pages:
        headers = {"content-type": page.content_type} if page.content_type else {}
        try:
            page_error = error_for(classify_response(page.url, 200, headers, page.body), page.url)
        except WorkError:
            continue
        if page_error is not None:
            message = f"{page_error.text}; parsing failed: {error.text}" if error else page_error.text
            return Permanent(message, code=page_error.code)
    return error
