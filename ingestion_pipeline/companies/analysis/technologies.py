"""Technologies that a text names, by whole words: five groups, as data.

A name that is also a word ("Go", "Rust", "React") counts only where it is meant as a technology:
in a list beside another one, after "written in", or before "developer" and the like. So "go" is not
found in "ago", nor "AI" in "email", nor the language in "Go to market".
"""

from __future__ import annotations

import re

from ingestion_pipeline.companies.vocabulary import MACHINE_LEARNING, STACK

MAX_CHARACTERS = 400_000  # of one text; what comes later is not looked at

_BEFORE = r"(?<![A-Za-z0-9_@#.-])"
_AFTER = r"(?![A-Za-z0-9_#+@]|\.[A-Za-z])"
_FIRM = {name: re.compile(f"{_BEFORE}(?:{one.pattern}){_AFTER}") for name, one in STACK.items()}
_WORDS = {
    name: re.compile(f"{_BEFORE}(?:{one.as_word})(?![A-Za-z0-9_#+@-]|\\.[A-Za-z])")
    for name, one in STACK.items()
    if one.as_word
}
_BESIDE = r"[\s,/&|;:\u00b7\u2022()+*-]{1,6}(?:(?:and|or|und|oder|et|y)\s)?"
_BETWEEN = re.compile(_BESIDE)
_LEADING_IN = re.compile(
    r"\b(?:written|built|coded?|coding|develop\w*|programm\w*|implemented|backends?|services|stack"
    r"|experience|expert\w*|proficien\w*|fluen\w*|skill\w*|engineers?)\b[^.!?\n]{0,40}"
    r"\b(?:in|with|using|of|on)\s$"
)
_NAMED_FOR = re.compile(
    r"\s(?:developers?|engineers?|programmers?|programming|services?|microservices?|backends?"
    r"|back-end|frontends?|front-end|code(?:base)?|language|SDK|librar(?:y|ies)|components?"
    r"|applications?|modules?|compiler|hooks)\b"
)
_MOST_BETWEEN = 10


def technologies_in(text: str) -> dict[str, list[str]]:
    """The technologies that the text names, by group, each once and in the order of the data."""
    text = text[:MAX_CHARACTERS]
    spans = {name: [one.span() for one in rule.finditer(text)] for name, rule in _FIRM.items()}
    _add_words(text, spans)
    found: dict[str, list[str]] = {}
    for name, technology in STACK.items():
        if spans[name] and technology.group is not None:
            found.setdefault(technology.group, []).append(name)
    return found


def _add_words(text: str, spans: dict[str, list[tuple[int, int]]]) -> None:
    """Names that are words, where their surroundings say so; one that is sure makes others sure."""
    unsure = [
        (name, found.span()) for name, rule in _WORDS.items() for found in rule.finditer(text)
    ]
    while True:
        # What machine learning is called says nothing of the word beside it: "AI, go further".
        sure = [
            span
            for name, some in spans.items()
            for span in some
            if STACK[name].group != MACHINE_LEARNING
        ]
        taken = [one for one in unsure if _is_meant(text, one[1], sure)]
        if not taken:
            return
        for name, span in taken:
            spans[name].append(span)
        unsure = [one for one in unsure if one not in taken]


def _is_meant(text: str, span: tuple[int, int], sure: list[tuple[int, int]]) -> bool:
    start, end = span
    if _LEADING_IN.search(text[max(0, start - 100) : start]) or _NAMED_FOR.match(text, end):
        return True
    return any(
        (0 < start - other_end <= _MOST_BETWEEN and _is_between(text[other_end:start]))
        or (0 < other_start - end <= _MOST_BETWEEN and _is_between(text[end:other_start]))
        for other_start, other_end in sure
    )


def _is_between(text: str) -> bool:
    return _BETWEEN.fullmatch(text) is not None
