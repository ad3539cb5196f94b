"""Parse HTML safely: count before parsing, and try out what is larger than an ordinary page."""

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from ingestion_pipeline.reading.html.trial import MAX_CPU_SECONDS, MAX_MEMORY_BYTES, TrialProcess, TrialResult
from ingestion_pipeline.tasks.errors import Permanent, Transient

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser

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


def parse_html(text: str, *, utf8: bytes | None = None) -> "LexborHTMLParser":
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
    if len(text) > _ORDINARY_CHARACTERS or tag_count > _ORDINARY_TAGS:
        return False
    start_count = tag_count - text.count("</")
    if 2 * start_count - tag_count > _ORDINARY_OPEN or len(_ROOT.findall(text)) > _ORDINARY_ROOTS:
        return False
    if (len(_FORMATTING.findall(text)) + _BARE_FORMATTING) * start_count > _ORDINARY_COPIES:
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
    """Return how many attributes the stretch can have at the most."""
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
