"""The names by which a business may be mentioned, each as a pattern over folded text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from ingestion_pipeline.reading.business_names import bare_name
from ingestion_pipeline.urls import BadUrl, host_of
from ingestion_pipeline.websites.naming.common_words import COMMON_WORDS
from ingestion_pipeline.websites.naming.folding import folded_name, spelt_out
from ingestion_pipeline.websites.naming.scripts import glued, inflected, script_of

SHORT = 3  # letters of a Latin name that is taken only as it is written: SAP, not sap
MAX_ALIASES = 30
# Letters, digits, and the marks that belong to letters of the scripts that need them.
_TOKEN = re.compile(
    "(?:[^\\W_]|[\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0963\u0966-\u0e3a"
    "\u0e40-\u0e4e\u0e80-\u0ecd\u1000-\u1049\u1780-\u17d3\u3099\u309a])+"
)
_HOST = re.compile(r"(?:[\w-]+\.)+[a-z]{2,}")  # Booking.com is a name and a host
_HUMP = re.compile(r"(?<=[a-zà-ÿ])(?=[A-ZÀ-Þ])")
# What stands for `&` in answers of other languages.
_AND = r"\s?(?:&|\+|and|und|et|y|e|i|en|og|och|ja|и)\s?"
# Second-level names under which countries register businesses.
_REGISTRY = frozenset({"co", "com", "net", "org", "ac", "gov", "edu", "or", "ne", "go", "ltd"})
_TWO_LETTERS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One name: how it is written, the pattern that finds it, and what it must be judged by."""

    written: str
    folded: str
    pattern: re.Pattern[str]
    is_common: bool
    is_short: bool
    letters: str
    words: int  # with blanks between them


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """A business' name, its other names, and the hosts that are its own."""

    name: str
    aliases: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    _forms: dict[str | None, tuple[Form, ...]] = field(
        default_factory=dict[str | None, tuple[Form, ...]], repr=False, compare=False
    )

    @classmethod
    def of(cls, name: str, *, aliases: Iterable[str] = (), url: str | None = None) -> Names:
        """All names of a business: given, without legal form, spelt out, and of its domain."""
        host = own_host(url)
        given = [name, bare_name(name), *aliases, *(bare_name(one) for one in aliases)]
        given += [spelt_out(one) for one in given]
        label = domain_label(host) if host else ""
        if label and folded_name(label) not in COMMON_WORDS and len(label) > _TWO_LETTERS:
            given.append(label)
        unique: dict[str, str] = {}
        for one in given:
            if (key := "".join(folded_name(one).split())) and _TOKEN.search(key):
                unique.setdefault(key, one.strip())
        hosts = [host or "", *(one for one in map(folded_name, given) if _HOST.fullmatch(one))]
        return cls(
            name=name,
            aliases=tuple(unique.values())[:MAX_ALIASES],
            hosts=tuple(dict.fromkeys(filter(None, hosts))),
        )

    def forms(self, language: str | None) -> tuple[Form, ...]:
        """Every name as a pattern for a text of that language, the longest first."""
        if language not in self._forms:
            made = (_form(one, language) for one in dict.fromkeys((self.name, *self.aliases)))
            found = [form for form in made if form is not None]
            self._forms[language] = tuple(sorted(found, key=lambda one: -len(one.folded)))
        return self._forms[language]


def own_host(url: str | None) -> str | None:
    """The host of a website without port and `www`; None where there is no URL."""
    if not url:
        return None
    try:
        host = host_of(url if "://" in url else f"https://{url}")
    except BadUrl:
        return None
    return host.partition(":")[0].removeprefix("www.")


def domain_label(host: str) -> str:
    """The part of a host that names its owner: `acme` of `shop.acme.co.uk`."""
    labels = host.removeprefix("www.").split(".")
    if len(labels) == 1 or all(label.isdigit() for label in labels):
        return ""
    is_registry = len(labels) > _TWO_LETTERS and labels[-2] in _REGISTRY
    label = labels[-3] if is_registry else labels[-2]
    if label.startswith("xn--"):
        label = label.encode().decode("idna")
    return label


@lru_cache(maxsize=2_000)
def _form(name: str, language: str | None) -> Form | None:
    folded = folded_name(name).strip()
    tokens = _tokens(name)
    if not folded or not tokens:
        return None
    letters = "".join(folded_name(token) for token, _ in tokens)
    is_latin = all(script_of(one) in {"latin", "digit"} for one in letters)
    return Form(
        written=name.strip(),
        folded=folded,
        pattern=re.compile(_pattern(tokens, folded, language)),
        is_common=all(folded_name(word) in COMMON_WORDS for word in _TOKEN.findall(name)),
        is_short=is_latin and len(letters) <= SHORT,
        letters=letters,
        words=sum(gap != "^" for _, gap in tokens),
    )


def _tokens(name: str) -> Sequence[tuple[str, str]]:
    """The words of a name, each with what stands before it; a hump begins a word of its own."""
    found: list[tuple[str, str]] = []
    position = 0
    for match in _TOKEN.finditer(name):
        if not folded_name(match[0]):
            continue
        gap = name[position : match.start()] if found else ""
        humps = _HUMP.split(match[0]) if len(match[0]) > SHORT else [match[0]]
        found.append((humps[0], gap))
        found += [(part, "^") for part in humps[1:]]
        position = match.end()
    return found


def _pattern(tokens: Sequence[tuple[str, str]], folded: str, language: str | None) -> str:
    pieces: list[str] = []
    for number, (token, gap) in enumerate(tokens):
        is_last = number == len(tokens) - 1
        word = folded_name(token)
        if number:
            pieces.append(_gap(gap, _is_tiny(tokens)))
        pieces.append(_ended(word, language) if is_last else re.escape(word))
    before, after = glued(folded_name(tokens[-1][0]))
    plus = r"(?:\s?\+|\splus\b)" if folded.endswith("+") else ""
    return f"{before}({''.join(pieces)}){plus}{after}"


def _ended(word: str, language: str | None) -> str:
    ends = sorted(inflected(word, language), key=len, reverse=True)
    return f"(?:{'|'.join(map(re.escape, (*ends, word)))})" if ends else re.escape(word)


def _gap(gap: str, is_tiny: bool) -> str:  # noqa: FBT001 - of one pattern, by its maker alone
    """What may stand between two words of a name, by what stands there in the name."""
    if "&" in gap or "+" in gap:
        return _AND
    if gap.strip() == "." or "'" in folded_name(gap):
        return r"[.']?"
    # Of names in single letters a blank would find any two words: `e on` is not E.ON.
    return r"[-./]?" if is_tiny else r"(?:\s-\s|[®™]\s|[-\s_/'·•®™])?"


def _is_tiny(tokens: Sequence[tuple[str, str]]) -> bool:
    return sum(len(token) for token, _ in tokens) <= SHORT
