"""What a style keeps from being seen: declarations of an element, and the sheets in its page.

Only what is hidden for good. What another rule shows again (tabs, menus), what holds for print or
for small screens alone, and `opacity: 0` (pages fade their content in) hide nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

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
_INVISIBLE = re.compile(r"(?:^|;)visibility:(?:hidden|collapse)")
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
_TAGS = re.compile(r"(?<![\w.#:(\[=\"'-])[A-Za-z][\w-]*")
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
    if _INVISIBLE.search(said) or _TINY.search(said):
        return True
    ink, paper = _INK.search(said), _PAPER.search(said)
    if ink is None or "background-clip:text" in said:
        return False
    is_its_paper = paper is not None and ink[1] == paper[1] and ink[1] not in {"inherit", "unset"}
    return is_its_paper or ink[1] == "transparent"


def _normal(style: str) -> str:
    if "\\" in style:
        style = _ESCAPE.sub(lambda found: _character(found[1]), style)
    return _BLANKS.sub("", _without_comments(style).lower())


def _character(number: str | None) -> str:
    code = int(number or "0", 16)
    return chr(code) if 0 < code < 0xD800 else ""  # noqa: PLR2004 - beyond are halves of characters


def _without_comments(css: str) -> str:
    first, *others = css.split("/*")
    return "".join([first, *(one.partition("*/")[2] for one in others)]) if others else css


def _selectors_in(sheets: str) -> tuple[tuple[str, Hiding], ...]:
    if not _MAY_HIDE.search(sheets):
        return ()
    rules = list(_rules(_without_comments(sheets).replace("<!--", "").replace("-->", "")))
    showing = [one.selectors for one in rules if shows(one.declarations)]
    shown = {name for one in showing for name in (*_MARKS.findall(one), *_TAGS.findall(one))}
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
    names = _MARKS.findall(selector) or _TAGS.findall(selector)
    return "cloak" in selector or not shown.isdisjoint(names)


def _of_the_body(selector: str) -> str:
    return selector if re.match(r"(?:html|body)\b", selector) else f"body {selector}"
