"""Decode bodies: the declared encoding, and a guess for those that declare none and are not UTF-8."""

import codecs
import re
from html import unescape

_SAMPLE_BYTES = 200_000
_FEWEST = 12  # bytes beyond ASCII; fewer prove nothing
_LEAST_WORD_BYTES = 3  # on average; western text has 2: one letter, and the one after it
_GUESSED = (
    *("big5hkscs", "cp932", "cp949", "euc-jp", "gb18030", "koi8-r"),
    *(f"cp125{number}" for number in range(7)),
    "cp874",
)
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
    codec = chardet.detect(head, include_encodings=_GUESSED, compat_names=False, prefer_superset=True)["encoding"]
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

# Names that browsers know and Python does not, or knows as something else.
_LABELS = {
    label: codec
    for codec, labels in {
        "big5hkscs": "cn-big5 x-x-big5",
        "cp1250": "x-cp1250",
        "cp1251": "x-cp1251",
        "cp1252": "iso88591 x-cp1252",
        "cp1253": "x-cp1253",
        "cp1254": "iso88599 x-cp1254",
        "cp1255": "x-cp1255",
        "cp1256": "x-cp1256",
        "cp1257": "x-cp1257",
        "cp1258": "x-cp1258",
        "cp874": "dos-874 iso885911 tis-620 windows-874",
        "cp932": "windows-31j x-sjis",
        "cp949": "cseuckr csksc56011987 iso-ir-149 ks_c_5601-1989 ksc_5601 windows-949",
        "euc_jp": "cseucpkdfmtjapanese x-euc-jp",
        "gb18030": "chinese csgb2312 gb_2312 gb_2312-80 x-gbk",
        "iso8859-2": "iso88592",
        "iso8859-3": "iso88593",
        "iso8859-4": "iso88594",
        "iso8859-5": "iso88595",
        "iso8859-6": "csiso88596e csiso88596i iso-8859-6-e iso-8859-6-i iso88596",
        "iso8859-7": "iso88597 sun_eu_greek",
        "iso8859-8": "csiso88598e csiso88598i iso-8859-8-e iso-8859-8-i iso88598 logical visual",
        "iso8859-10": "iso885910",
        "iso8859-13": "iso885913",
        "iso8859-14": "iso885914",
        "iso8859-15": "csisolatin9 iso885915",
        "koi8-r": "koi koi8",
        "koi8-u": "koi8-ru",
        "mac-cyrillic": "x-mac-cyrillic x-mac-ukrainian",
        "mac-roman": "csmacintosh mac macintosh x-mac-roman",
        "utf-16-be": "unicodefffe",
        "utf-16-le": "csunicode iso-10646-ucs-2 ucs-2 unicode unicodefeff",
        "utf-8": "unicode-1-1-utf-8 unicode11utf8 unicode20utf8 x-unicode20utf8",
    }.items()
    for label in labels.split()
}

# What a label means to browsers where that is wider than what Python takes it to mean.
_WIDER = {
    "ascii": "cp1252",
    "big5": "big5hkscs",
    "euc_kr": "cp949",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "iso8859-11": "cp874",
    "johab": "cp949",
    "shift_jis": "cp932",
    "utf-16": "utf-16-le",
}

# Nothing else is decoded: Python also offers utf-7, rot13, zlib and worse under a label's name.
_SINGLE_BYTE = frozenset(
    {f"cp125{n}" for n in range(9)}
    | {f"iso8859-{n}" for n in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)}
    | {"cp866", "cp874", "koi8-r", "koi8-u", "mac-cyrillic", "mac-roman"}
)
_MULTI_BYTE = frozenset({"big5hkscs", "cp932", "cp949", "euc_jp", "gb18030", "iso2022_jp", "utf-16-be", "utf-16-le"})

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
    chance = 3 if declared in _MULTI_BYTE else 0
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
        name = codecs.lookup(_LABELS.get(label, label)).name
    except LookupError:
        return None
    name = _WIDER.get(name, name)
    return name if name == "utf-8" or name in _SINGLE_BYTE or name in _MULTI_BYTE else None


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
