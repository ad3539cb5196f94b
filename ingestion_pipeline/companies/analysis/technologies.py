"""Technologies that a text names, by whole words: five groups, as data.

A name that is also a word ("Go", "Rust", "React") counts only where it is meant as a technology:
in a list beside another one, after "written in", or before "developer" and the like. So "go" is not
found in "ago", nor "AI" in "email", nor the language in "Go to market".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

LANGUAGES = "languages"
FRONTEND = "frontend"
INFRASTRUCTURE = "infrastructure"
DATABASES = "databases"
MACHINE_LEARNING = "machine_learning"

MAX_CHARACTERS = 400_000  # of one text; what comes later is not looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Technology:
    """How a technology is written; `as_word` is also a common word and needs its surroundings."""

    group: str
    pattern: str
    as_word: str | None = None


def _of(group: str, **written: str | tuple[str, str]) -> dict[str, Technology]:
    return {
        name.replace("_", " "): Technology(group=group, pattern=one)
        if isinstance(one, str)
        else Technology(group=group, pattern=one[0], as_word=one[1])
        for name, one in written.items()
    }


TECHNOLOGIES: Mapping[str, Technology] = MappingProxyType(
    _of(
        LANGUAGES,
        python="[Pp]ython",
        java="Java",
        javascript="[Jj]ava[Ss]cript",
        typescript="[Tt]ype[Ss]cript",
        go=("[Gg]olang", "Go"),
        rust=("[Rr]ust[Ll]ang", "Rust"),
        ruby=("Ruby on Rails", "Ruby"),
    )
    | {"c++": Technology(group=LANGUAGES, pattern=r"[Cc]\+\+(?:[0-9]{2})?")}
    | _of(
        FRONTEND,
        react=(r"[Rr]eact(?:\.?[Jj][Ss])|React Native", "React"),
        vue=r"Vue(?:\.?[Jj][Ss])?",
        angular=(r"Angular(?:JS|\.js)", "Angular"),
        svelte=("Svelte(?:Kit|JS)", "Svelte"),
    )
    | _of(
        INFRASTRUCTURE,
        aws="AWS|Amazon Web Services",
        gcp="GCP|Google Cloud(?: Platform)?",
        azure="Microsoft Azure|(?<!d')(?<!d\u2019)Azure",
        docker="Docker",
        kubernetes="[Kk]ubernetes|[Kk]8[Ss]",
    )
    | _of(
        DATABASES,
        postgresql="[Pp]ostgre(?:s|SQL|sql)",
        mysql="[Mm]y[Ss][Qq][Ll]",
        mongodb="[Mm]ongo ?[Dd][Bb]",
        redis="[Rr]edis",
    )
    | _of(
        MACHINE_LEARNING,
        machine_learning="[Mm]achine[- ][Ll]earning|ML|maschinelle[sn]? Lernen",
        artificial_intelligence=r"AI|A\.I\.|[Aa]rtificial [Ii]ntelligence|Künstliche Intelligenz",
        deep_learning="[Dd]eep[- ][Ll]earning|[Nn]eural [Nn]etworks?",
        language_models="LLMs?|[Ll]arge [Ll]anguage [Mm]odels?",
        natural_language_processing="NLP|[Nn]atural [Ll]anguage [Pp]rocessing",
        computer_vision="[Cc]omputer [Vv]ision",
        tensorflow="[Tt]ensor[Ff]low",
        pytorch="[Pp]y[Tt]orch",
    )
)

_BEFORE = r"(?<![A-Za-z0-9_@#.-])"
_AFTER = r"(?![A-Za-z0-9_#+@]|\.[A-Za-z])"
_FIRM = {
    name: re.compile(f"{_BEFORE}(?:{one.pattern}){_AFTER}") for name, one in TECHNOLOGIES.items()
}
_WORDS = {
    name: re.compile(f"{_BEFORE}(?:{one.as_word})(?![A-Za-z0-9_#+@-]|\\.[A-Za-z])")
    for name, one in TECHNOLOGIES.items()
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
    for name, technology in TECHNOLOGIES.items():
        if spans[name]:
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
            if TECHNOLOGIES[name].group != MACHINE_LEARNING
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
