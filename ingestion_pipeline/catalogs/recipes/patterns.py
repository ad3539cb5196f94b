"""Link patterns of recipes, in RE2 so that no page can make them slow, and the text they search."""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline.reading.html.links import canonical_or_none, linked_page

if TYPE_CHECKING:
    from html_to_markdown import ConversionOptions
    from selectolax.lexbor import LexborHTMLParser


_LOOK_AROUND = re.compile(r"\(\?(?:<?[=!])")


class BadPattern(ValueError):
    """A pattern that cannot be used; the message says where and what is wrong."""


@dataclass(frozen=True, slots=True)
class LinkPattern:
    """A pattern for link targets; with `is_exact` only the matched part is the link."""

    text: str
    is_exact: bool = False

    def checked(self) -> "LinkPattern":
        """Return the pattern itself; raise `BadPattern` if it is no RE2 pattern."""
        _compiled(self.text)
        return self

    def find(self, target: str) -> str | None:
        """Return the part of the target to follow; None if it does not match."""
        match = _compiled(self.text).search(target)
        if match is None or not match[0]:
            return None
        return match[0] if self.is_exact else target

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return where it matches in a text, from left to right."""
        return [match.span() for match in _compiled(self.text).finditer(text) if match[0]]


@lru_cache(maxsize=1_000)
def _compiled(text: str) -> Any:  # noqa: ANN401 - re2 has no annotations
    # Imported only where links are declared or followed.
    re2: Any = import_module("re2")
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(text, options)
    except re2.error as error:
        raise BadPattern(_explained(text, error)) from None


def _explained(text: str, error: Exception) -> str:
    """Return RE2's error with the place in the pattern, which RE2 itself does not give."""
    raw = error.args[0] if error.args else ""
    reason = raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)
    part = reason.rpartition(": ")[2]
    at = text.find(part) if part else -1
    place = f" at character {at + 1}" if at >= 0 else ""
    cure = "; RE2 has no look-ahead or look-behind" if _LOOK_AROUND.search(text) else ""
    return f"{text[:200]!r} is no RE2 pattern{place}: {reason}{cure}"


# What is inside the brackets may hold pairs of its own: /wiki/C_(language), /(S(session))/list
_PAIRED = r"(?:[^\s()]|\((?:[^\s()]|\([^\s()]*+\))*+\))*+"
_LINK = re.compile(rf"\[((?:\\.|[^\[\]\\])*)\]\((<[^<>\n]*>|{_PAIRED})\)")
_EMPTY_LINES = re.compile(r"\n{3,}")
_ABSOLUTE = re.compile(r"https?://", re.IGNORECASE)
_NO_CONTENT = "head > *, link, footer, script, style, template"
# The converter would print these attributes, or omit what they hide; it drops all others itself.
_DROPPED = ("title", "alt", "style", "hidden", "aria-hidden")


def simplified_markdown(document: Document, *, within: str | None = None) -> str:
    """Return the page as Markdown with inline links; with `within` only the first matching element.

    Head, comments, `link`, footers, scripts, empty frames and empty boxes are removed, and so is every attribute but
    `href`. It is pure: the same page gives the same text.
    """
    tree = document.take_tree()
    _simplify(tree)
    chosen = tree.css_first(within) if within else tree.body
    return _converted(chosen.html or "" if chosen is not None else "")


def _simplify(tree: "LexborHTMLParser") -> None:
    for node in tree.css(_NO_CONTENT):
        node.decompose()
    for node in tree.css("iframe, div"):
        if not node.child and not (node.text() or "").strip():
            node.decompose()
    for name in _DROPPED:
        for node in tree.css(f"[{name}]"):
            del node.attrs[name]


def _converted(html: str) -> str:
    from html_to_markdown import convert  # imported only for recipes with a pattern

    content = convert(html, _options()).content or ""
    lines = "\n".join(line.rstrip() for line in content.split("\n"))
    return _EMPTY_LINES.sub("\n\n", lines).strip()


@cache
def _options() -> "ConversionOptions":
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
    """A link's target as it is written, with the positions of the target and of the whole link."""

    text: str
    start: int
    end: int
    link_start: int


def matched_links(markdown: str, pattern: LinkPattern, base: str | None) -> list[str]:
    """Return the canonical URLs that the pattern finds, in page order, each once.

    A match inside a link's target selects the whole target, or only the matched part if the pattern
    is exact; `^` and `$` are the ends of the target, which is searched as it is written and as the
    absolute URL it stands for. Outside of links the matched text is the URL itself.
    """
    targets = list(_targets(markdown))
    matches = [(target.start, link) for target in targets if (link := _followed(target, pattern, base))]
    matches += _text_links(markdown, targets, pattern)
    urls = (canonical_or_none(linked_page(base, link) or "") for _, link in sorted(matches))
    return list(dict.fromkeys(filter(None, urls)))


def _targets(markdown: str) -> Iterator[_Target]:
    for match in _LINK.finditer(markdown):
        start, end = match.span(2)
        if markdown[start : start + 1] == "<":
            start, end = start + 1, end - 1
        # The converter escapes characters that have a meaning in Markdown.
        text = re.sub(r"\\([\\()_*\[\]<>#])", r"\1", markdown[start:end])
        yield _Target(text, start, end, match.start())


def _followed(target: _Target, pattern: LinkPattern, base: str | None) -> str | None:
    part = pattern.find(target.text)
    if part is None:
        absolute = canonical_or_none(linked_page(base, target.text) or "")
        part = pattern.find(absolute) if absolute else None
    return part


def _text_links(markdown: str, targets: Sequence[_Target], pattern: LinkPattern) -> Iterator[tuple[int, str]]:
    """Yield URLs in the text, and links that lie completely within a match."""
    starts, ends = [target.link_start for target in targets], [target.end for target in targets]
    for start, end in pattern.spans(markdown):
        near = targets[bisect_left(ends, start) : bisect_left(starts, end)]
        if not near:
            text = markdown[start:end]
            if _ABSOLUTE.match(text) or _is_path(text):
                yield start, text
            continue
        for target in near:
            if start < target.start and target.end < end and not pattern.is_exact:
                yield target.start, target.text


def _is_path(text: str) -> bool:
    """Whether a text without a link is a URL; a mere word of a sentence is none."""
    return ("/" in text or "?" in text) and not re.search(r"\s", text)
