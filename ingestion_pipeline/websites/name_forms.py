"""The names by which a business may be mentioned, each as a pattern over folded text.

Folding removes case, width, ligatures and the marks of Latin and Greek letters, since answers often
omit them; signs and blanks stay, since they separate words. Marks of other scripts stay, too: without
them が would be か.
"""

import re
import unicodedata
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
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
_HOST = re.compile(r"(?:[\w-]+\.)+[a-z]{2,}")  # Booking.com is a name and a host
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
        hosts = [host or "", *(spelling for spelling in map(folded_name, spellings) if _HOST.fullmatch(spelling))]
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
