"""A page's tree and its visible part: parsed within limits, cleared of hidden elements, and its text.

Hidden is what an element's attributes hide (`hidden`, `aria-hidden`, its style) and what a style sheet in the page
hides for good. HTML bombs are refused before they are parsed; what is not ordinary is tried in another process.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from enum import Enum
from functools import lru_cache, partial
from itertools import islice, pairwise
from typing import TYPE_CHECKING, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from ingestion_pipeline.reading.html.trial import MAX_CPU_SECONDS, MAX_MEMORY_BYTES, TrialProcess, TrialResult
from ingestion_pipeline.tasks.errors import Permanent, Transient

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode

P = ParamSpec("P")
T = TypeVar("T")

MAX_CHARACTERS = 10_000_000  # what a fetch lets through at the most
MAX_TAGS = 300_000  # the largest of our samples has 18,000
MAX_ATTRIBUTES = 500  # of one element; real ones have up to 40
MAX_OPTIONS = 50_000  # of all lists of a page; the parser looks at each of a list again; samples have up to 900
MAX_ROOTS = 1_000  # `<html>` and `<body>`: the first gets the attributes of all; samples have up to 8
MAX_OPEN = 10_000  # elements that are started more often than ended, not counting those in scripts

# An ordinary page: 98 % of our 479 samples have fewer tags, 99.6 % fewer characters, 95 % pass all of these.
# Below these limits no page takes the parser longer than 0.3 s or more than 80 MB, so that nothing is tried out.
_ORDINARY_CHARACTERS = 400_000
_ORDINARY_TAGS = 6_000
_ORDINARY_OPEN = 1_000  # start tags without end tags
_ORDINARY_ROOTS = 10
_ORDINARY_TAG_CHARACTERS = 4_000
_ORDINARY_TOKENS = 1_000  # of what is longer up to the next tag, and may be attributes
_FEW_TAGS = 800  # formatting is repeated where another tag ends a block: at most 420 times 420
_ORDINARY_COPIES = 200_000  # of unclosed formatting, which the parser repeats in each block: 370 bytes each

_ROOT = re.compile("<(?:html|body)", re.IGNORECASE)
_SCRIPT = re.compile("<(/?)script", re.IGNORECASE)
_OPTION = re.compile("<opt(?:ion|group)", re.IGNORECASE)
_FORMATTING = re.compile(
    r"<(?:b(?:ig)?|code|em|font|i|s(?:mall|trike|trong)?|tt|u)[ \t\n\r\f/]", re.IGNORECASE | re.ASCII
)
_BARE_FORMATTING = 39  # without attributes the parser keeps three of each of the thirteen
# What is long up to the next tag is a tag or, more often, the text of a script. Then its tag is
# plain: few attributes, and no quotation mark by which the parser might see another end.
_PLAIN_TAG = re.compile(
    rf"/?[a-z][^\s/>\"']{{0,20}}+(?:[^<>\"'=]|=\"[^<>\"]*+\"(?=[\s/>])|='[^<>']*+'(?=[\s/>])"
    rf"|=[^\s<>\"'=]++(?=[\s>])){{0,{MAX_ATTRIBUTES}}}+>",
    re.IGNORECASE,
)
# Attributes without the punctuation of a script, where `a<b` is no tag.
_MANY_ATTRIBUTES = re.compile(
    r"<[a-z][^\s/<>]*+(?:[\s/]++[^\s/<>=\"'(){},;]++(?:=(?:\"[^\"<]*+\"|'[^'<]*+'|[^\s<>\"']++))?+)"
    rf"{{{MAX_ATTRIBUTES + 1}}}",
    re.IGNORECASE,
)
_NESTED = re.compile(  # elements that stay open until they are ended
    r"<(/?)(?:article|aside|blockquote|center|div|dl|fieldset|main|nav|ol|section|span|ul)(?=[ \t\n\r\f/>])",
    re.IGNORECASE,
)

_TOO_COMPLEX = {
    TrialResult.TOO_LARGE: f"takes more than {MAX_MEMORY_BYTES // 1_000_000} MB of memory to parse",
    TrialResult.TOO_SLOW: f"takes more than {MAX_CPU_SECONDS} s of CPU time to parse",
    TrialResult.CRASHED: "crashes the parser",
}

_trial_process = TrialProcess()
_accepted: deque[tuple[int, int]] = deque(maxlen=32)  # length and hash: a page is parsed for several purposes


def parse_html(text: str, *, utf8: bytes | None = None) -> LexborHTMLParser:
    """Return the tree that browsers build of the text; `utf8` is the same, if available.

    Raises:
        Permanent: `too_large`, `too_deep`, `too_many_attributes` or `too_complex`; no page needs that.
        Transient: `parser_process`; the process that tries out large pages was killed.
    """
    from selectolax.lexbor import LexborHTMLParser  # a megabyte of library; poll runs need none

    refuse_bombs(text, utf8=utf8)
    return LexborHTMLParser(text if utf8 is None else utf8)


def refuse_bombs(text: str, *, utf8: bytes | None = None) -> None:
    """Raise what `parse_html` raises; the text is not parsed in this process."""
    _refuse_more(len(text), MAX_CHARACTERS, "characters")
    tag_count = text.count("<")
    _refuse_more(tag_count, MAX_TAGS, "tags")
    if _is_ordinary(text, tag_count):
        return
    key = len(text), hash(text)
    if key in _accepted:
        return
    _refuse_repeats(text)
    _refuse_by_trial(text.encode(errors="ignore") if utf8 is None else utf8)
    _accepted.append(key)


def _is_ordinary(text: str, tag_count: int) -> bool:
    if len(text) > _ORDINARY_CHARACTERS or tag_count > _ORDINARY_TAGS or len(_ROOT.findall(text)) > _ORDINARY_ROOTS:
        return False
    if tag_count > _FEW_TAGS:
        start_count = tag_count - text.count("</")
        copied_count = len(_FORMATTING.findall(text)) + _BARE_FORMATTING
        if 2 * start_count - tag_count > _ORDINARY_OPEN or copied_count * start_count > _ORDINARY_COPIES:
            return False
    # The parser compares each attribute with all before it.
    return sum(_token_count(stretch) ** 2 for stretch in _long_tags(text)) <= _ORDINARY_TOKENS**2


def _long_tags(text: str) -> Iterator[str]:
    """Yield what follows a `<` up to another that is far away, unless it is a plain tag with its text.

    Such a stretch covers a whole step: no character of the others is looked at one by one.
    """
    step = _ORDINARY_TAG_CHARACTERS // 2
    place = 0
    while place + step <= len(text):
        if text.find("<", place, place + step) >= 0:
            place += step
            continue
        start, end = text.rfind("<", 0, place), text.find("<", place + step)
        end = len(text) if end < 0 else end
        if 0 <= start < end - _ORDINARY_TAG_CHARACTERS and not _PLAIN_TAG.match(text, start + 1, end):
            yield text[start + 1 : end]
        place = end


def _token_count(stretch: str) -> int:
    return len(stretch.split()) + stretch.count("/") + stretch.count('"') + stretch.count("'")


def _refuse_repeats(text: str) -> None:
    _refuse_more(len(_OPTION.findall(text)), MAX_OPTIONS, "options")
    _refuse_more(len(_ROOT.findall(text)), MAX_ROOTS, "tags <html> and <body>")
    beginning, *rest = _SCRIPT.split(text)
    outside_scripts = [beginning, *(part for slash, part in zip(rest[::2], rest[1::2], strict=True) if slash)]
    slashes = [slash for part in outside_scripts for slash in _NESTED.findall(part)]
    open_count = 2 * slashes.count("") - len(slashes)
    if open_count > MAX_OPEN:
        raise _refused(f"leaves {open_count} elements open, more than {MAX_OPEN}", code="too_deep")
    if _MANY_ATTRIBUTES.search(text):
        raise _refused(f"has an element with more than {MAX_ATTRIBUTES} attributes", code="too_many_attributes")


def _refuse_by_trial(utf8: bytes) -> None:
    try:
        result = _trial_process.try_out(utf8)
    except OSError as error:
        message = f"the process that tries out large pages failed: {error}; the page is tried again"
        raise Transient(message, code="parser_process") from error
    if result is TrialResult.TOO_DEEP:
        raise _refused("nests too many elements too deeply", code="too_deep")
    if result is not TrialResult.PASSED:
        raise _refused(_TOO_COMPLEX[result], code="too_complex")


def _refuse_more(count: int, most: int, what: str) -> None:
    if count > most:
        raise _refused(f"has {count} {what}, more than {most}", code="too_large")


def _refused(reason: str, *, code: str) -> Permanent:
    message = f"the page {reason}; it is not read: leave it out of the source, or give a smaller page instead"
    return Permanent(message, code=code)


_executors: WeakKeyDictionary[asyncio.AbstractEventLoop, ThreadPoolExecutor] = WeakKeyDictionary()


async def in_parser_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `work` as `asyncio.to_thread` does, but in the one parser thread of the running loop.

    Parsing pages in many threads makes them compete for the interpreter, and none is done sooner: that
    took a tenth to a third more CPU time.
    """
    loop = asyncio.get_running_loop()
    executor = _executors.get(loop)
    if executor is None:
        executor = _executors[loop] = ThreadPoolExecutor(max_workers=1, thread_name_prefix="parser")
    in_context = copy_context().run
    return await loop.run_in_executor(executor, partial(in_context, work, *args, **kwargs))


MAX_SELECTORS = 200
_KEPT_SHEET_CHARACTERS = 50_000
_SELECTOR_CHARACTERS = 200
_DEEPEST = 8  # conditions inside of one another


class Hiding(Enum):
    """How far declarations hide: everything inside, or all but what has a style of its own."""

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
_NO_SIZE = re.compile(r"(?:^|;)(?:max-)?(?:width|height):(?:(?:0++1?|1)(?:\.0*+)?(?:px)?|0[a-z%]++)(?:;|$)")
_GROWS = re.compile(r"(?:^|;)(?:flex|min-(?:width|height)):(?!0|none)")
_INK = re.compile(r"(?:^|;)color:([^;]+)")
_PAPER = re.compile(r"(?:^|;)background(?:-color)?:([^;]+)")
_SHOWN = re.compile(r"(?:^|;)(?:display:(?!none)|visibility:visible|position:static)")

_TOKEN = re.compile("[{};]")
_GROUP = re.compile(r"@(media|supports|layer|container|scope|starting-style|document)\b", re.I)
_ON_EVERY_SCREEN = re.compile(  # whatever its size; a program of today supports what is asked for
    r"@(?:media\s+(?:only\s+)?(?:screen|all)(?:\s*,.*)?|layer\b.*|supports\b(?!\s*not\b).*)", re.IGNORECASE | re.DOTALL
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


def hiding(style: str) -> Hiding | None:
    """Return how declarations hide an element; None if they do not."""
    if not _MAY_HIDE.search(style):
        return None
    declarations = _normal(style)
    is_clipped = _CLIPPED.search(declarations) and _NO_SIZE.search(declarations) and not _GROWS.search(declarations)
    is_off_screen = _PLACED.search(declarations) and _OFF_SCREEN.search(declarations)
    if _HIDES.search(declarations) or is_clipped or is_off_screen:
        return Hiding.ALL
    return Hiding.OWN_TEXT if _hides_own_text(declarations) else None


def shows(style: str) -> bool:
    """Return whether declarations show an element that others hide."""
    return bool(_SHOWN.search(_normal(style)))


def hiding_selectors(sheets: str) -> tuple[tuple[str, Hiding], ...]:
    """Return the selectors that a page's style sheets hide and none of their rules shows."""
    # Cached: the pages of a site share their style sheet, and reading it took as long as parsing.
    read = _selectors_of_site if len(sheets) <= _KEPT_SHEET_CHARACTERS else _selectors_in
    return read(sheets)


def _hides_own_text(declarations: str) -> bool:
    """Return whether only own text is hidden: elements inside may have their own size or colour."""
    if _HIDING_DECLARATIONS.search(declarations) or _TINY.search(declarations):
        return True
    ink, paper = _INK.search(declarations), _PAPER.search(declarations)
    if ink is None or "background-clip:text" in declarations:
        return False
    is_its_paper = paper is not None and ink[1] == paper[1] and ink[1] not in {"inherit", "unset"}
    return is_its_paper or ink[1] == "transparent"


def _normal(style: str) -> str:
    if "\\" in style:
        style = _ESCAPE.sub(lambda match: _character(match[1]), style)
    return _BLANKS.sub("", _without_css_comments(style).lower())


def _character(number: str | None) -> str:
    code = int(number or "0", 16)
    return chr(code) if 0 < code < 0xD800 else ""  # noqa: PLR2004 - beyond are halves of characters


def _without_css_comments(css: str) -> str:
    first, *others = css.split("/*")
    return "".join([first, *(part.partition("*/")[2] for part in others)]) if others else css


def _selectors_in(sheets: str) -> tuple[tuple[str, Hiding], ...]:
    if not _MAY_HIDE.search(sheets):
        return ()
    rules = list(_rules(_without_css_comments(sheets).replace("<!--", "").replace("-->", "")))
    showing = [selectors for selectors, declarations, _ in rules if shows(declarations)]
    shown_names = {name for css in showing for name in (*_MARKS.findall(css), *_SHEET_TAGS.findall(css))}
    hiding_by_selector: dict[str, Hiding] = {}
    for selectors, declarations, is_always in rules:
        if is_always and (how := hiding(declarations)) is not None:
            for selector in map(str.strip, selectors.split(",")):
                if _is_plain(selector) and not _is_shown_again(selector, shown_names):
                    is_of_the_body = re.match(r"(?:html|body)\b", selector)
                    hiding_by_selector.setdefault(selector if is_of_the_body else f"body {selector}", how)
    return tuple(islice(hiding_by_selector.items(), MAX_SELECTORS))


_selectors_of_site = lru_cache(maxsize=64)(_selectors_in)  # six megabytes at the most


def _rules(css: str) -> Iterator[tuple[str, str, bool]]:
    """Yield selectors and declarations of every rule, and whether it applies to every screen.

    In one pass; nested rules and text outside of rules are skipped.
    """
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
                is_always = all(head is not None and _ON_EVERY_SCREEN.fullmatch(head) for head in around)
                yield selectors, text, is_always


def _is_plain(selector: str) -> bool:
    if len(selector) > _SELECTOR_CHARACTERS or not _SELECTOR.fullmatch(selector):
        return False
    last = _LAST.fullmatch(selector)
    return last is not None and not _WHOLE_PAGE.match(last[1])


def _is_shown_again(selector: str, shown_names: set[str]) -> bool:
    """Return whether a rule shows anything of that name, or a script may once it runs."""
    names = _MARKS.findall(selector) or _SHEET_TAGS.findall(selector)
    return "cloak" in selector or not shown_names.isdisjoint(names)


# `noscript` is for others than the visitor; forms stay, catalogues have their terms in them.
_NO_TEXT = frozenset(
    {"script", "style", "template", "noscript", "svg", "canvas", "iframe", "object", "embed"}
    | {"audio", "video", "map", "noembed", "noframes", "xmp", "datalist", "dialog"}
)
_FEW = 30
# One traversal for all of them. Half of its cost are the names, and most pages have few.
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
# Invisible characters that can hide text: tags, direction marks, joiners
# of zero width. The joiners of Persian words and of emoji stay.
_INVISIBLE = re.compile(
    "[\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff\U000e0000-\U000e01ef]|[\ufe00-\ufe0f]{2,}"
)
_VARIATIONS = (b"\xef\xb8", b"\xf3\xa0")  # how those begin that change the sign before them
_ASCII = bytes(range(128))
_PLAIN = bytes([ord("\n"), *range(32, 127)])  # what a line of English is made of, and its end


def cleaned_text(html: str) -> str:
    """Return the text that a visitor sees, a line for each block; a bomb is `Permanent` (see `parse_html`)."""
    return visible_text(visible_tree(html))


def visible_tree(html: str, tree: LexborHTMLParser | None = None) -> LexborHTMLParser:
    """Return the tree without scripts and hidden elements; with them if all is hidden.

    `tree` is that of the same HTML, if parsed already; it is changed.
    """
    tree = parse_html(html) if tree is None else tree
    remove_unseen(tree)
    if not has_text(tree):
        tree = parse_html(html)
        _remove(tree, [node for node in tree.css(", ".join(_NO_TEXT)) if _has_no_text(node)])
    return tree


def remove_unseen(tree: LexborHTMLParser, candidates: Sequence[LexborNode] | None = None) -> list[str | None]:
    """Take out of the tree what no visitor sees; the addresses of the links in it, if not of more.

    `candidates` is what `MAY_BE_UNSEEN` matches, if queried already, or `OFTEN_UNSEEN` on a
    page that has nothing else.
    """
    nodes = tree.css(MAY_BE_UNSEEN) if candidates is None else candidates
    by_style_sheet = hiding_selectors("\n".join([node.text() for node in nodes if _is_applied_sheet(node)]))
    hrefs = _remove(tree, [node for node in nodes if _has_no_text(node) or _is_hidden(node)])
    for selector, how in by_style_sheet:
        hrefs += _remove(tree, [node for node in tree.css(selector) if _is_hidden_by_sheet(node, how)])
    return hrefs


def has_text(tree: LexborHTMLParser) -> bool:
    """Return whether any text is left."""
    return tree.body is not None and bool(tree.body.text().strip())


def visible_text(tree: LexborHTMLParser) -> str:
    """Return the text of a cleaned tree, one line for each block."""
    return utf8_text(body_html(tree)).decode()


def fragment_text(html: str) -> str:
    """Return the text of a part of a cleaned tree, one line for each block."""
    return utf8_text(_apart(html.encode())).decode()


def body_html(tree: LexborHTMLParser) -> bytes:
    """Return the body as HTML without comments, with blanks where only a style separates words.

    In UTF-8, in which patterns are quicker, and in which its text is hashed and stored.
    """
    html = tree.body.html if tree.body is not None else None
    return _apart((html or "").encode())


def utf8_text(html: bytes) -> bytes:
    """Return the text of the result of `body_html`, one line for each block."""
    # A line end in the markup is a blank, and so are the common ones that are no space.
    one_line = html.replace(b"\n", b" ").replace(b"\t", b" ")
    parts = _TAGS.split(_INLINE_TAG.sub(b"", _NO_BREAK.sub(b" ", one_line)))
    text = b"\n".join([line for line in map(bytes.strip, parts) if line])
    if not is_printable_utf8(text):
        return readable(_without_references(b"\n".join(parts)).decode()).encode()
    # Printable means that a space is the only white space; no line begins or ends with one.
    runs = text.split(b"  ")
    single = b" ".join([stripped for run in runs if (stripped := run.lstrip(b" "))])
    return _without_references(single)


def _without_references(text: bytes) -> bytes:
    """Replace the references that the parser writes by their characters; there are no others."""
    return _REFERENCE.sub(lambda match: _REFERRED_TO[match[1]], text)


def _apart(html: bytes) -> bytes:
    first, *others = (html := _without_comments(html)).split(_TOUCHING)
    if not others:
        return html
    parts = [first]
    for before, after in pairwise([first, *others]):
        are_two = _BEGINS_ANOTHER.match(after) and _ENDS_A_WORD.search(_end(before))
        parts += (b"</span> <" if are_two else _TOUCHING, after)
    return b"".join(parts)


def _without_comments(html: bytes) -> bytes:
    """Remove comments; `<p <!-- note -->` has none, but attributes of odd names."""
    parts: list[bytes] = []
    copied = 0
    for match in _COMMENT.finditer(html):
        start = match.start() - 1
        is_in_a_tag = html.rfind(b"<", copied, start) > html.rfind(b">", copied, start)
        if start < copied or is_in_a_tag:  # or inside of the last comment
            continue
        if (end := html.find(b"-->", match.end())) < 0:  # plain text: the parser ends the others
            break
        parts.append(html[copied:start])
        copied = end + len(b"-->")
    return b"".join([*parts, html[copied:]]) if parts else html


def _end(html: bytes) -> str:
    """Return the last two characters; they have four bytes at the most."""
    return html[-8:].decode("utf-8", "ignore")[-2:]


def readable(text: str) -> str:
    """Return the text without invisible characters, with single blanks and no blank lines."""
    text = text.replace("\xa0", " ").replace("\t", " ")  # blanks as well, and the common ones
    is_printable = is_printable_utf8(text.encode("utf-8", "surrogatepass"))
    if not is_printable:
        text = without_invisible(text).replace("\r", "\n")
    # Printable means that a space is the only white space: most lines need no second look.
    return "\n".join(
        [
            line if "  " not in line and (is_printable or line.isprintable()) else " ".join(line.split())
            for line in map(str.strip, text.split("\n"))
            if line
        ]
    )


def is_printable_utf8(text: bytes) -> bool:
    """Return whether every line is printable: no odd blanks, no invisible characters."""
    # To delete ASCII is quick, and leaves next to nothing of most pages to look through.
    rest = text.translate(None, _PLAIN)
    if any(rest.find(start) >= 0 for start in _VARIATIONS):
        return False
    return rest.decode("utf-8", "surrogatepass").isprintable()


def without_invisible(text: str) -> str:
    """Return the text without NUL and invisible characters."""
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
    attributes = node.attrs
    if (style := attributes.get("style")) and _is_kept_from_sight(node, hiding(style)):
        return True
    is_hidden = "hidden" in attributes and attributes.get("hidden") != "until-found"
    return is_hidden or (attributes.get("aria-hidden") or "").strip().lower() == "true"


def _is_kept_from_sight(node: LexborNode, how: Hiding | None) -> bool:
    """Return whether everything inside is hidden too; a class or style inside may show it."""
    return how is Hiding.ALL or (
        how is Hiding.OWN_TEXT and all(descendant == node for descendant in node.css("[class], [style]"))
    )


def _is_hidden_by_sheet(node: LexborNode, how: Hiding) -> bool:
    style = node.attrs.get("style")
    return not (style and shows(style)) and _is_kept_from_sight(node, how)


def _may_hold_elements(node: LexborNode) -> bool:
    """Return whether a node may hold elements: most scripts and styles hold one text."""
    first = node.first_child
    return first is not None and not (first.is_text_node and first.next is None)


def _remove(tree: LexborHTMLParser, nodes: Sequence[LexborNode]) -> list[str | None]:
    """Remove the nodes from the tree; return the addresses of the links inside them."""
    within = [node for node in nodes if node.tag == "a" or _may_hold_elements(node)]
    # One query of the whole page takes as long as queries of some thirty icons.
    places = within if len(within) <= _FEW else [tree]
    hrefs = [link.attrs.get("href") for place in places for link in place.css("a[href]")]
    for node in reversed(nodes):  # inner nodes first: no node is removed twice
        node.decompose()
    return hrefs


def _is_applied_sheet(node: LexborNode) -> bool:
    """Return whether the node is a style sheet that applies to every screen, with scripts enabled."""
    if node.tag != "style":
        return False
    attributes = node.attrs
    is_css = (attributes.get("type") or "text/css").strip().lower() == "text/css"
    is_for_others = node.parent is not None and node.parent.tag == "noscript"
    return is_css and not is_for_others and _MEDIA_OF_SCREENS.fullmatch(attributes.get("media") or "") is not None
