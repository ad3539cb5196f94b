"""Competitors that a website names itself: `alternative to X`, `X vs Y`, `unlike X`.

Only names that stand on the page; a page that compares with nobody has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ingestion_pipeline.reading.business_names import bare_name
from ingestion_pipeline.websites.naming import Names, find_mentions
from ingestion_pipeline.websites.naming.folding import folded_name

# Words have bounds: a page of a million capitals must not take an hour.
_WORD = r"(?<!\w)[A-Z0-9À-ÖØ-ÞА-ЯЁ][\w&.+'-]{0,30}"
_NAME = rf"(?:{_WORD})(?:[ ](?:{_WORD})){{0,2}}"
_BEFORE = (
    "alternatives? to|alternative for|alternativen? zu|alternatives? à|alternativas? a"
    "|alternatywa dla|alternatief voor|compared (?:to|with)|im vergleich (?:zu|mit)"
    "|switch(?:ing|ed)? from|migrat(?:e|ing) from|moving from|wechsel von|instead of|unlike"
    "|better than|cheaper than|besser als|statt|replaces?|альтернатива|вместо"
)
_AFTER = re.compile(rf"(?i:{_BEFORE})\s+({_NAME}(?:(?:, | and | und | or | oder | & ){_NAME})*)")
_VERSUS = re.compile(rf"({_NAME})\s+(?i:vs\.?|versus)\s+({_NAME})")
_ALTERNATIVE = re.compile(rf"({_NAME})[ -](?i:alternatives?|alternativen?)\b")
_LISTED = re.compile(r", | and | und | or | oder | & ")
_SLUG = re.compile(
    r"/(?:[\w-]*-)?(?:vs|versus)-([a-z0-9-]+)/?$"
    r"|/(?:vs|versus|compare|alternatives?)/([a-z0-9-]+)/?$"
)
_NOT_NAMES = """
a all alternative alternatives best better big compare comparison das der die discover easy ein
eine el every excel fast find free get here how i ihre il it la le les los more most new nos notre
nuestra o open os other others our price pricing read see sie simple spreadsheets start su switch
the their them these this those top traditional try tu uma un una une unser unsere us votre we
what which why wir with you your
"""
_UNFIT = frozenset(_NOT_NAMES.split())
_MOST_CHARACTERS = 40
_LOOKED_AT = 200_000  # characters of a page


def named_competitors(
    texts: Iterable[str], links: Iterable[str], own: Names, *, most: int
) -> tuple[str, ...]:
    """Whom the texts and the addresses of the site compare it with, those named oftener first."""
    counted: dict[str, list[str]] = {}
    for name in [*_in_texts(texts), *_in_links(links)]:
        bare = _fit(name, own)
        if bare:
            counted.setdefault("".join(folded_name(bare).split()), []).append(bare)
    by_number = sorted(counted.values(), key=lambda one: -len(one))
    return tuple(names[0] for names in by_number[:most])


def _in_texts(texts: Iterable[str]) -> Iterator[str]:
    for whole in texts:
        text = whole[:_LOOKED_AT]
        for found in _AFTER.finditer(text):
            yield from _LISTED.split(found[1])
        for found in _VERSUS.finditer(text):
            yield from found.groups()
        for found in _ALTERNATIVE.finditer(text):
            yield found[1]


def _in_links(links: Iterable[str]) -> Iterator[str]:
    for link in links:
        if found := _SLUG.search(link.partition("?")[0].lower()):
            slug = re.sub(r"-(?:alternatives?|comparison|vs-.*)$", "", found[1] or found[2])
            yield slug.replace("-", " ").title()


def _fit(name: str, own: Names) -> str | None:
    """The name alone, without words that only begin a sentence; None if it is none, or our own."""
    words = name.strip(" .,'-").split()
    while words and folded_name(words[0]) in _UNFIT:
        words = words[1:]
    while words and folded_name(words[-1]) in _UNFIT:
        words = words[:-1]
    bare = bare_name(" ".join(words)).strip(" .,")
    if len(bare) <= 1 or len(bare) > _MOST_CHARACTERS or bare.isdigit():
        return None
    # `Acme vs Globex` on the site of Acme Tools: its own name, cut short.
    is_cut = folded_name(own.name).startswith(f"{folded_name(bare)} ")
    return None if is_cut or find_mentions(f"with {bare}", own) else bare
