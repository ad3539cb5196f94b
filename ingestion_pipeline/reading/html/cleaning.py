"""What a visitor of a page can see: its text, and its tree without what is hidden.

Hidden is what an element says of itself (`hidden`, `aria-hidden`, its style) and what a style sheet
in the page hides for good (see `styles`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from functools import lru_cache
from itertools import islice, pairwise
from typing import TYPE_CHECKING, NamedTuple

from ingestion_pipeline.reading.html.parsing import parse_html

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode


MAX_SELECTORS = 200
_KEPT_SHEET_CHARACTERS = 50_000
_SELECTOR_CHARACTERS = 200
_DEEPEST = 8  # conditions inside of one another


class Hiding(Enum):
    """How far declarations hide: all that is inside, or but for what has a style of its own."""

    ALL = "all"
    OWN_TEXT = "own text"


_MAY_HIDE = re.compile(
    r"none|hidden|collapse|font|indent|:\s*-|\(|clip|scale|transparent|background"
    r"|(?:width|height)\s*:\s*0*[01]|v[wh]\b|\\|/\*",
    re.IGNORECASE,
)
_BLANKS = re.compile(r"\s+|!important")
_ESCAPE = re.compile(r"\\([0-9a-f]{1,6})\s?|\\", re.IGNORECASE)
# Of declarations in lower case, without blanks.
_HIDES = re.compile(
    r"(?:^|;)(?:display:none|content-visibility:hidden|text-indent:-(?:[0-9]{4,}|999|[0-9]{3,}r?em)"
    r"|transform:(?:[^;]*\))?scale(?:[xy3]d?)?\(0(?:\.0*)?[,)]|scale:0(?:\.0*)?(?:;|$)"
    r"|transform:translate[xy3d]*\(-[0-9]{4,}|clip:rect\((?:[01](?:px)?[, ]?){4}\)"
    r"|clip-path:(?:inset\((?:50|100)%|(?:circle|ellipse)\(0|polygon\((?:0[a-z%]*+,?)++\)))"
)
_HIDING_DECLARATIONS = re.compile(r"(?:^|;)visibility:(?:hidden|collapse)")
_TINY = re.compile(  # a size that nobody can read
    r"(?:^|;)(?:font-size:(?:(?:0++(?:\.0*+)?|\.0++)[a-z%]*+|0*+1(?:\.0*+)?(?:px|pt)"
    r"|0*+\.[0-9]++(?:px|pt))(?:;|$)"
    r"|font:(?:[a-z]+)?0(?:px)?/0)"
)
_PLACED = re.compile(r"(?:^|;)position:(?:absolute|fixed)")
_OFF_SCREEN = re.compile(
    r"(?:^|;)(?:(?:left|right|top|bottom|inset):(?:calc\()?-(?:[5-9][0-9]{2}|[0-9]{4,}|[0-9]{2,}r?em)"
    r"|(?:left|top):[0-9]{3,}v[wh]|margin-(?:left|top):-[0-9]{4,})"
)
_CLIPPED = re.compile(r"(?:^|;)overflow(?:-[xy])?:(?:hidden|clip)")
_NO_SIZE = re.compile(
    r"(?:^|;)(?:max-)?(?:width|height):(?:(?:0++1?|1)(?:\.0*+)?(?:px)?|0[a-z%]++)(?:;|$)"
)
_GROWS = re.compile(r"(?:^|;)(?:flex|min-(?:width|height)):(?!0|none)")
_INK = re.compile(r"(?:^|;)color:([^;]+)")
_PAPER = re.compile(r"(?:^|;)background(?:-color)?:([^;]+)")
_SHOWN = re.compile(r"(?:^|;)(?:display:(?!none)|visibility:visible|position:static)")

_TOKEN = re.compile("[{};]")
_GROUP = re.compile(r"@(media|supports|layer|container|scope|starting-style|document)\b", re.I)
_ON_EVERY_SCREEN = re.compile(  # whatever its size; a program of today supports what is asked for
    r"@(?:media\s+(?:only\s+)?(?:screen|all)(?:\s*,.*)?|layer\b.*|supports\b(?!\s*not\b).*)",
    re.IGNORECASE | re.DOTALL,
)
_MEDIA_OF_SCREENS = re.compile(r"\s*(?:(?:only\s+)?(?:screen|all))?\s*", re.IGNORECASE)
# Tags, classes, ids and attributes, inside of one another; no states such as `:hover`.
_MARK = r"(?:[.#]-?[^\W\d][\w-]*+|\[[\w-]++(?:[~|^$*]?=(?:\"[^\"\\]*+\"|'[^'\\]*+'|[\w-]++))?\])"
_COMPOUND = rf"(?:(?:\*|[A-Za-z][\w-]*+){_MARK}*+|{_MARK}++)"
_SELECTOR = re.compile(rf"{_COMPOUND}(?:(?:\s*+>\s*+|\s++){_COMPOUND})*+")
_LAST = re.compile(rf"\A(?:.*[\s>])?({_COMPOUND})", re.DOTALL)
_MARKS = re.compile(r"[.#]-?[^\W\d][\w-]*|\[[\w-]+")
_SHEET_TAGS = re.compile(r"(?<![\w.#:(\[=\"'-])[A-Za-z][\w-]*")
_WHOLE_PAGE = re.compile(r"\*$|(?:html|body|main)\b", re.IGNORECASE)


class StyleRule(NamedTuple):
    """What a style sheet says of what its selectors match; on every screen, or on some alone."""

    selectors: str
    declarations: str
    is_always: bool


def hiding(style: str) -> Hiding | None:
    """How declarations keep an element from being seen; None if they do not."""
    if not _MAY_HIDE.search(style):
        return None
    said = _normal(style)
    if _hides_all(said):
        return Hiding.ALL
    return Hiding.OWN_TEXT if _hides_own_text(said) else None


def shows(style: str) -> bool:
    """Whether declarations show an element that others hide."""
    return bool(_SHOWN.search(_normal(style)))


def is_for_screens(media: str) -> bool:
    """Whether what an attribute `media` says holds on every screen."""
    return _MEDIA_OF_SCREENS.fullmatch(media) is not None


def hiding_selectors(sheets: str) -> tuple[tuple[str, Hiding], ...]:
    """What the style sheets of a page hide and none of their rules shows again, by CSS."""
    # The pages of a site share their style sheet: to read it took as long as to parse the page.
    read = _selectors_of_site if len(sheets) <= _KEPT_SHEET_CHARACTERS else _selectors_in
    return read(sheets)


def _hides_all(said: str) -> bool:
    is_clipped = _CLIPPED.search(said) and _NO_SIZE.search(said) and not _GROWS.search(said)
    return bool(
        _HIDES.search(said) or is_clipped or (_PLACED.search(said) and _OFF_SCREEN.search(said))
    )


def _hides_own_text(said: str) -> bool:
    """What is inside may be shown all the same: it may have a size, or a colour, of its own."""
    if _HIDING_DECLARATIONS.search(said) or _TINY.search(said):
        return True
    ink, paper = _INK.search(said), _PAPER.search(said)
    if ink is None or "background-clip:text" in said:
        return False
    is_its_paper = paper is not None and ink[1] == paper[1] and ink[1] not in {"inherit", "unset"}
    return is_its_paper or ink[1] == "transparent"


def _normal(style: str) -> str:
    if "\\" in style:
        style = _ESCAPE.sub(lambda found: _character(found[1]), style)
    return _BLANKS.sub("", _without_css_comments(style).lower())


def _character(number: str | None) -> str:
    code = int(number or "0", 16)
    return chr(code) if 0 < code < 0xD800 else ""  # noqa: PLR2004 - beyond are halves of characters


def _without_css_comments(css: str) -> str:
    first, *others = css.split("/*")
    return "".join([first, *(one.partition("*/")[2] for one in others)]) if others else css


def _selectors_in(sheets: str) -> tuple[tuple[str, Hiding], ...]:
    if not _MAY_HIDE.search(sheets):
        return ()
    rules = list(_rules(_without_css_comments(sheets).replace("<!--", "").replace("-->", "")))
    showing = [one.selectors for one in rules if shows(one.declarations)]
    shown = {name for one in showing for name in (*_MARKS.findall(one), *_SHEET_TAGS.findall(one))}
    found: dict[str, Hiding] = {}
    for one in rules:
        if one.is_always and (how := hiding(one.declarations)) is not None:
            for selector in map(str.strip, one.selectors.split(",")):
                if _is_plain(selector) and not _is_shown_again(selector, shown):
                    found.setdefault(_of_the_body(selector), how)
    return tuple(islice(found.items(), MAX_SELECTORS))


_selectors_of_site = lru_cache(maxsize=64)(_selectors_in)  # six megabytes at the most


def _rules(css: str) -> Iterator[StyleRule]:
    """Every rule, in one pass; what is in none, or inside of another rule, is passed over."""
    start = 0
    around: list[str | None] = []  # the heads of what is open; None: nothing in it is a rule
    for token in _TOKEN.finditer(css):
        is_group = not around or (around[-1] or "").startswith("@")
        if token[0] == ";" and not is_group:
            continue  # one more declaration of the same rule
        text, start = css[start : token.start()].strip(), token.end()
        if token[0] == "{":
            is_head = is_group and (not text.startswith("@") or _GROUP.match(text))
            around.append(text if is_head and len(around) < _DEEPEST else None)
        elif token[0] == "}" and around:
            selectors = around.pop()
            if selectors is not None and not selectors.startswith("@"):
                yield StyleRule(selectors, text, all(map(_holds_always, around)))


def _holds_always(head: str | None) -> bool:
    return head is not None and _ON_EVERY_SCREEN.fullmatch(head) is not None


def _is_plain(selector: str) -> bool:
    if len(selector) > _SELECTOR_CHARACTERS or not _SELECTOR.fullmatch(selector):
        return False
    last = _LAST.fullmatch(selector)
    return last is not None and not _WHOLE_PAGE.match(last[1])


def _is_shown_again(selector: str, shown: set[str]) -> bool:
    """Whether a rule shows anything of that name, or a script does once it runs."""
    names = _MARKS.findall(selector) or _SHEET_TAGS.findall(selector)
    return "cloak" in selector or not shown.isdisjoint(names)


def _of_the_body(selector: str) -> str:
    return selector if re.match(r"(?:html|body)\b", selector) else f"body {selector}"


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
