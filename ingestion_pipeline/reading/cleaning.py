"""What a visitor of a page can see: its text, and its tree without what is hidden.

Hidden is what an element says of itself (`hidden`, `aria-hidden`, its style) and what a style sheet
in the page says of a class or an id for good. `opacity: 0` is not: pages fade their content in.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

from ingestion_pipeline.reading.markup import parse_html

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode

MAX_STYLE_SELECTORS = 200
_KEPT_SHEET_CHARACTERS = 50_000

# `noscript` is for others than the visitor; forms stay, catalogues have their terms in them.
_NO_TEXT = frozenset(
    {"script", "style", "template", "noscript", "svg", "canvas", "iframe", "object", "embed"}
    | {"audio", "video", "map", "noembed", "noframes", "xmp", "datalist", "dialog"}
)
# One walk for all of them: what a walk costs is the walk, not what it looks for.
_MAY_BE_UNSEEN = ", ".join(
    (*sorted(_NO_TEXT), "body [hidden]", "body [aria-hidden]", "body [style]")
)

_BLANKS = re.compile(r"\s+|!important")
_HIDES = re.compile(
    r"(?:^|;)(?:display:none|visibility:(?:hidden|collapse)|font-size:0[a-z%]*(?:;|$)"
    r"|text-indent:-[0-9]{3,}|transform:scale\(0\)|clip:rect\((?:[01](?:px)?[, ]?){4}\)"
    r"|clip-path:inset\((?:50|100)%)"
)
_PLACED = re.compile(r"(?:^|;)position:(?:absolute|fixed)")
_OFF_SCREEN = re.compile(r"(?:^|;)(?:left|right|top|bottom|margin-left|margin-top):-[0-9]{3,}")
_CLIPPED = re.compile(r"(?:^|;)overflow(?:-[xy])?:(?:hidden|clip)")
_NO_SIZE = re.compile(r"(?:^|;)(?:max-)?(?:width|height):[01](?:px|em|rem|%)?(?:;|$)")
_MAY_HIDE = re.compile(
    r"none|hidden|collapse|font-size|-indent|:\s*-|clip|scale|(?:width|height)\s*:\s*[01]",
    re.IGNORECASE,
)

_CSS_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_CSS_CONDITION = re.compile(r"@[^{};]*+\{(?:[^{}]*+\{[^{}]*+\})*+[^{}]*+\}")  # for print, say
_CSS_RULE = re.compile(r"([^{}]*)\{([^{}]*)\}")
_ONE_CLASS_OR_ID = re.compile(r"[a-z0-9]*[.#]-?[A-Za-z_][\w-]*")
_SHOWN = re.compile(r"(?:^|;)(?:display:(?!none)|visibility:visible|position:static)")

# Of what the parser serialises: there an attribute holds neither `<` nor `>`, nor does text.
_COMMENT = re.compile("<!--.*?-->", re.DOTALL)
_INLINE_TAG = re.compile(
    rb"</?(?:a(?:bbr|cronym)?|b(?:d[io]|ig)?|c(?:ite|ode)|d(?:ata|el|fn)|em|font|i(?:ns)?|kbd|label"
    rb"|mark|nobr|q|s(?:amp|mall|pan|trike|trong|u[bp])?|t(?:ime|t)|u|var|wbr)(?=[ >])[^>]*+>"
)
_TAGS = re.compile(rb"<[a-z!?/][^>]*+>(?:\s*+<[a-z!?/][^>]*+>)*+")
# Each begins with one character that is sure, and so with the quickest search that there is.
_NO_BREAK = re.compile(b"&(?=n)nbsp;")
_SPACES = re.compile(b"  +")
_REFERENCE = re.compile(b"&(lt|gt|amp);")
_REFERRED_TO = {b"lt": b"<", b"gt": b">", b"amp": b"&"}
# `<span>Posted</span><span>8 May</span>`: the gap is in the style. Single letters are an effect.
_TOUCHING = re.compile(r"</span>(?<=\w\w</span>)(?=<(?:span|time|strong|a|b)\b)")
# Characters that nobody sees and that carry words past a reader: tags, marks of direction, joints
# without width. The joiners of Persian words and of emoji stay.
_INVISIBLE = re.compile(
    "[\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff\U000e0000-\U000e007f]"
)
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
        _remove([node for node in tree.css(", ".join(_NO_TEXT)) if _has_no_text(node)])
    return tree


def remove_unseen(tree: LexborHTMLParser) -> None:
    """Take out of the tree what no visitor sees."""
    nodes = tree.css(_MAY_BE_UNSEEN)
    by_style_sheet = _hiding_selectors([node for node in nodes if node.tag == "style"])
    _remove([node for node in nodes if _has_no_text(node) or _is_hidden(node)])
    for selector in by_style_sheet:
        _remove(tree.css(f"body {selector}"))


def has_text(tree: LexborHTMLParser) -> bool:
    """Whether anything is left to read."""
    return tree.body is not None and bool(tree.body.text().strip())


def visible_text(tree: LexborHTMLParser) -> str:
    """The text of a tree that was cleaned, one line for each block."""
    return body_text(body_html(tree))


def fragment_text(html: str) -> str:
    """The text of a piece of a cleaned tree, one line for each block."""
    return body_text(_apart(html))


def body_html(tree: LexborHTMLParser) -> str:
    """The body as HTML without comments, words kept apart that only a style sheet keeps apart."""
    return _apart((tree.body.html if tree.body is not None else None) or "")


def body_text(html: str) -> str:
    """The text of what `body_html` gave, one line for each block."""
    return utf8_text(html).decode()


def utf8_text(html: str) -> bytes:
    """The same as UTF-8, in which patterns are quicker, and which is hashed and kept."""
    # A line end in the markup is a blank, and so are the common ones that are no space.
    one_line = html.encode().replace(b"\n", b" ").replace(b"\t", b" ")
    parts = _TAGS.split(_INLINE_TAG.sub(b"", _NO_BREAK.sub(b" ", one_line)))
    lines = [line for line in map(bytes.strip, parts) if line]
    if not is_printable_utf8(b"".join(lines)):
        return readable(_without_references(b"\n".join(parts)).decode()).encode()
    # Printable means that a space is the only white space: most lines need no second look.
    single = [_SPACES.sub(b" ", line) if b"  " in line else line for line in lines]
    return _without_references(b"\n".join(single))


def _without_references(text: bytes) -> bytes:
    """The characters themselves that the parser writes as references; there are no others."""
    return _REFERENCE.sub(lambda found: _REFERRED_TO[found[1]], text)


def _apart(html: str) -> str:
    if "<!--" in html:
        html = _COMMENT.sub("", html)
    return _TOUCHING.sub("</span> ", html) if "</span><" in html else html


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
    return text.translate(None, _PLAIN).decode("utf-8", "surrogatepass").isprintable()


def without_invisible(text: str) -> str:
    """The text without NUL and characters that nobody sees."""
    text = text.replace("\0", "")
    # To delete ASCII is quick, and leaves next to nothing of most pages to look through.
    rest = b"" if text.isascii() else text.encode("utf-8", "surrogatepass").translate(None, _ASCII)
    if not rest or not _INVISIBLE.search(rest.decode("utf-8", "surrogatepass")):
        return text
    return _INVISIBLE.sub("", text)


def hides(style: str) -> bool:
    """Whether declarations keep an element from being seen."""
    if not _MAY_HIDE.search(style):
        return False
    said = _BLANKS.sub("", style.lower())
    return bool(
        _HIDES.search(said)
        or (_PLACED.search(said) and _OFF_SCREEN.search(said))
        or (_CLIPPED.search(said) and _NO_SIZE.search(said))
    )


def _has_no_text(node: LexborNode) -> bool:
    tag = node.tag
    return tag in _NO_TEXT and (tag != "dialog" or "open" not in node.attrs)


def _is_hidden(node: LexborNode) -> bool:
    said = node.attrs
    if (style := said.get("style")) and hides(style):
        return True
    is_hidden = "hidden" in said and said.get("hidden") != "until-found"
    return is_hidden or (said.get("aria-hidden") or "").lower() == "true"


def _remove(nodes: Iterable[LexborNode]) -> None:
    for node in nodes:
        node.decompose()


def _hiding_selectors(styles: Iterable[LexborNode]) -> Sequence[str]:
    """Classes and ids that a style sheet of the page hides and that none of its rules shows."""
    sheets = "\n".join([node.text() for node in styles])
    # The pages of a site share their style sheet: to read it took as long as to parse the page.
    read = _selectors_of_site if len(sheets) <= _KEPT_SHEET_CHARACTERS else _selectors_in
    return read(sheets)


def _selectors_in(sheets: str) -> Sequence[str]:
    if not _MAY_HIDE.search(sheets):
        return ()
    sheets = _CSS_COMMENT.sub("", sheets)
    rules = _CSS_RULE.findall(sheets)
    hiding = {
        selector
        for selectors, declarations in _CSS_RULE.findall(_CSS_CONDITION.sub("", sheets))
        if hides(declarations)
        for selector in map(str.strip, selectors.split(","))
        if _ONE_CLASS_OR_ID.fullmatch(selector)
    }
    shown = " ".join(s for s, said in rules if _SHOWN.search(_BLANKS.sub("", said.lower())))
    return tuple(islice((s for s in hiding if _name(s) not in shown), MAX_STYLE_SELECTORS))


_selectors_of_site = lru_cache(maxsize=64)(_selectors_in)  # six megabytes at the most


def _name(selector: str) -> str:
    """The class or id alone, with its dot or hash: `div.note` is `.note`."""
    _, mark, name = selector.partition("#" if "#" in selector else ".")
    return mark + name
