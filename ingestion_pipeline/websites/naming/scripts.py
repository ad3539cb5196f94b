"""Where a name begins and ends in the scripts of the world, and the endings it may take.

A letter of another script is a boundary (`Acmeは`). In Han, Thai and the like every place is one;
a word in katakana ends where katakana ends; Korean and the Semitic scripts join small words to a
name; the Slavic and Finnic languages change its end.
"""

# ruff: noqa: RUF001 - the letters of other scripts are meant

from __future__ import annotations

import unicodedata
from functools import lru_cache

from ingestion_pipeline.websites.naming.folding import folded_name

OPEN_SCRIPTS = frozenset({"han", "hiragana", "thai", "lao", "khmer", "myanmar"})
_BLOCKS = (
    ("han", 0x3400, 0x9FFF),
    ("han", 0x3005, 0x3007),
    ("han", 0xF900, 0xFAFF),
    ("han", 0x20000, 0x3FFFF),
    ("hiragana", 0x3040, 0x309F),
    ("katakana", 0x30A0, 0x30FF),
    ("katakana", 0x31F0, 0x31FF),
    ("hangul", 0x1100, 0x11FF),
    ("hangul", 0x3130, 0x318F),
    ("hangul", 0xAC00, 0xD7AF),
    ("thai", 0x0E00, 0x0E7F),
    ("lao", 0x0E80, 0x0EFF),
    ("myanmar", 0x1000, 0x109F),
    ("khmer", 0x1780, 0x17FF),
    ("cyrillic", 0x0400, 0x052F),
    ("greek", 0x0370, 0x03FF),
    ("hebrew", 0x0590, 0x05FF),
    ("arabic", 0x0600, 0x06FF),
    ("arabic", 0x0750, 0x077F),
)
_MIDDLE_DOTS = "\u30fb\u30a0"  # in the block of katakana, and yet between words

# Small words that Korean writes at the end of a name, the longer ones first.
_KOREAN = (
    "에서는 으로는 이라는 입니다 에서 에게 으로 보다 처럼 까지 부터 이나 이며 이고 라는 하고 에는"
    " 과의 와의 은 는 이 가 을 를 의 에 와 과 도 로 만"
)
_ENDINGS_AFTER_CONSONANT = {
    "cyrillic": "а у ом е ы и ов ам ами ах ем ой ою ю я",
    "pl": "u a owi em iem ie ów om ami ach y",
    "cs": "u a ovi em e ů ům ech y",
    "fi": "in ia iin issa ista illa ille ilta iksi ina",
    "hu": "nak nek ban ben ról ről hoz hez nál nél val vel t ot et",
    "de": "s es",
    "sv": "s",
    "da": "s",
    "no": "s",
    "nl": "s",
    "et": "i is ist ile il ilt",
}
_ENDINGS_AFTER_VOWEL = {
    "fi": "n a an en on ssa sta lla lle lta ksi na ssä stä llä lle ltä nä ä",
    "hu": "nak nek ban ben ról ről hoz hez nál nél val vel t",
    "et": "s st le l lt",
    "de": "s",
    "sv": "s",
    "da": "s",
    "no": "s",
    "nl": "s",
}
# Nominative endings that give way to others: (as it ends, what may stand there instead).
_CHANGED = {
    "cyrillic": (
        ("ия", "ии ию ией"),
        ("а", "ы и е у ой ою"),
        ("я", "и е ю ей ею"),
        ("ь", "я ю ем е и ью"),
        ("й", "я ю ем е"),
    ),
    "pl": (
        ("ka", "ki ce kę ką ko"),
        ("ga", "gi dze gę gą"),
        ("ra", "ry rze rę rą"),
        ("a", "y i ie ę ą o"),
        ("st", "stu stem ście"),
    ),
    "cs": (("a", "y ě e u ou o"),),
}
_LEAST_STEM = 3


def script_of(character: str) -> str:
    """The script of a letter; digits and marks are of every script, the rest of none."""
    return _script(character)


@lru_cache(maxsize=10_000)
def _script(character: str) -> str:
    code = ord(character)
    if character.isascii():
        return "latin" if character.isalpha() else "digit" if character.isdigit() else ""
    if character in _MIDDLE_DOTS:
        return ""
    for name, first, last in _BLOCKS:
        if first <= code <= last:
            return name if unicodedata.category(character)[0] in "LMN" else ""
    category = unicodedata.category(character)[0]
    if category in "LM":
        return "latin" if unicodedata.name(character, "").startswith("LATIN") else "other"
    return "digit" if category == "N" else ""


def parts(before: str, after: str) -> bool:
    """Whether a word may end between the two characters, either of which may be missing."""
    left, right = (script_of(one) if one else "" for one in (before, after))
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
    """The folded word with the ends that its script or the language of the text gives it."""
    found: list[str] = []
    for group in _groups(word, language):
        found += _regular(word, group)
        found += _changed(word, group)
    return tuple(dict.fromkeys(folded for one in found if (folded := folded_name(one)) != word))


def glued(word: str) -> tuple[str, str]:
    """Patterns of what may be written together with the word, before and after it."""
    script = script_of(word[-1:] or " ")
    if script == "hangul":
        return "", "(?:" + "|".join(_KOREAN.split()) + ")?"
    if script == "arabic" and len(word) >= _LEAST_STEM:
        return "(?:[وف]?[بلك]?(?:ال)?)", ""
    if script == "hebrew" and len(word) >= _LEAST_STEM:
        return "[והבלמשכ]{0,2}", ""
    return "", ""


def _groups(word: str, language: str | None) -> tuple[str, ...]:
    script = script_of(word[-1:] or " ")
    if script == "cyrillic":
        return ("cyrillic",)
    primary = (language or "").partition("-")[0].lower()
    return (primary,) if script == "latin" and primary else ()


def _regular(word: str, group: str) -> list[str]:
    if len(word) <= _LEAST_STEM:
        return []
    is_vowel = word[-1] in "aeiouyаеиоуыэюя"
    table = _ENDINGS_AFTER_VOWEL if is_vowel else _ENDINGS_AFTER_CONSONANT
    if word[-1] in "ьй" or (is_vowel and group not in _ENDINGS_AFTER_VOWEL):
        return []
    return [word + ending for ending in table.get(group, "").split()]


def _changed(word: str, group: str) -> list[str]:
    for end, others in _CHANGED.get(group, ()):
        if word.endswith(end) and len(word) - len(end) >= _LEAST_STEM - 1:
            stem = word.removesuffix(end)
            return [stem + other for other in others.split()]
    return []
