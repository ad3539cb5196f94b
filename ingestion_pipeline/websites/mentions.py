"""Search for the mentions of a business in an answer: exact matches, else similar words.

The rules, in the order in which they are applied:

1. The business' own host is a mention wherever it is, also in a link or a mail address; its name
   as part of another host or address is none.
2. A name must stand alone: it is no part of a longer word (see `is_word_boundary` for scripts
   without blanks between words), and not of a longer name of another business (`others`).
3. Case, width, marks, ligatures, hyphens and blanks inside the name do not matter. Exceptions:
   a name of up to three letters is matched only as written or in capitals, a camel-case name that
   is written apart (`You Tube`) only with a capital, a plain word by the rules of `is_meant`.
4. Possessives and the suffixes that Slavic and Finnic languages add to a name belong to it.
5. A mention right after words such as "not familiar with" or "avoid", or right before "is unknown to me", is denied.
6. If nothing is found: a word of the same first letter, written with a capital, that differs by
   one typing error (two from ten letters on), and is as similar to the name as the threshold.
   Plain words and names of fewer than six letters are never matched so, nor is a plural or the
   name of another business.

Names are patterns over folded text. Folding removes case, width, ligatures and the marks of Latin and
Greek letters, since answers often omit them; signs and blanks stay, since they separate words. Marks of
other scripts stay, too: without them が would be か.
"""

import re
import unicodedata
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from itertools import pairwise
from typing import Any

import yaml

from ingestion_pipeline.reading.structured.organizations import bare_name
from ingestion_pipeline.urls import BadUrl, domain_label, host_of

# ruff: noqa: RUF001 - the letters of other scripts are meant


_FILE = resources.files("ingestion_pipeline.websites") / "name_forms.yaml"
FORMS: Mapping[str, Any] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
_PLAIN: dict[str, str] = {**FORMS["plain_letters"], **dict.fromkeys("’‘ʼ`´", "'"), **dict.fromkeys("‐‑‒–—−", "-")}
_UMLAUTS = {"ä": "ae", "ö": "oe", "ü": "ue"}


@dataclass(frozen=True, slots=True)
class Folded:
    """Folded text with the original offset of each character."""

    text: str
    offsets: "array[int]"  # not subscriptable at run time before Python 3.12
    source: str

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return the original span of the folded characters from `start` to `end`."""
        return self.offsets[start], self.offsets[end - 1] + 1

    def written(self, start: int, end: int) -> str:
        """Return those characters as they were written."""
        return self.source[slice(*self.span(start, end))]


def fold(text: str) -> Folded:
    """Fold a text."""
    if text.isascii():
        return Folded(text.lower().replace("`", "'"), array("I", range(len(text))), text)
    parts: list[str] = []
    offsets: array[int] = array("I")
    for offset, character in enumerate(text):
        folded = folded_character(character)
        parts.append(folded)
        offsets.extend([offset] * len(folded))
    return Folded("".join(parts), offsets, text)


def folded_name(name: str) -> str:
    """Fold a name."""
    return "".join(map(folded_character, name))


def spelt_out(name: str) -> str:
    """Return the name as German writes it without umlauts: Mueller for Müller."""
    composed = unicodedata.normalize("NFC", name)
    return "".join(_UMLAUTS.get(character.lower(), character) for character in composed)


@lru_cache(maxsize=10_000)
def folded_character(character: str) -> str:
    """Return the folded form of a character; empty for an invisible one."""
    if character.isascii() and character != "`":
        return character.lower()
    if (plain := _PLAIN.get(character.lower())) is not None:
        return plain
    if character.isspace():
        return " "
    if _is_ignored(character):
        return ""
    return "".join(map(_plain_letter, unicodedata.normalize("NFKC", character).casefold()))


def _is_ignored(character: str) -> bool:
    """Return whether it is invisible, a mark of the letter before it, or a footnote number."""
    return (
        unicodedata.category(character) in {"Cf", "Cs"}
        or "\ufe00" <= character <= "\ufe0f"
        or "\u0300" <= character <= "\u036f"
        or unicodedata.decomposition(character).startswith("<super>")
    )


def _plain_letter(letter: str) -> str:
    parts = unicodedata.normalize("NFD", letter)
    name = unicodedata.name(parts[:1] or " ", "")
    is_marked = len(parts) > 1 and name.startswith(("LATIN", "GREEK"))
    return parts[0] if is_marked else _PLAIN.get(letter, letter)


OPEN_SCRIPTS = frozenset({"han", "hiragana", "thai", "lao", "khmer", "myanmar"})
_MIDDLE_DOTS = "\u30fb\u30a0"  # in the katakana block, but between words
_LEAST_STEM = 3


@lru_cache(maxsize=10_000)
def script_of(character: str) -> str:
    """Return the script of a letter; digits have their own, other characters none."""
    code = ord(character)
    if character.isascii():
        return "latin" if character.isalpha() else "digit" if character.isdigit() else ""
    if character in _MIDDLE_DOTS:
        return ""
    for name, first, last in FORMS["script_blocks"]:
        if first <= code <= last:
            return name if unicodedata.category(character)[0] in "LMN" else ""
    category = unicodedata.category(character)[0]
    if category in "LM":
        return "latin" if unicodedata.name(character, "").startswith("LATIN") else "other"
    return "digit" if category == "N" else ""


def is_word_boundary(before: str, after: str) -> bool:
    """Return whether a word may end between the two characters; either may be missing."""
    left, right = (script_of(character) if character else "" for character in (before, after))
    if not left or not right:
        return True
    if unicodedata.category(after)[0] == "M":
        return False
    if OPEN_SCRIPTS & {left, right}:
        return True
    if "digit" in {left, right}:
        return False
    return left != right


@lru_cache(maxsize=1_000)
def inflected(word: str, language: str | None) -> tuple[str, ...]:
    """Return the folded word with the suffixes that its script or the text's language adds."""
    script = script_of(word[-1:] or " ")
    primary = (language or "").partition("-")[0].lower()
    group = "cyrillic" if script == "cyrillic" else primary if script == "latin" else ""
    forms = [*_regular(word, group), *_changed(word, group)] if group else []
    return tuple(dict.fromkeys(folded for form in forms if (folded := folded_name(form)) != word))


def glued(word: str) -> tuple[str, str]:
    """Return patterns of what may be attached to the word, before and after it."""
    script = script_of(word[-1:] or " ")
    if script == "hangul":
        return "", "(?:" + "|".join(FORMS["korean_particles"].split()) + ")?"
    if script == "arabic" and len(word) >= _LEAST_STEM:
        return "(?:[وف]?[بلك]?(?:ال)?)", ""
    if script == "hebrew" and len(word) >= _LEAST_STEM:
        return "[והבלמשכ]{0,2}", ""
    return "", ""


def _regular(word: str, group: str) -> list[str]:
    if len(word) <= _LEAST_STEM:
        return []
    is_vowel = word[-1] in "aeiouyаеиоуыэюя"
    table = FORMS["suffixes_after_vowel" if is_vowel else "suffixes_after_consonant"]
    return [] if word[-1] in "ьй" else [word + suffix for suffix in table.get(group, "").split()]


def _changed(word: str, group: str) -> list[str]:
    for end, others in FORMS["replaced_endings"].get(group, {}).items():
        if word.endswith(end) and len(word) - len(end) >= _LEAST_STEM - 1:
            stem = word.removesuffix(end)
            return [stem + other for other in others.split()]
    return []


_LEAST_SOUNDS = 3
_KATAKANA = re.compile("([\u30a1-\u30fa\u30fc-\u30ff]+)")  # foreign names in Japanese
_SAME_SOUNDS = [
    (re.compile(pattern), sound)
    for pattern, sound in (
        (r"sch|[sczk]h|[cs]z|ts|c(?=[eiy])|z", "s"),
        (r"ph", "f"),
        (r"x", "ks"),
        (r"ck|[cq]", "k"),
        (r"[vw]", "b"),
        (r"l", "r"),
        (r"(.)\1+", r"\1"),
        (r"(?<=.)[aeiouyjh]", ""),
    )
]


@lru_cache(maxsize=10_000)
def consonants(word: str) -> str:
    """Return the first sound and the consonants of a word in Latin letters, alike for what languages confuse."""
    latin = "".join(map(_latin, folded_name(word)))
    for pattern, sound in _SAME_SOUNDS:
        latin = pattern.sub(sound, latin)
    return latin


def _latin(character: str) -> str:
    """Return the sound of a character; kana and Hangul have it at the end of their Unicode names."""
    if character == "ー" or character in "ッっ":
        return ""
    if script_of(character) in {"hiragana", "katakana", "hangul"}:
        return unicodedata.name(character, "").rpartition(" ")[2].lower().replace("hu", "fu")
    return str(FORMS["sounds"].get(character, character))


def is_transliterated(text: str, names: "Names") -> bool:
    """Return whether up to three words of the text sound like a name that is written in another script."""
    words = [word for token in _TOKEN.findall(text) for word in _KATAKANA.split(token) if word]
    windows = {"".join(words[start:end]) for start in range(len(words)) for end in range(start + 1, start + 4)}
    sounds = {
        (script_of(form.folded[0]), sound)
        for form in names.forms(None)
        if len(sound := consonants("".join(_TOKEN.findall(form.written)))) >= _LEAST_SOUNDS
    }
    return any(
        sound == consonants(window) and script_of(window[0]) not in {script, "digit"}
        for window in windows
        for script, sound in sounds
    )


COMMON_WORDS = frozenset(folded_name(word) for words in FORMS["common_words"].values() for word in words.split())
AFTER_A_NAME = frozenset(FORMS["after_a_name"].split())
DETERMINERS = frozenset(FORMS["determiners"].split())
KIND_AFTER_A_NAME = frozenset(FORMS["kind_after_a_name"].split())
NOT_A_NAME_BEFORE = frozenset(FORMS["not_a_name_before"].split())
# Languages that capitalise every noun, where a capital proves nothing.
CAPITAL_NOUNS = frozenset({"de", "lb"})
SHORT = 3  # letters of a Latin name that is matched only as written: SAP, not sap
MAX_ALIASES = 30
# Letters, digits, and the marks that belong to letters of the scripts that need them.
_TOKEN = re.compile(
    "(?:[^\\W_]|[\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0963\u0966-\u0e3a"
    "\u0e40-\u0e4e\u0e80-\u0ecd\u1000-\u1049\u1780-\u17d3\u3099\u309a])+"
)
_HOST_NAME = re.compile(r"(?:[\w-]+\.)+[a-z]{2,}")  # Booking.com is a name and a host
_HUMP = re.compile(r"(?<=[a-zà-ÿ])(?=[A-ZÀ-Þ])")
# Equivalents of `&` in answers of other languages.
_AND = r"\s?(?:&|\+|and|und|et|y|e|i|en|og|och|ja|и)\s?"
_TWO_LETTERS = 2
_AGREEING = frozenset({"pl", "cs"})  # languages whose adjectives have the case of their noun


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One name: how it is written, the pattern that finds it, and how it must be checked."""

    written: str
    folded: str
    pattern: re.Pattern[str]
    is_common: bool
    is_short: bool
    letters: str
    words: int  # with blanks between them


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """A business' name, its other names, and its own hosts."""

    name: str
    aliases: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    _forms: dict[str | None, tuple[Form, ...]] = field(
        default_factory=dict[str | None, tuple[Form, ...]], repr=False, compare=False
    )

    @classmethod
    def of(cls, name: str, *, aliases: Iterable[str] = (), url: str | None = None) -> "Names":
        """Return all names of a business: given, without legal form, spelt out, of its domain."""
        host = own_host(url)
        spellings = [name, bare_name(name), *aliases, *(bare_name(spelling) for spelling in aliases)]
        spellings += [spelt_out(spelling) for spelling in spellings]
        label = domain_label(host) if host else ""
        if label and folded_name(label) not in COMMON_WORDS and len(label) > _TWO_LETTERS:
            spellings.append(label)
        unique: dict[str, str] = {}
        for spelling in spellings:
            if (key := "".join(folded_name(spelling).split())) and _TOKEN.search(key):
                unique.setdefault(key, spelling.strip())
        hosts = [host or "", *(spelling for spelling in map(folded_name, spellings) if _HOST_NAME.fullmatch(spelling))]
        return cls(
            name=name, aliases=tuple(unique.values())[:MAX_ALIASES], hosts=tuple(dict.fromkeys(filter(None, hosts)))
        )

    def forms(self, language: str | None) -> tuple[Form, ...]:
        """Return every name as a pattern for a text of that language, longest first."""
        if language not in self._forms:
            forms = filter(None, (_form(name, language) for name in dict.fromkeys((self.name, *self.aliases))))
            self._forms[language] = tuple(sorted(forms, key=lambda form: -len(form.folded)))
        return self._forms[language]


def own_host(url: str | None) -> str | None:
    """Return the host of a website without port and `www`; None without a valid URL."""
    if not url:
        return None
    try:
        host = host_of(url if "://" in url else f"https://{url}")
    except BadUrl:
        return None
    return host.partition(":")[0].removeprefix("www.")


@lru_cache(maxsize=2_000)
def _form(name: str, language: str | None) -> Form | None:
    folded = folded_name(name).strip()
    tokens = _tokens(name)
    if not folded or not tokens:
        return None
    letters = "".join(folded_name(token) for token, _ in tokens)
    is_latin = all(script_of(letter) in {"latin", "digit"} for letter in letters)
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
    """Return the words of a name, each with what precedes it; camel case is split."""
    tokens: list[tuple[str, str]] = []
    position = 0
    for match in _TOKEN.finditer(name):
        if not folded_name(match[0]):
            continue
        gap = name[position : match.start()] if tokens else ""
        humps = _HUMP.split(match[0]) if len(match[0]) > SHORT else [match[0]]
        tokens.append((humps[0], gap))
        tokens += [(part, "^") for part in humps[1:]]
        position = match.end()
    return tokens


def _pattern(tokens: Sequence[tuple[str, str]], folded: str, language: str | None) -> str:
    *first, last = (folded_name(token) for token, _ in tokens)
    words = [_inflected_pattern(word, language) if _agrees(word, language) else re.escape(word) for word in first]
    words.append(_inflected_pattern(last, language))
    is_tiny = sum(len(token) for token, _ in tokens) <= SHORT
    gaps = ["", *(_gap(gap, is_tiny=is_tiny) for _, gap in tokens[1:])]
    name = "".join(gap + word for gap, word in zip(gaps, words, strict=True))
    before, after = glued(last)
    plus = r"(?:\s?\+|\splus\b)" if folded.endswith("+") else ""
    return f"{before}({name}){plus}{after}"


def _inflected_pattern(word: str, language: str | None) -> str:
    forms = sorted(inflected(word, language), key=len, reverse=True)
    return f"(?:{'|'.join(map(re.escape, (*forms, word)))})"


def _agrees(word: str, language: str | None) -> bool:
    """Return whether every word of a name is inflected: Красного Октября."""
    return script_of(word[-1:] or " ") == "cyrillic" or (language or "").partition("-")[0].lower() in _AGREEING


def _gap(gap: str, *, is_tiny: bool) -> str:
    """Return the pattern of what may be between two words, by what is there in the name."""
    if "&" in gap or "+" in gap:
        return _AND
    if gap.strip() == "." or "'" in folded_name(gap):
        return r"[.']?"
    # In names of single letters a blank would match any two words: `e on` is not E.ON.
    marked = r"[*_]{1,3}\s[*_]{0,3}|\s[*_]{1,3}"  # `**Bluefin** Roasters`
    return r"[-./]?" if is_tiny else rf"(?:{marked}|\s-\s|[®™]\s|[-\s_/'·•®™])?"


# ruff: noqa: RUF001 - the letters of other scripts are meant


_LIST_MARK = re.compile(r"\s*(?:#{1,6}\s+)?(?:[-*+•‣–]\s+|\d{1,3}[.)]\s+|\(\d{1,3}\)\s+)?(?<=\s)[*_]{0,2}")
_MARK = r"\"'“”‘’«»()\[\]*_>#"  # what may be between two sentences, besides blanks
_SENTENCE_END = re.compile(rf"(?:^|[.!?:;…。！？]|(?<![{_MARK}\s])(?:[{_MARK}]|[^\S\n])*+\n)[{_MARK}\s]*+$")
_WORD_BEFORE = re.compile(r"(?<![^\W\d_])([^\W\d_]++)[\s*_]++$")
_NEXT_WORD = re.compile(r"[\s*_]*([^\W\d_]+)")
_SIGNS_OF_A_NAME = re.compile(r"[*_]*(?:['’](?:s\b|\s)|\s?[®™]|\s?\((?:www|https?|[A-Z]{2,}))")
_ANOTHER_NAME = re.compile(r"(?:,|,?\s+(?:and|or|vs\.?|versus|et|y|e|o|ou|&))\s+\(?[A-Z]")
_NOTHING_MORE = re.compile(r"[*_\"”’»]*\s*(?:[.!?;)](?:\s|$)|[–—]|-\s|$)")
_ALONE = re.compile(r"[*_]{0,2}\s*(?:$|\n|\(|[–—:：]|-\s|,)")
_CONTEXT_WORD = re.compile(r"[^\W\d_]{2,}")
_SMALL_WORDS = frozenset(FORMS["small_words"].split())
_LEAST_HEADING = 3  # words
_LONGEST_MARK = 40  # characters
_LONGEST_HEADING = 300  # characters on either side


def has_capitals(written: str) -> bool:
    """Return whether every word begins with a capital; scripts without capitals always do."""
    words = _CONTEXT_WORD.findall(written) or [written]
    return all(not word[0].islower() for word in words)


def is_meant(text: str, start: int, end: int, language: str | None) -> bool:
    """Return whether the plain word from `start` to `end` is used as a name there."""
    if not has_capitals(text[start:end]):
        return False
    following = _NEXT_WORD.match(text, end)
    after = following[1] if following else ""
    if {after, after.lower()} & NOT_A_NAME_BEFORE:
        return False
    has_capital_nouns = (language or "").partition("-")[0].lower() in CAPITAL_NOUNS
    is_entry = _is_entry(text, start)
    if not has_capital_nouns or text[start:end].isupper():
        is_first = _SENTENCE_END.search(text, max(0, start - 200), start) is not None
        before = _WORD_BEFORE.search(text, max(0, start - _LONGEST_MARK), start)
        is_determined = before is not None and before[1].lower() in DETERMINERS
        if not is_first and not is_entry and not is_determined and not _is_heading(text, start, end):
            return True  # its capital is due neither to its place nor to the language
    is_marked = text[max(0, start - 2) : start] in {"**", "__"} and text[end : end + 2] in {"**", "__"}
    if is_marked or (is_entry and _ALONE.match(text, end)):
        return True
    if _SIGNS_OF_A_NAME.match(text, end) or after in AFTER_A_NAME or after.lower() in KIND_AFTER_A_NAME:
        return True
    # another name, a dash or nothing follows: `Slack, Zoom and Teams`
    return not has_capital_nouns and bool(_ANOTHER_NAME.match(text, end) or _NOTHING_MORE.match(text, end))


def _is_heading(text: str, start: int, end: int) -> bool:
    """Return whether all other words of its line have capitals, too."""
    before = text[max(0, start - _LONGEST_HEADING) : start].rpartition("\n")[2]
    after = text[end : end + _LONGEST_HEADING].partition("\n")[0]
    line = f"{before} {after}"
    others = [word for word in _CONTEXT_WORD.findall(line) if word.lower() not in _SMALL_WORDS]
    return len(others) >= _LEAST_HEADING - 1 and all(word[0].isupper() for word in others)


def _is_entry(text: str, start: int) -> bool:
    """Return whether it is the first word of a list entry."""
    line_start = text.rfind("\n", max(0, start - _LONGEST_MARK), start) + 1
    is_near = line_start > 0 or start <= _LONGEST_MARK
    return is_near and _LIST_MARK.fullmatch(text, line_start, start) is not None


RANK_LIMITS = (50, 150, 300, 500)  # characters before the first mention
LEAST_FUZZY_LETTERS = 6
TWO_SLIPS_FROM = 10  # letters
DEFAULT_THRESHOLD = 88.0
MAX_TEXT = 30_000  # characters; a thousand tokens are some five thousand
_LONGEST = 400  # characters of a name or a host with what may be inside it
_HOST = re.compile(
    r"(?<![\w.-])(?:(?<!\+)[\w.+-]++@)?+((?:[\w-]++\.)+(?:"
    + "|".join(FORMS["top_level_domains"].split())
    + r"))(?![\w-])"
)
_WORD = re.compile(r"[^\W_]+")
_DENIAL = 120  # characters of a denial with the words after it
_DENIED = re.compile(
    rf"(?:{'|'.join(FORMS['denials'])})(?:\s+[*_\"“„«]*(?:{'|'.join(FORMS['after_a_denial'].split())})\b){{0,5}}"
    r"[\s*_\"“”„«'\[(]+$"
)
_DENIED_AFTER = re.compile(rf"[*_\"”“»'\])]*(?:{'|'.join(FORMS['denials_after'])})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mention:
    """One mention: where it is in the answer, and whether it was found word for word."""

    start: int
    end: int
    text: str
    is_exact: bool
    is_denied: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Mentions:
    """All mentions in one answer, in order."""

    places: tuple[Mention, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.places)

    @property
    def count(self) -> int:
        """Return the number of mentions."""
        return len(self.places)

    @property
    def affirmed(self) -> "Mentions":
        """Return those that do not say that the business is unknown or to be avoided."""
        return Mentions(places=tuple(place for place in self.places if not place.is_denied))

    @property
    def rank(self) -> int | None:
        """Return 1 to 5, by how early it is mentioned; None where it is not."""
        return rank_at(self.places[0].start) if self.places else None

    @property
    def is_exact(self) -> bool:
        """Return whether the name itself was found, and not only something similar."""
        return any(place.is_exact for place in self.places)


def rank_at(position: int) -> int:
    """Return 1 within the first 50 characters, 2 within 150, 3 within 300, 4 within 500, else 5."""
    return next((rank for rank, limit in enumerate(RANK_LIMITS, 1) if position < limit), len(RANK_LIMITS) + 1)


def find_mentions(
    answer: str,
    names: Names,
    *,
    language: str | None = None,
    others: Sequence[Names] = (),
    threshold: float = DEFAULT_THRESHOLD,
) -> Mentions:
    """Return every mention of the business in the answer; see the module for the rules."""
    return mentions_of_all(answer, (names, *others), language=language, threshold=threshold)[0]


def mentions_of_all(
    answer: str, everybody: Sequence[Names], *, language: str | None = None, threshold: float = DEFAULT_THRESHOLD
) -> list[Mentions]:
    """Return the mentions of several businesses, each with all others as its `others`."""
    text = _Answer(answer[:MAX_TEXT], language)
    exact = [text.exact(names) for names in everybody]
    results: list[Mentions] = []
    for number, names in enumerate(everybody):
        rivals = (*exact[:number], *exact[number + 1 :])
        taken = sorted(span for other in rivals for span in other)
        spans = [candidate for candidate in exact[number] if not _is_inside_longer(candidate, taken)]
        is_exact = bool(spans)
        if not spans:
            spans = [candidate for candidate in text.alike(names, threshold) if not any(_around(candidate, taken))]
        results.append(Mentions(places=tuple(text.mention(span, is_exact=is_exact) for span in spans)))
    return results


_Span = tuple[int, int]


class _Answer:
    """An answer prepared for the search of several names; spans are of the folded text."""

    def __init__(self, answer: str, language: str | None) -> None:
        self._folded: Folded = fold(answer)
        self._language = language
        self._hosts = [(match.span(), match[1]) for match in _HOST.finditer(self._folded.text)]
        self._host_spans = [span for span, _ in self._hosts]
        self._words: list[_Span] | None = None

    def mention(self, span: _Span, *, is_exact: bool) -> Mention:
        start, end = self._folded.span(*span)
        text = self._folded.text
        is_denied = _DENIED.search(text, max(0, span[0] - _DENIAL), span[0]) and text[span[1] : span[1] + 2] != "'s"
        is_denied = is_denied or _DENIED_AFTER.match(text, span[1])
        return Mention(
            start=start, end=end, text=self._folded.source[start:end], is_exact=is_exact, is_denied=bool(is_denied)
        )

    def exact(self, names: Names) -> list[_Span]:
        """Return the spans of the names, in order; of overlapping ones the longer."""
        spans = [span for span, host in self._hosts if any(f".{host}".endswith(f".{own}") for own in names.hosts)]
        for form in names.forms(self._language):
            spans += self._places(form)
        return _non_overlapping(spans)

    def alike(self, names: Names, threshold: float) -> list[_Span]:
        """Return the spans of words that differ from a name by a slip."""
        spans = [
            span
            for form in names.forms(self._language)
            for span in self._similar(form, threshold)
            if not self._is_in_host(span)
        ]
        return _non_overlapping(spans)

    def _places(self, form: Form) -> Iterator[_Span]:
        text = self._folded.text
        sure: list[_Span] = []
        unsure: list[_Span] = []
        for match in form.pattern.finditer(text):
            if not self._stands_alone(*match.span()) or self._is_in_host(match.span(1)):
                continue
            if self._is_written_as(form, match.span(1)):
                sure.append(match.span(1))
            elif form.is_common and has_capitals(self._folded.written(*match.span(1))):
                unsure.append(match.span(1))
        if sure:  # one certain mention confirms those at the beginning of a sentence
            yield from (*sure, *unsure)

    def _stands_alone(self, start: int, end: int) -> bool:
        text = self._folded.text
        before, after = text[start - 1 : start], text[end : end + 1]
        if before == "_" and text[start - 2 : start - 1].isalnum():
            return False
        if after == "_" and text[end + 1 : end + 2].isalnum():
            return False
        return is_word_boundary(before, text[start]) and is_word_boundary(text[end - 1], after)

    def _is_in_host(self, span: _Span) -> bool:
        return any(begin <= span[0] and span[1] <= end for begin, end in _around(span, self._host_spans))

    def _is_written_as(self, form: Form, span: _Span) -> bool:
        written = self._folded.written(*span)
        if form.is_short:
            return written == form.written or written.isupper()
        if form.is_common:
            return is_meant(self._folded.source, *self._folded.span(*span), self._language)
        is_apart = " " in written and " " not in form.written
        return not is_apart or has_capitals(written[:1])

    def _similar(self, form: Form, threshold: float) -> Iterator[_Span]:
        from rapidfuzz import fuzz
        from rapidfuzz.distance import OSA

        letters = form.letters
        is_open = any(script_of(letter) in OPEN_SCRIPTS | {"katakana", "hangul"} for letter in letters)
        if form.is_common or len(letters) < LEAST_FUZZY_LETTERS or is_open:
            return
        slips = 2 if len(letters) >= TWO_SLIPS_FROM else 1
        for span, candidate in self._windows(form.words):
            is_like = (
                candidate[:1] == letters[:1]
                and candidate not in COMMON_WORDS
                and candidate.rstrip("s") != letters
                and _digits(candidate) == _digits(letters)
                and OSA.distance(candidate, letters, score_cutoff=slips) <= slips
                # transposed letters count as equal
                and (sorted(candidate) == sorted(letters) or fuzz.ratio(candidate, letters) >= threshold)
            )
            if is_like and has_capitals(self._folded.written(*span)[:1]):
                yield span

    def _windows(self, words: int) -> Iterator[tuple[_Span, str]]:
        if self._words is None:
            self._words = [match.span() for match in _WORD.finditer(self._folded.text)]
        for first in range(len(self._words) - words + 1):
            window = self._words[first : first + words]
            if all(right[0] - left[1] == 1 for left, right in pairwise(window)):
                yield (window[0][0], window[-1][1]), "".join(self._folded.text[slice(*span)] for span in window)


def _digits(text: str) -> str:
    return "".join(character for character in text if character.isdigit())


def _non_overlapping(spans: Sequence[_Span]) -> list[_Span]:
    """Return the spans in order; of two that overlap, the longer."""
    chosen: list[_Span] = []
    for span in sorted(set(spans), key=lambda candidate: (candidate[0], -candidate[1])):
        if not chosen or chosen[-1][1] <= span[0]:
            chosen.append(span)
        elif span[1] - span[0] > chosen[-1][1] - chosen[-1][0]:
            chosen[-1] = span
    return chosen


def _around(span: _Span, ordered: Sequence[_Span]) -> Iterator[_Span]:
    """Return those of the ordered spans that overlap the span."""
    first = bisect_left(ordered, (span[0] - _LONGEST, 0))
    last = bisect_left(ordered, (span[1], 0))
    return (other for other in ordered[first:last] if other[1] > span[0])


def _is_inside_longer(span: _Span, ordered: Sequence[_Span]) -> bool:
    return any(
        start <= span[0] and span[1] <= end and end - start > span[1] - span[0] for start, end in _around(span, ordered)
    )
