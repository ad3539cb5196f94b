"""Patterns that a recipe gives for link targets: RE2, which no page can make slow."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ingestion_pipeline.reading.html.links import canonical_or_none, linked_page
from ingestion_pipeline.reading.html.parsing import parse_html

if TYPE_CHECKING:
    from html_to_markdown import ConversionOptions
    from selectolax.lexbor import LexborHTMLParser


_LOOK_AROUND = re.compile(r"\(\?(?:<?[=!])")


class BadPattern(ValueError):
    """A pattern that cannot be used; the message has the place and what is wrong there."""


@dataclass(frozen=True, slots=True)
class LinkPattern:
    """Matches a part of a link's target; with `is_exact` that part alone is the link."""

    text: str
    is_exact: bool = False

    def checked(self) -> LinkPattern:
        """The pattern itself.

        Raises:
            BadPattern: it is no RE2 pattern.
        """
        _compiled(self.text)
        return self

    def find(self, target: str) -> str | None:
        """What of the target is followed; None if it does not match."""
        found = _compiled(self.text).search(target)
        if found is None or not found[0]:
            return None
        return found[0] if self.is_exact else target

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Where it matches in a text, from left to right."""
        return [one.span() for one in _compiled(self.text).finditer(text) if one[0]]


@lru_cache(maxsize=1_000)
def _compiled(text: str) -> Any:  # noqa: ANN401 - re2 has no annotations
    # Only who declares or follows links pays for it; it has no annotations.
    re2: Any = import_module("re2")
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(text, options)
    except re2.error as error:
        raise BadPattern(_explained(text, error)) from None


def _explained(text: str, error: Exception) -> str:
    """RE2 names the part it did not understand; people want to know where it stands."""
    raw = error.args[0] if error.args else ""
    said = raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)
    part = said.rpartition(": ")[2]
    at = text.find(part) if part else -1
    place = f" at character {at + 1}" if at >= 0 else ""
    cure = "; RE2 has no look-ahead or look-behind" if _LOOK_AROUND.search(text) else ""
    return f"{text[:200]!r} is no RE2 pattern{place}: {said}{cure}"


# What is inside the brackets may hold pairs of its own: /wiki/C_(language), /(S(session))/list
_PAIRED = r"(?:[^\s()]|\((?:[^\s()]|\([^\s()]*+\))*+\))*+"
_LINK = re.compile(rf"\[((?:\\.|[^\[\]\\])*)\]\((<[^<>\n]*>|{_PAIRED})\)")
_EMPTY_LINES = re.compile(r"\n{3,}")
_ABSOLUTE = re.compile(r"https?://", re.IGNORECASE)
_NO_CONTENT = "head > *, link, footer, script, style, template"
# The converter would write them down, or leave out what they hide; of the others nothing stays.
_DROPPED = ("title", "alt", "style", "hidden", "aria-hidden")


def simplified_markdown(html: str, *, within: str | None = None) -> str:
    """The page with inline links as it writes them; `within` the first element that matches.

    Head, comments, `link`, footers, scripts, empty frames and empty boxes are gone, and so is every
    attribute but `href`. It is pure: the same page gives the same text.

    Raises:
        Permanent: the page is a bomb (see `parse_html`).
    """
    tree = parse_html(html)
    _simplify(tree)
    chosen = tree.css_first(within) if within else tree.body
    return _converted(chosen.html or "" if chosen is not None else "")


def _simplify(tree: LexborHTMLParser) -> None:
    for node in tree.css(_NO_CONTENT):
        node.decompose()
    for node in tree.css("iframe, div"):
        if not node.child and not (node.text() or "").strip():
            node.decompose()
    for name in _DROPPED:
        for node in tree.css(f"[{name}]"):
            del node.attrs[name]


def _converted(html: str) -> str:
    from html_to_markdown import convert  # whoever has no pattern does not pay for it

    content = convert(html, _options()).content or ""
    lines = "\n".join(line.rstrip() for line in content.split("\n"))
    return _EMPTY_LINES.sub("\n\n", lines).strip()


@cache
def _options() -> ConversionOptions:
    from html_to_markdown import ConversionOptions, PreprocessingOptions

    return ConversionOptions(
        preprocessing=PreprocessingOptions(enabled=False),
        extract_metadata=False,
        skip_images=True,
        autolinks=False,
        compact_tables=True,
        bullets="*",
    )


@dataclass(frozen=True, slots=True)
class _Target:
    """A link's target as it is written, with the places of its target and of the whole link."""

    text: str
    start: int
    end: int
    link_start: int


def matched_links(markdown: str, pattern: LinkPattern, base: str | None) -> list[str]:
    """The canonical URLs that the pattern finds, in page order, each once.

    A match inside a link's target means the whole target, or the matched part alone if the pattern
    is exact; `^` and `$` are the target's ends, which is looked at as it is written and as the
    absolute URL it means. Elsewhere the matched text is the address itself.
    """
    targets = list(_targets(markdown))
    found = [(one.start, link) for one in targets if (link := _followed(one, pattern, base))]
    found += _elsewhere(markdown, targets, pattern)
    urls = (canonical_or_none(linked_page(base, link) or "") for _, link in sorted(found))
    return list(dict.fromkeys(filter(None, urls)))


def _targets(markdown: str) -> Iterator[_Target]:
    for found in _LINK.finditer(markdown):
        start, end = found.span(2)
        if markdown[start : start + 1] == "<":
            start, end = start + 1, end - 1
        # The converter escapes what Markdown would read.
        text = re.sub(r"\\([\\()_*\[\]<>#])", r"\1", markdown[start:end])
        yield _Target(text, start, end, found.start())


def _followed(target: _Target, pattern: LinkPattern, base: str | None) -> str | None:
    part = pattern.find(target.text)
    if part is None:
        absolute = canonical_or_none(linked_page(base, target.text) or "")
        part = pattern.find(absolute) if absolute else None
    return part


def _elsewhere(
    markdown: str, targets: Sequence[_Target], pattern: LinkPattern
) -> Iterator[tuple[int, str]]:
    """Addresses in the text, and links that a match takes in as a whole."""
    begins, ends = [one.link_start for one in targets], [one.end for one in targets]
    for start, end in pattern.spans(markdown):
        near = targets[bisect_left(ends, start) : bisect_left(begins, end)]
        if not near:
            text = markdown[start:end]
            if _ABSOLUTE.match(text) or _is_path(text):
                yield start, text
            continue
        for one in near:
            if start < one.start and one.end < end and not pattern.is_exact:
                yield one.start, one.text


def _is_path(text: str) -> bool:
    """Whether a text without a link is an address; a mere word of a sentence is none."""
    return ("/" in text or "?" in text) and not re.search(r"\s", text)
