"""Under which keys companies and postings are known, however a board spells them."""

from __future__ import annotations

import re
import unicodedata
from hashlib import sha256

from ingestion_pipeline.reading.business_names import without_legal_form
from ingestion_pipeline.urls import BadUrl, canonical_url, is_tracking

FINGERPRINT_CHARACTERS = 500  # of a description; boards cut and extend its end
MAX_SLUG_CHARACTERS = 80

_HIRING_END = re.compile(
    r"[\s,|:\-\u2013\u2014]+(?:(?:is|are|we'?re)\s+hiring!?|hiring!?|careers?(?:\s+page|\s+site)?"
    r"|jobs?(?:\s+board)?|job openings|open (?:positions|roles)|vacancies|karriere"
    r"|stellenangebote)\s*$",
    re.IGNORECASE,
)
_HIRING_START = re.compile(
    r"^\s*(?:careers?|jobs?|open (?:positions|roles)|work|karriere)\s+(?:at|bei|with)\s+",
    re.IGNORECASE,
)
_TRAILING = " \t,;|:-\u2013\u2014"
# What job boards add to say through whom a reader came; canonical_url keeps some of them, since on
# other sites each of them selects a page.
_REFERRALS = frozenset({"ref", "source", "src", "t", "gh_src", "lever-source", "lever-origin"})


def clean_company_name(name: str) -> str:
    """The name without legal form and without "Careers", "Jobs", "Hiring"; never empty for words.

    A name that is nothing but such words stays as it is.
    """
    cleaned = " ".join(name.split())
    while True:
        shorter = cleaned
        for words in (_HIRING_START, _HIRING_END):
            shorter = words.sub("", shorter).strip(_TRAILING) or shorter
        shorter = without_legal_form(shorter)
        if shorter == cleaned:
            return cleaned
        cleaned = shorter


def company_slug(name: str) -> str:
    """The id of a company of that name: `[a-z0-9-]`, the same for every spelling we know of.

    A name without Latin letters or digits gets one from its hash.
    """
    folded = _folded(clean_company_name(name))
    plain = unicodedata.normalize("NFKD", folded).encode("ascii", "ignore").decode("ascii")
    slug = re.sub("[^a-z0-9]+", "-", plain).strip("-")[:MAX_SLUG_CHARACTERS].strip("-")
    return slug or f"c-{_digest(folded)[:16]}"


def fingerprint(title: str, company: str | None, description: str | None) -> str:
    """Equal for the same posting on two boards: title, company, beginning of the description."""
    parts = (title, clean_company_name(company or ""), description or "")
    title_words, company_words, words = (_words(part) for part in parts)
    return _digest("\n".join((title_words, company_words, words[:FINGERPRINT_CHARACTERS])))


def url_key(url: str) -> str:
    """Equal for every spelling of a posting's URL; of what is no web address, of the text itself.

    Beside the canonical form, a slash at the end and parameters that name a referrer do not count.
    """
    try:
        canonical = canonical_url(url)
    except BadUrl:
        return _digest(url.strip())
    address, _, query = canonical.partition("?")
    kept = [pair for pair in query.split("&") if pair and not _is_referral(pair)]
    return _digest("?".join(filter(None, (address.rstrip("/"), "&".join(kept)))))


def _is_referral(pair: str) -> bool:
    name = pair.partition("=")[0].lower()
    return name in _REFERRALS or is_tracking(name)


def _words(text: str) -> str:
    """Only letters and digits count: boards differ in marks, spaces and markup."""
    return " ".join(re.findall(r"[^\W_]+", _folded(text)))


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
