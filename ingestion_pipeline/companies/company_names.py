"""Normalised keys of companies and postings that are equal for every spelling on a board."""

import re
import unicodedata
from hashlib import sha256

from ingestion_pipeline.reading.text.business_names import without_legal_form
from ingestion_pipeline.urls import BadUrl, canonical_url, is_tracking

FINGERPRINT_CHARACTERS = 500  # of a description; boards cut or extend its end
MAX_SLUG_CHARACTERS = 80
MAX_NAME_CHARACTERS = 300  # of a company name; the longest of our samples has 70

_HIRING_END = re.compile(
    r"(?<![\s,|:\-\u2013\u2014])[\s,|:\-\u2013\u2014]++(?:(?:is|are|we'?re)\s++hiring!?|hiring!?|careers?(?:\s+page|\s+site)?"
    r"|jobs?(?:\s+board)?|job openings|open (?:positions|roles)|vacancies|karriere"
    r"|stellenangebote)\s*+$",
    re.IGNORECASE,
)
_HIRING_START = re.compile(
    r"^\s*(?:careers?|jobs?|open (?:positions|roles)|work|karriere)\s+(?:at|bei|with)\s+", re.IGNORECASE
)
_TRAILING = " \t,;|:-\u2013\u2014"
# Placeholders that people put into a required field, in lower case and without punctuation.
_PLACEHOLDERS = frozenset(
    {
        *("unknown", "none", "null", "nil", "nan", "undefined", "n a", "na", "not available", "not applicable"),
        *("not specified", "unspecified", "not stated", "not disclosed", "not provided", "not given", "not known"),
        *("no name", "unnamed", "withheld", "stealth", "stealth mode", "tba", "tbc", "tbd", "no", "undisclosed"),
        *("confidential", "private", "anonymous", "hidden", "various", "other", "unbekannt", "vertraulich"),
        *("anonym", "keine angabe", "k a", "inconnu", "confidentiel", "keine angaben", "nicht angegeben"),
        *("non renseigné", "no especificado", "sin especificar", "anonyme", "desconocido", "confidencial"),
        *("anonimo", "sconosciuto", "riservato", "onbekend"),
    }
)
_ANY_COMPANY = re.compile(
    r"\b(?:compan(?:y|ies)|employers?|clients?|organi[sz]ations?|start-?up|firma|unternehmen"
    r"|entreprise|empresa|azienda|name|hiring|the|our)\b"
)
_PLACE_PARTS = re.compile(r"[,;/|()\u2022\u2013\u2014]|\s(?:-|or|and|oder|und|ou)\s")
_WORK_MODES = re.compile(r"\b(?:remote|hybrid|on-?site|on site|in-?office|anywhere|worldwide|home ?office)\b")
_MAX_CODE_CHARACTERS = 3  # letters of OR, DE or USA; longer parts of a place are names
# Codes of countries with a letter that the English name lacks.
_FOREIGN_CODES = {
    "germany": ("de", "deu"),
    "switzerland": ("ch", "che"),
    "spain": ("es", "esp"),
    "croatia": ("hr",),
    "serbia": ("rs",),
    "estonia": ("ee",),
    "south africa": ("za",),
} | dict.fromkeys(("england", "scotland", "wales", "united kingdom"), ("uk", "gb", "gbr"))
# Referrer parameters of job boards; canonical_url keeps some of them, since on other sites each of
# them selects a page.
_REFERRALS = frozenset({"ref", "source", "src", "t", "gh_src", "lever-source", "lever-origin"})


def clean_company_name(name: str) -> str:
    """Return the name without legal form and words such as "Jobs", unless it has nothing but such words."""
    cleaned = " ".join(name[:MAX_NAME_CHARACTERS].split())
    while True:
        shorter = cleaned
        for words in (_HIRING_START, _HIRING_END):
            shorter = words.sub("", shorter).strip(_TRAILING) or shorter
        shorter = without_legal_form(shorter)
        if shorter == cleaned:
            return cleaned
        cleaned = shorter


def is_placeholder_text(text: str | None) -> bool:
    """Return whether the text states nothing: no letter, "N/A", "Unknown", "Confidential"."""
    words = _words(text or "")
    return not words or words in _PLACEHOLDERS


def stated_company(name: str | None) -> str | None:
    """Return the company's name; None for "Unknown", "Confidential Company", "Our client", "-"."""
    words = " ".join(_ANY_COMPANY.sub(" ", _words(name or "")[:200]).split())
    return None if is_placeholder_text(words) else name


def is_same_place(first: str | None, second: str | None) -> bool:
    """Return whether two locations may be the same; one that names no place may be any.

    One contains the parts of the other ("Berlin" and "Berlin, Germany"), or has the same town where
    one has a code and the other a name ("Berlin, DE"; "Paris, TX" is not in France).
    """
    here, there = _place_parts(first), _place_parts(second)
    if not here or not there or set(here) <= set(there) or set(there) <= set(here):
        return True
    if here[0] != there[0] or len(here) == 1 or len(there) == 1:
        return " ".join(here) == " ".join(there)
    code, name = sorted((here[1], there[1]), key=len)
    remaining = iter(name)  # a code's letters are in the name, in order
    is_code = all(letter in remaining for letter in code) or code in _FOREIGN_CODES.get(name, ())
    return len(code) <= _MAX_CODE_CHARACTERS < len(name) and is_code


def _place_parts(location: str | None) -> list[str]:
    text = unicodedata.normalize("NFKD", _folded((location or "")[:500]))
    plain = _WORK_MODES.sub(" ", "".join(c for c in text if not unicodedata.combining(c)))
    return [words for part in _PLACE_PARTS.split(plain) if (words := _words(part))]


def company_slug(name: str) -> str:
    """Return a company's id, `[a-z0-9-]`, equal for every known spelling; a hash if it has no Latin letter."""
    folded = _folded(clean_company_name(name))
    plain = unicodedata.normalize("NFKD", folded).encode("ascii", "ignore").decode("ascii")
    slug = re.sub("[^a-z0-9]+", "-", plain).strip("-")[:MAX_SLUG_CHARACTERS].strip("-")
    return slug or f"c-{_digest(folded)[:16]}"


def fingerprint(title: str, company: str | None, description: str | None) -> str:
    """Return a hash of title, company and start of the description, equal across boards."""
    parts = (title, clean_company_name(company or ""), description or "")
    title_words, company_words, words = (_words(part) for part in parts)
    return _digest("\n".join((title_words, company_words, words[:FINGERPRINT_CHARACTERS])))


def url_key(url: str) -> str:
    """Return a hash that is equal for every spelling of a posting's URL; other text is hashed as it is."""
    try:
        canonical = canonical_url(url)
    except BadUrl:
        return _digest(url.strip())
    address, _, query = canonical.partition("?")
    parameters = [pair for pair in query.split("&") if pair and not _is_referral(pair)]
    return _digest("?".join(filter(None, (address.rstrip("/"), "&".join(parameters)))))


def _is_referral(pair: str) -> bool:
    name = pair.partition("=")[0].lower()
    return name in _REFERRALS or is_tracking(name)


def _words(text: str) -> str:
    """Keep only letters and digits: boards differ in punctuation, spaces and markup."""
    return " ".join(re.findall(r"[^\W_]+", _folded(text)))


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
