"""Language and keywords of a text."""

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Any

# ruff: noqa: RUF001 - the letters of other scripts are meant


SAMPLE_CHARACTERS = 20_000  # a language is known long before
MOST_KEYWORDS = 5
_LEAST_CONFIDENCE = 0.5  # names and single words reach 0.15, sentences 0.88
_CODE_CHARACTERS = 2
MAX_KEYWORD_CHARACTERS = 60
_HEADING_WEIGHT = 4
_LEAST_CHARACTERS = 4
_LEAST_TIMES = 2

_WORDS_BY_LANGUAGE = {
    "en": "the and of to in is for with on that are as your you our we from by at or be this it an"
    " have has can will more all not us about how what who their they was were get new when which"
    " into than also any do use using used make makes one out up so if no over",
    "de": "der die das und in ist für mit auf ein eine einen einer den dem des von zu sie wir ihr"
    " ihre ihren uns unsere unser nicht auch sich als bei aus werden wird sind hat haben mehr zum"
    " zur oder wie was nach über durch alle kann können um am im an es ich noch nur vom",
    "fr": "le la les des de du et en un une pour avec sur dans est vous nous votre vos notre nos"
    " qui que au aux par plus ou ce cette ces sont pas il elle ils être avoir tout tous toute"
    " comme mais si leur leurs sans son sa ses depuis",
    "es": "el la los las de del y en un una para con por que es su sus nuestro nuestra nuestros se"
    " al lo más como o son no tu te nos desde todo todos esta este sin sobre ya hay muy también",
    "it": "il lo la i gli le di del della dei delle e in un una per con che è su al alla dal dalla"
    " nostro nostra nostri vostro più come o sono non si tutto tutti questo questa anche da nel",
    "pt": "o a os as de do da dos das e em um uma para com por que é no na nos nas seu sua nosso"
    " nossa mais como ou são não se ao à todos você também sobre desde muito",
    "nl": "de het een en van in is voor met op dat die zijn wij u uw je jouw ons onze niet ook als"
    " bij uit of te aan naar meer kan worden wordt hebben heeft door om over al hoe wat",
    "pl": "i w na z do się jest nie to dla o że jak po przez od oraz za są nasz nasze naszych twój"
    " więcej lub który która które tym co już może być ze przy",
    "ru": "и в на с по для не что это как от из к за мы вы наш наши ваш ваши или у о же при до он"
    " она они был быть более также все всё но если так его",
    "sv": "och i att det en ett som för med på är av till den vi du din vår våra inte har kan om"
    " från eller mer så du oss era",
    "da": "og i at det en et som for med på er af til den vi du din vores ikke har kan om fra eller mere så os jeres",
    "fi": "ja on ei se että sekä tai kun niin myös mutta ovat meidän me te oma kanssa joka mitä",
    "cs": "a v na se je s z do pro to že jako od po za jsou naše váš nebo více který která však",
    "tr": "ve bir için ile bu da de en çok daha olarak olan gibi ne kadar sizin bizim veya",
}
_STOP_WORDS = {language: frozenset(words.split()) for language, words in _WORDS_BY_LANGUAGE.items()}
# Words of every site, whatever it is about.
_OF_EVERY_SITE = """
about account accept agb alle amp aktuelles angebot anmelden best blog book buy cart click company
contact content cookie cookies copyright datenschutz demo download email english faq free gratis
home hier impressum info jetzt kontakt learn legal link login mehr menu newsletter online page phone
policy press pricing privacy products read register reserved rights search service services shop
sign site start support team terms today unsere welcome website willkommen www accueil bienvenue
contacto inicio contatti contato kontakt politique produkte leistungen über unternehmen solutions
company learn more
"""
_EVERYWHERE = frozenset(_OF_EVERY_SITE.split())
_WORD = re.compile(r"[^\W\d_]+(?:[-'’][^\W\d_]+)*")
_SPLIT_KEYWORDS = re.compile(r"[,;|、，；]")


def guessed_language(text: str) -> str | None:
    """Return the language of a text as a code of two letters; None if it is not clear."""
    language, confidence = _identifier().classify(text[:SAMPLE_CHARACTERS])
    return language if confidence >= _LEAST_CONFIDENCE else None


@cache
def _identifier() -> Any:  # noqa: ANN401 - py3langid has no types
    """Load the model on first use: half a second, a hundred megabytes."""
    langid: Any = import_module("py3langid.langid")
    identifier = langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
    # Lists of English names are taken for a language of three letters, Nigerian Pidgin.
    identifier.set_languages([language for language in identifier.labels if len(language) == _CODE_CHARACTERS])
    return identifier


def stated_keywords(content: str | None) -> list[str]:
    """Return the keywords of a meta tag, as written, each once."""
    parts = (" ".join(part.split()) for part in _SPLIT_KEYWORDS.split(content or ""))
    unique = {part.lower(): part for part in parts if 1 < len(part) <= MAX_KEYWORD_CHARACTERS}
    return list(unique.values())


def frequent_words(
    text: str,
    *,
    headings: Sequence[str] = (),
    language: str | None = None,
    most: int = MOST_KEYWORDS,
) -> list[str]:
    """Return the most frequent words without stop words; those in headings count four times.

    A pair of words that stands together at least half as often as the commoner one comes as a pair.
    """
    primary = (language or "").partition("-")[0].lower()
    excluded = _STOP_WORDS.get(primary, _STOP_WORDS["en"]) | _EVERYWHERE
    counts: Counter[str] = Counter()
    pairs: Counter[tuple[str, str]] = Counter()
    for passage, weight in [(text[:SAMPLE_CHARACTERS], 1), *((heading, _HEADING_WEIGHT) for heading in headings)]:
        for line in passage.lower().splitlines():
            words = _WORD.findall(line)
            counts.update({word: weight * times for word, times in Counter(words).items()})
            for pair in pairwise(words):
                pairs[pair] += weight
    significant = {
        word: count
        for word, count in counts.items()
        if word not in excluded and (len(word) >= _LEAST_CHARACTERS or not word.isascii())
    }
    return _joined(Counter(significant), pairs)[:most]


def _joined(counts: Counter[str], pairs: Counter[tuple[str, str]]) -> list[str]:
    """Return the words by frequency, pairs that belong together as one."""
    phrases: list[str] = []
    used: set[str] = set()
    for word, count in sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])):
        if word in used or count < _LEAST_TIMES:
            continue
        partner = _partner(word, counts, pairs)
        used |= {word, *(partner or ())}
        phrases.append(" ".join(partner) if partner else word)
    return phrases


def _partner(word: str, counts: Counter[str], pairs: Counter[tuple[str, str]]) -> tuple[str, str] | None:
    candidates = [
        (number, pair)
        for pair, number in pairs.items()
        if word in pair and number >= _LEAST_TIMES and all(member in counts for member in pair)
    ]
    number, pair = max(candidates, default=(0, ("", "")))
    commoner = max(counts[member] for member in pair)
    return pair if number and 2 * number >= commoner and pair[0] != pair[1] else None
