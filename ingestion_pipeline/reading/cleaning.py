"""What a visitor of a page can see: its text, and its tree without what is hidden.

Hidden is what an element says of itself (`hidden`, `aria-hidden`, its style) and what a style sheet
in the page hides for good (see `styles`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from ingestion_pipeline.reading.markup import parse_html
from ingestion_pipeline.reading.styles import (
    Hiding,
    hiding,
    hiding_selectors,
    is_for_screens,
    shows,
)

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode

# `noscript` is for others than the visitor; forms stay, catalogues have their terms in them.
_NO_TEXT = frozenset(
    {"script", "style", "template", "noscript", "svg", "canvas", "iframe", "object", "embed"}
    | {"audio", "video", "map", "noembed", "noframes", "xmp", "datalist", "dialog"}
)
_FEW = 30
# One walk for all of them. Half of what it costs are the names, and most of these no page has.
_OFTEN_THERE = ("script", "style", "noscript", "svg", "iframe")
SELDOM_THERE = tuple(sorted(_NO_TEXT.difference(_OFTEN_THERE)))
OFTEN_UNSEEN = ", ".join((*_OFTEN_THERE, "body [hidden]", "body [aria-hidden]", "body [style]"))
MAY_BE_UNSEEN = ", ".join((OFTEN_UNSEEN, *SELDOM_THERE))

# Of what the parser serialises: there an attribute holds neither `<` nor `>`, nor does text.
_COMMENT = re.compile(b"!(?<=<!)--")  # the quickest search: for one character
_INLINE_TAG = re.compile(
    rb"</?(?:a(?:bbr|cronym)?|b(?:d[io]|ig)?|c(?:ite|ode)|d(?:ata|el|fn)|em|font|i(?:ns)?|kbd|label"
    rb"|mark|nobr|q|s(?:amp|mall|pan|trike|trong|u[bp])?|t(?:ime|t)|u|var|wbr)(?=[ >])[^>]*+>?"
)
_TAGS = re.compile(rb"<[a-z!?/][^>]*+>?(?:\s*+<[a-z!?/][^>]*+>?)*+")
# Each begins with one character that is sure, and so with the quickest search that there is.
_NO_BREAK = re.compile(b"&(?=n)nbsp;")
_REFERENCE = re.compile(b"&(lt|gt|amp);")
_REFERRED_TO = {b"lt": b"<", b"gt": b">", b"amp": b"&"}
# `<span>Posted</span><span>8 May</span>`: the gap is in the style. Single letters are an effect.
_TOUCHING = b"</span><"
_BEGINS_ANOTHER = re.compile(rb"(?:span|time|strong|a|b)\b")
_ENDS_A_WORD = re.compile(r"\w\w")
# Characters that nobody sees and that carry words past a reader: tags, marks of direction, joints
# without width. The joiners of Persian words and of emoji stay.
_INVISIBLE = re.compile(
    "[\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff\U000e0000-\U000e01ef]"
    "|[\ufe00-\ufe0f]{2,}"
)
_VARIATIONS = (b"\xef\xb8", b"\xf3\xa0")  # how those begin that change the sign before them
_ASCII = bytes(range(128))
_PLAIN = bytes([ord("\n"), *range(32, 127)])  # what a line of English is made of, and its end


def cleaned_text(html: str) -> str:
    """The text that a visitor sees, one line for each block, without a word of scripts or markup.

    Raises:
        Permanent: the page is a bomb (see `parse_html`).
    """
    return visible_text(visible_tree(html))


def visible_tree(html: str) -> LexborHTMLParser:
    """The tree without scripts and what is hidden; where all is hidden, with that."""
    tree = parse_html(html)
    remove_unseen(tree)
    if not has_text(tree):
        tree = parse_html(html)
        _remove(tree, [node for node in tree.css(", ".join(_NO_TEXT)) if _has_no_text(node)])
    return tree


def remove_unseen(
    tree: LexborHTMLParser, found: Sequence[LexborNode] | None = None
) -> list[str | None]:
    """Take out of the tree what no visitor sees; the addresses of the links in it, if not of more.

    `found` is what `MAY_BE_UNSEEN` finds, if that was looked for already, or `OFTEN_UNSEEN` on a
    page that has nothing else.
    """
    nodes = tree.css(MAY_BE_UNSEEN) if found is None else found
    by_style_sheet = hiding_selectors(_sheets(nodes))
    hrefs = _remove(tree, [node for node in nodes if _has_no_text(node) or _is_hidden(node)])
    for selector, how in by_style_sheet:
        hidden = [node for node in tree.css(selector) if _is_hidden_by_sheet(node, how)]
        hrefs += _remove(tree, hidden)
    return hrefs


def has_text(tree: LexborHTMLParser) -> bool:
    """Whether anything is left to read."""
    return tree.body is not None and bool(tree.body.text().strip())


def visible_text(tree: LexborHTMLParser) -> str:
    """The text of a tree that was cleaned, one line for each block."""
    return utf8_text(body_html(tree)).decode()


def fragment_text(html: str) -> str:
    """The text of a piece of a cleaned tree, one line for each block."""
    return utf8_text(_apart(html.encode())).decode()


def body_html(tree: LexborHTMLParser) -> bytes:
    """The body as HTML without comments, words kept apart that only a style sheet keeps apart.

    In UTF-8, in which patterns are quicker, and in which its text is hashed and kept.
    """
    html = tree.body.html if tree.body is not None else None
    return _apart((html or "").encode())


def utf8_text(html: bytes) -> bytes:
    """The text of what `body_html` gave, one line for each block."""
    # A line end in the markup is a blank, and so are the common ones that are no space.
    one_line = html.replace(b"\n", b" ").replace(b"\t", b" ")
    parts = _TAGS.split(_INLINE_TAG.sub(b"", _NO_BREAK.sub(b" ", one_line)))
    text = b"\n".join([line for line in map(bytes.strip, parts) if line])
    if not is_printable_utf8(text):
        return readable(_without_references(b"\n".join(parts)).decode()).encode()
    # Printable means that a space is the only white space; no line begins or ends with one.
    pieces = text.split(b"  ")
    single = b" ".join([kept for piece in pieces if (kept := piece.lstrip(b" "))])
    return _without_references(single)


def _without_references(text: bytes) -> bytes:
    """The characters themselves that the parser writes as references; there are no others."""
    return _REFERENCE.sub(lambda found: _REFERRED_TO[found[1]], text)


def _apart(html: bytes) -> bytes:
    first, *others = (html := _without_comments(html)).split(_TOUCHING)
    if not others:
        return html
    pieces = [first]
    for before, after in pairwise([first, *others]):
        are_two = _BEGINS_ANOTHER.match(after) and _ENDS_A_WORD.search(_end(before))
        pieces += (b"</span> <" if are_two else _TOUCHING, after)
    return b"".join(pieces)


def _without_comments(html: bytes) -> bytes:
    """The HTML without comments; `<p <!-- note -->` has none, but attributes of odd names."""
    kept: list[bytes] = []
    copied = 0
    for found in _COMMENT.finditer(html):
        start = found.start() - 1
        is_in_a_tag = html.rfind(b"<", copied, start) > html.rfind(b">", copied, start)
        if start < copied or is_in_a_tag:  # or inside of the last comment
            continue
        if (end := html.find(b"-->", found.end())) < 0:  # plain text: the parser ends the others
            break
        kept.append(html[copied:start])
        copied = end + len(b"-->")
    return b"".join([*kept, html[copied:]]) if kept else html


def _end(html: bytes) -> str:
    """The last two characters; they have four bytes at the most."""
    return html[-8:].decode("utf-8", "ignore")[-2:]


def readable(text: str) -> str:
    """The text without characters that nobody sees, blanks and blank lines reduced to one."""
    text = text.replace("\xa0", " ").replace("\t", " ")  # blanks as well, and the common ones
    is_printable = is_printable_utf8(text.encode("utf-8", "surrogatepass"))
    if not is_printable:
        text = without_invisible(text).replace("\r", "\n")
    # Printable means that a space is the only white space: most lines need no second look.
    return "\n".join(
        [
            line
            if "  " not in line and (is_printable or line.isprintable())
            else " ".join(line.split())
            for line in map(str.strip, text.split("\n"))
            if line
        ]
    )


def is_printable_utf8(text: bytes) -> bool:
    """Whether each line is: then it has neither odd blanks nor characters that nobody sees."""
    # To delete ASCII is quick, and leaves next to nothing of most pages to look through.
    rest = text.translate(None, _PLAIN)
    if any(rest.find(start) >= 0 for start in _VARIATIONS):
        return False
    return rest.decode("utf-8", "surrogatepass").isprintable()


def without_invisible(text: str) -> str:
    """The text without NUL and characters that nobody sees."""
    text = text.replace("\0", "")
    # To delete ASCII is quick, and leaves next to nothing of most pages to look through.
    rest = b"" if text.isascii() else text.encode("utf-8", "surrogatepass").translate(None, _ASCII)
    if not rest or not _INVISIBLE.search(rest.decode("utf-8", "surrogatepass")):
        return text
    return _INVISIBLE.sub("", text)


def _has_no_text(node: LexborNode) -> bool:
    tag = node.tag
    return tag in _NO_TEXT and (tag != "dialog" or "open" not in node.attrs)


def _is_hidden(node: LexborNode) -> bool:
    said = node.attrs
    if (style := said.get("style")) and _is_kept_from_sight(node, hiding(style)):
        return True
    is_hidden = "hidden" in said and said.get("hidden") != "until-found"
    return is_hidden or (said.get("aria-hidden") or "").strip().lower() == "true"


def _is_kept_from_sight(node: LexborNode, how: Hiding | None) -> bool:
    """Whether all that is inside is, too; a class or a style in there may show it."""
    return how is Hiding.ALL or (
        how is Hiding.OWN_TEXT and all(one == node for one in node.css("[class], [style]"))
    )


def _is_hidden_by_sheet(node: LexborNode, how: Hiding) -> bool:
    style = node.attrs.get("style")
    return not (style and shows(style)) and _is_kept_from_sight(node, how)


def _may_hold_elements(node: LexborNode) -> bool:
    """Most scripts and styles hold one text; in a formula they may hold anything."""
    first = node.first_child
    return first is not None and not (first.is_text_node and first.next is None)


def _remove(tree: LexborHTMLParser, nodes: Sequence[LexborNode]) -> list[str | None]:
    """Out of the tree; the addresses of the links that went with them."""
    within = [node for node in nodes if node.tag == "a" or _may_hold_elements(node)]
    # One look at all of the page takes as long as a look at each of some thirty icons.
    looked_at = within if len(within) <= _FEW else [tree]
    hrefs = [link.attrs.get("href") for place in looked_at for link in place.css("a[href]")]
    for node in reversed(nodes):  # what is inside goes first: no node goes twice
        node.decompose()
    return hrefs


def _sheets(nodes: Iterable[LexborNode]) -> str:
    """The style sheets that hold on every screen, with scripts."""
    return "\n".join([node.text() for node in nodes if node.tag == "style" and _is_applied(node)])


def _is_applied(node: LexborNode) -> bool:
    said = node.attrs
    is_css = (said.get("type") or "text/css").strip().lower() == "text/css"
    is_for_others = node.parent is not None and node.parent.tag == "noscript"
    return is_css and not is_for_others and is_for_screens(said.get("media") or "")
