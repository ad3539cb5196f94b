"""Text of a body: decoded by declaration or guess, cleaned, and fingerprinted without the date of the day.

A fingerprint leaves out only what a page says of itself: "as of", "last updated", a copyright year, a clock. A date
that stands for anything else is content, and so is every other number.
"""

import codecs
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import unescape
from importlib import import_module, resources
from itertools import groupby, pairwise
from typing import Any, cast

_SAMPLE_BYTES = 200_000
_FEWEST = 12  # bytes beyond ASCII; fewer prove nothing
_LEAST_WORD_BYTES = 3  # on average; western text has 2: one letter, and the one after it
_BLANKS_BEYOND_ASCII = re.compile(rb"\xa0{2,}")
_ASCII = bytes(range(128))
# Letters of other scripts, some of which have an ASCII byte in their second half.
_WORDS_BEYOND_ASCII = re.compile(rb"[\x80-\xff](?:[\x30-\x7e]?[\x80-\xff])*+[\x30-\x7e]?")


def guessed_encoding(body: bytes) -> str | None:
    """Return the codec that the bytes clearly indicate; None if there is none."""
    head = _BLANKS_BEYOND_ASCII.sub(b" ", body[:_SAMPLE_BYTES])
    if len(head.translate(None, _ASCII)) < _FEWEST:
        return None
    import chardet  # few bodies need it

    words = _WORDS_BEYOND_ASCII.findall(head)
    if sum(map(len, words)) >= _LEAST_WORD_BYTES * len(words):
        head = b" ".join(words)  # among much markup the library takes them for western letters
    codec = chardet.detect(
        head, include_encodings=tuple(_encodings()["guessed"].split()), compat_names=False, prefer_superset=True
    )["encoding"]
    return {FALLBACK: None, "euc_jis_2004": "euc_jp"}.get(codec or FALLBACK, codec)


# Browsers look at 1024 bytes; real pages declare later, so we look as far as html5lib's tests go.
HEAD_BYTES = 16_384

FALLBACK = "cp1252"

# A byte order mark, longest first: UTF-32's begins like UTF-16's.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


@cache
def _encodings() -> dict[str, Any]:
    names = packaged_data("ingestion_pipeline.reading.text", "encodings.yaml")
    names["codec_by_label"] = {label: codec for codec, labels in names["labels"].items() for label in labels.split()}
    names["multi_byte"] = frozenset(names["multi_byte"].split())
    names["decoded"] = {"utf-8", *names["single_byte"].split(), *names["multi_byte"]}
    return names


_XML_DECLARATION = re.compile(rb"\s*<\?xml\s[^>]{0,200}?encoding\s*=\s*[\"']([^\"'>]{1,40})[\"']")
_CHARSET = re.compile(r"charset\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s\"';][^\s;]*))", re.IGNORECASE)
_TAG = re.compile(r"<(?:(!--)|(meta)(?=[\s/])|/?[a-z]|[!/?])", re.IGNORECASE)
_ATTRIBUTE = re.compile(
    r"[\s/]*+([^\s/>][^\s/>=]*+)(?:\s*+=\s*+(?:\"([^\"]*+)\"|'([^']*+)'|([^\s>\"'][^\s>]*+)|(?=>)))?"
)
_NON_LEADS = bytes(range(0xC0))
_SURROGATES = re.compile("[\ud800-\udfff]")
# With the semicolon: "R&D" and "?a=1&copy=2" are no references.
_REFERENCE = re.compile(r"&(?:[a-z][a-z0-9]{1,31}|#[0-9]{1,7}|#x[0-9a-f]{1,6});", re.IGNORECASE)
MAX_ESCAPES = 4  # times that a text was escaped on its way through APIs and feeds


def decode(body: bytes, content_type: str | None = None) -> str:
    """Return the body's text, without NUL or lone surrogates; undecodable bytes become U+FFFD."""
    return decoded(body, content_type)[0]


def decoded(body: bytes, content_type: str | None = None) -> tuple[str, bytes]:
    """Return the body's text, and its UTF-8: most often the body itself."""
    # None of the codecs allowed here makes a lone surrogate out of bytes.
    declared = _by_its_bytes(body) or _declared(body, content_type) or "utf-8"
    text = _utf8_text(body) if declared == "utf-8" else None  # most are, and need no second look
    if text is not None and 0 not in body:
        return text, body
    if text is None:
        text = body.decode(encoding_of(body, content_type), errors="replace")
    text = text.replace("\0", "")
    return text, text.encode()


def clean_text(text: str | None) -> str | None:
    """Return one line that any database can store, or None if only white space is left."""
    if text is None:
        return None
    if not text.isprintable():
        text = _SURROGATES.sub("", text.replace("\0", ""))
    elif "  " not in text and text[:1] != " " and text[-1:] != " ":
        return text or None  # most are: printable means that a space is the only white space
    return " ".join(text.split()) or None


def without_references(text: str) -> str:
    """Return the text with `&amp;` and the like resolved, however often they were escaped."""
    for _ in range(MAX_ESCAPES):
        if "&" not in text:
            break
        text = _REFERENCE.sub(lambda match: unescape(match[0]), text)
    return text


def encoding_of(body: bytes, content_type: str | None = None) -> str:
    """Return the Python codec that reads the body best; there is always one."""
    return _by_its_bytes(body) or _chosen_encoding(_declared(body, content_type), body)


def declared_encoding(body: bytes) -> str | None:
    """Return the encoding of the XML declaration or the first usable `meta`, if any."""
    head = body[:HEAD_BYTES]
    if (match := _XML_DECLARATION.match(head)) and (codec := _codec(match[1].decode("latin-1"))):
        return _readable_as_ascii(codec)
    return _meta_encoding(head.decode("latin-1"))


def _by_its_bytes(body: bytes) -> str | None:
    marked = next((codec for mark, codec in _MARKS if body.startswith(mark)), None)
    return marked or _utf16_without_mark(body)


def _declared(body: bytes, content_type: str | None) -> str | None:
    return _header_encoding(content_type) or declared_encoding(body)


def _chosen_encoding(declared: str | None, body: bytes) -> str:
    if declared is None or declared == "utf-8":
        return "utf-8" if _is_mostly_utf8(body) else guessed_encoding(body) or FALLBACK
    if declared.startswith("utf-16") and 0 not in body:
        return _chosen_encoding(None, body)
    # Text of one of these encodings is next to never good UTF-8 by chance, unless very short.
    chance = 3 if declared in _encodings()["multi_byte"] else 0
    return "utf-8" if _lead_count(body) > chance and _utf8_text(body) is not None else declared


def _utf8_text(body: bytes) -> str | None:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _is_mostly_utf8(body: bytes) -> bool:
    """Return whether the body is UTF-8 but for a few bytes: a bad quotation, a cut-off end."""
    if _utf8_text(body) is not None:
        return True
    return _lead_count(body) > 2 * body.decode("utf-8", errors="replace").count("\ufffd")


def _lead_count(body: bytes) -> int:
    """Return how many characters beyond ASCII the body has if it is UTF-8."""
    return len(body.translate(None, _NON_LEADS))


def _utf16_without_mark(body: bytes) -> str | None:
    """Recognise UTF-16 by its NULs: markup is mostly ASCII, so every second byte is 0."""
    head = body[: min(1024, len(body) // 2 * 2)]
    even, odd = head[::2].count(0), head[1::2].count(0)
    most = max(len(head) // 5, 2)  # 40 % of the characters
    if odd >= most and even * 10 <= odd:
        return "utf-16-le"
    return "utf-16-be" if even >= most and odd * 10 <= even else None


def _header_encoding(content_type: str | None) -> str | None:
    match = _CHARSET.search(content_type or "")
    return _codec(match[1] or match[2] or match[3] or "") if match else None


def _codec(label: str) -> str | None:
    """Return the codec for a label as browsers understand it; None for an unknown label."""
    label = label.strip().lower()
    if not re.fullmatch(r"[a-z0-9_:.-]{1,40}", label):
        return None
    try:
        name = codecs.lookup(_encodings()["codec_by_label"].get(label, label)).name
    except LookupError:
        return None
    name = _encodings()["wider"].get(name, name)
    return name if name in _encodings()["decoded"] else None


def _readable_as_ascii(codec: str) -> str:
    """Return the codec unless it is UTF-16: a declaration readable as ASCII is not UTF-16."""
    return "utf-8" if codec.startswith("utf-16") else codec


def _meta_encoding(head: str) -> str | None:
    """Return the first encoding that a `meta` names, found as browsers do before they parse."""
    position = 0
    while tag := _TAG.search(head, position):
        if tag[1]:
            position = head.find("-->", tag.start() + 2)
            if position < 0:
                return None
            continue
        attributes, position = _attributes(head, tag.end())
        if position < 0:
            return None
        if tag[2] and (codec := _meta_codec(attributes)):
            return _readable_as_ascii(codec)
    return None


def _attributes(head: str, position: int) -> tuple[dict[str, str], int]:
    """Return a tag's attributes and where the tag ends; -1 if it never does."""
    attributes: dict[str, str] = {}
    while match := _ATTRIBUTE.match(head, position):
        attributes.setdefault(match[1].lower(), match[2] or match[3] or match[4] or "")
        position = match.end()
    return attributes, head.find(">", position)


def _meta_codec(attributes: dict[str, str]) -> str | None:
    if "charset" in attributes:
        return _codec(attributes["charset"])
    if attributes.get("http-equiv", "").lower() != "content-type":
        return None
    return _header_encoding(attributes.get("content"))


_TIMED = frozenset(
    {b"generated ", b"\ngenerated", b"rendered ", b"\nrendered", b"loaded in ", b"served in "} | {b"processed in "}
)
_COPYRIGHT_MARKS = ("©".encode(), b"(c)")
_NAMES_OWNER = (*_COPYRIGHT_MARKS, b"copyright")
_YEAR = "(?:19|20)[0-9]{2}"
_YEAR_IN_BYTES = re.compile(rf"\b{_YEAR}\b".encode())
_YEARS = rf"{_YEAR}(?: ?(?:[-–—]|to) ?(?:{_YEAR}|present))?(?![0-9]|[.,][0-9])"  # noqa: RUF001
_COUNTS = (
    r" ?(?:[€$£%+]|(?:eur|euros?|usd|gbp|chf|dollars?|seats?|places?|spots?|students?|people"
    r"|persons?|participants?|credits?|points?|hours?)\b)"
)
# "Fee 2000 (c)" has a footnote: before that mark a year has to begin its line, an owner to follow.
_COPYRIGHT = re.compile(
    rf"((?:©|\(c\)|\bcopyright\b)[ ©(c),]{{0,8}}+){_YEARS}(?!{_COUNTS})"
    rf"|()\b{_YEARS}(?= ?©)|()^{_YEARS}(?= ?\(c\) [^\W\d_])",
    re.MULTILINE,
)
_YEARS_LENGTH = 24  # bytes at the most of "2010 – 2025 " before a mark  # noqa: RUF003
_LISTED = re.compile(rb"\([ab]\)")
_TIMING = re.compile(
    r"(\b(?:generated|rendered|loaded|served|processed) in )[0-9.,]{1,12}"
    r"(?= ?(?:s|ms|sec|seconds|milliseconds)\b)"
)

# Bytes that the pattern of a date may look at: before its place (a word that makes it a term), and
# from there on.
_BEFORE, _LONGEST = 48, 400


def content_hash(text: str) -> str:
    """Return a hash that is equal for equal content, whatever the day and the case; sha256 hex."""
    return clean_content_hash(_in_one_spelling(text))


def clean_content_hash(text: bytes) -> str:
    """Return the hash of a text from `utf8_text`, whose blanks are normalised already."""
    return hashlib.sha256(_without_the_day(text)).hexdigest()


def _in_one_spelling(text: str) -> bytes:
    lines = text.lower().split("\n")
    text = "\n".join([" ".join(words) for line in lines if (words := line.split())])
    return text.encode("utf-8", "replace")


def _without_the_day(text: bytes) -> bytes:
    """Remove the date of the day, in bytes: much quicker than in characters."""
    whole = lowered = b"\n" + _lower(text)
    seen = _mentions(lowered)
    words = {word for _, word in seen}
    starts = [place + word.startswith(b"\n") for place, word in seen if word not in _NAMES_OWNER]
    lowered = _without(_dated(), lowered, starts, longest=_LONGEST)
    if not words.isdisjoint(_TIMED):
        lowered = _TIMING.sub(r"\1", lowered.decode()).encode()
    if not words.isdisjoint(_NAMES_OWNER):
        # In a shortened text their positions have changed.
        owners = _owners(lowered, seen if lowered is whole else _mentions(lowered))
        years = _years_before([place for place, word in owners if word in _COPYRIGHT_MARKS], lowered)
        lowered = _without(_COPYRIGHT, lowered, sorted([*years, *(place for place, _ in owners)]))
    return lowered[1:]


def _owners(text: bytes, seen: Iterable[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Return the mentions of an owner; after an (a) or (b), a (c) is the third of a list."""
    owners = [mention for mention in seen if mention[1] in _NAMES_OWNER]
    if all(word != b"(c)" for _, word in owners) or not (first := _LISTED.search(text)):
        return owners
    return [mention for mention in owners if mention[1] != b"(c)" or mention[0] < first.start()]


def _lower(text: bytes) -> bytes:
    """Return the text in lower case: most letters are ASCII, and most others have no case."""
    others = text.translate(None, _ASCII).decode()
    return text.lower() if others.lower() == others else text.decode().lower().encode()


def _without(pattern: re.Pattern[str], text: bytes, places: Iterable[int], *, longest: int = 100) -> bytes:
    """Remove what follows the group, wherever the pattern matches at a place."""
    parts: list[bytes] = []
    position = 0
    for place in places:
        if place < position:
            continue
        # What a window cuts in two, at its edges, is a character that no pattern looks at.
        before = text[max(place - _BEFORE, 0) : place].decode("utf-8", "ignore")
        window = before + text[place : place + longest].decode("utf-8", "ignore")
        if match := pattern.match(window, len(before)):
            parts.append(text[position : place + len(match[match.lastindex or 0].encode())])
            position = place + len(match[0].encode())
    return b"".join([*parts, text[position:]]) if parts else text


def _mentions(text: bytes) -> list[tuple[int, bytes]]:
    spans = [match.span() for match in re2_pattern(_day_patterns()["SPEAKS_OF_TIME"].encode()).finditer(text)]
    return [(start, text[start:end]) for start, end in spans]


def _years_before(marks: Sequence[int], text: bytes) -> list[int]:
    """Return the years that a mark may follow, each once however many marks are near."""
    return [
        year.start()
        for last, place in pairwise([0, *marks])
        if text[place - 2 : place].strip().isdigit()
        for year in _YEAR_IN_BYTES.finditer(text, max(place - _YEARS_LENGTH, last), place)
    ]


@cache
def _day_patterns() -> dict[str, str]:
    patterns: dict[str, str] = {}
    for name, parts in packaged_data("ingestion_pipeline.reading.text", "day_patterns.yaml").items():
        patterns[name] = re.sub("<([A-Z_]+)>", lambda reference: patterns[reference[1]], "".join(parts))
    return patterns


@cache
def _dated() -> re.Pattern[str]:
    """Compile on first use: it takes as long as importing the whole package."""
    return re.compile(_day_patterns()["DATED"], re.MULTILINE)


@cache
def re2_pattern(pattern: str | bytes) -> Any:  # noqa: ANN401 - re2 has no types
    """Compile on first use, with re2: it takes one pass, whatever the text."""
    re2: Any = import_module("re2")
    return re2.compile(pattern)


_BLOCK_LINES = 3  # a single line that returns may be the label of another value


def without_repeated_blocks(texts: Iterable[str]) -> list[str]:
    """Return the texts of a site's pages without the lines in a row that an earlier one has: menus and footers."""
    seen: set[str] = set()
    results: list[str] = []
    for text in texts:
        lines, new_lines = text.split("\n"), list[str]()
        for is_repeated, block in groupby(lines, seen.__contains__):
            same = list(block)
            new_lines += [] if is_repeated and len(same) >= _BLOCK_LINES else same
        seen.update(lines)
        results.append("\n".join(new_lines))
    return results


class QuickCheck:
    """A pattern in re2's syntax, in lower case, for a folded text."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern.encode()

    def sees(self, text: str) -> bool:
        """Return whether the pattern occurs in the text, in whatever case."""
        return re2_pattern(self._pattern).search(folded(text).encode("utf-8", "replace")) is not None


def folded(text: str) -> str:
    """Return the text in lower case, with equal letters as `re` defines them."""
    if text.isascii():
        return text.lower()
    return text.replace("\u0130", "i").replace("\u0131", "i").casefold()


def packaged_data(package: str, name: str) -> Any:  # noqa: ANN401 - what YAML can hold
    """Return the contents of a YAML file of the package."""
    import yaml  # poll runs need none

    file = resources.files(package) / name
    return yaml.load(file.read_text("utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - safe


class Phrases:
    """Phrases of several languages by name, as regular expressions: single ones, lists, and mappings.

    Line breaks inside one are dropped, and `{{name}}` stands for an earlier phrase.
    """

    def __init__(self, document: Mapping[str, object]) -> None:
        self._phrases: dict[str, object] = {}
        for name, value in document.items():
            self._phrases[name] = self._expanded(value)

    def __getitem__(self, name: str) -> str:
        """Return the single phrase of that name."""
        return cast("str", self._phrases[name])

    def each(self, name: str) -> Sequence[str]:
        """Return the list of that name."""
        return cast("Sequence[str]", self._phrases[name])

    def by_name(self, name: str) -> Mapping[str, str]:
        """Return the mapping of that name."""
        return cast("Mapping[str, str]", self._phrases[name])

    def _expanded(self, value: object) -> object:
        if isinstance(value, list):
            return [self._expanded(part) for part in cast("list[object]", value)]
        if isinstance(value, dict):
            return {name: self._expanded(part) for name, part in cast("dict[str, object]", value).items()}
        if not isinstance(value, str):
            raise TypeError(f"{value!r} is no phrase; quote it")
        return re.sub(r"\{\{(\w{1,40})\}\}", lambda reference: self[reference[1]], value.replace("\n", ""))


@cache
def phrases_of(package: str) -> Phrases:
    """Return the phrases of the package's file `phrases.yaml`."""
    return Phrases(packaged_data(package, "phrases.yaml"))
