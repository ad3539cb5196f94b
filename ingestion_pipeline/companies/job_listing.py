"""A job as its board lists it, and how its words are read: technologies, company names, places and salaries.

What a board does not state is None, never a placeholder. Names have normalised keys that are equal for every
spelling on a board. Companies and listings share one list of technologies, each with its group of the stack.
"""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from hashlib import sha256
from types import MappingProxyType
from typing import Any

from pydantic import TypeAdapter

from ingestion_pipeline.reading.structured.organizations import without_legal_form
from ingestion_pipeline.reading.text.plain_text import clean_text, packaged_data, phrases_of, without_references
from ingestion_pipeline.urls import BadUrl, canonical_url, is_tracking, without_secrets

_PHRASES = phrases_of("ingestion_pipeline.companies")
MACHINE_LEARNING = "machine_learning"


@dataclass(frozen=True, slots=True)
class Technology:
    """One technology of `technologies.yaml`, which says what its fields mean."""

    name: str
    group: str | None = None
    pattern: str | None = None
    also: tuple[str, ...] = ()
    as_word: str | None = None
    is_required_skill: bool = True


VOCABULARY = TypeAdapter(tuple[Technology, ...]).validate_python(
    packaged_data("ingestion_pipeline.companies", "technologies.yaml")
)

# The technologies of the five groups, by lower-case name.
STACK: Mapping[str, Technology] = MappingProxyType(
    {technology.name.lower(): technology for technology in VOCABULARY if technology.group}
)
# Skills that listings require; those a profile lacks count as missing.
REQUIRED_SKILLS = tuple(technology.name for technology in VOCABULARY if technology.is_required_skill)


# Other names to search for, by lower-case name.
OTHER_NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {technology.name.lower(): technology.also for technology in VOCABULARY if technology.also}
    | {"postgres": ("postgresql",)}
)
_NAMES = {other: technology.name.lower() for technology in VOCABULARY for other in technology.also}


def canonical_name(name: str) -> str:
    """Return the canonical lower-case name: Golang is go, K8s is kubernetes."""
    small = name.casefold()
    return _NAMES.get(small, small)


FINGERPRINT_CHARACTERS = 500  # of a description; boards cut or extend its end
MAX_SLUG_CHARACTERS = 80
MAX_NAME_CHARACTERS = 300  # of a company name; the longest of our samples has 70

_HIRING_END = re.compile(_PHRASES["hiring_end"], re.IGNORECASE)
_HIRING_START = re.compile(_PHRASES["hiring_start"], re.IGNORECASE)
_TRAILING = " \t,;|:-\u2013\u2014"
_PLACEHOLDERS = frozenset(_PHRASES.each("placeholders"))
_ANY_COMPANY = re.compile(_PHRASES["any_company"])
_PLACE_PARTS = re.compile(r"[,;/|()\u2022\u2013\u2014]|\s(?:-|or|and|oder|und|ou)\s")
_WORK_MODES = re.compile(r"\b(?:remote|hybrid|on-?site|on site|in-?office|anywhere|worldwide|home ?office)\b")
_MAX_CODE_CHARACTERS = 3  # letters of OR, DE or USA; longer parts of a place are names
_FOREIGN_CODES = {country: tuple(codes.split()) for country, codes in _PHRASES.by_name("foreign_codes").items()}
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


MAX_CHARACTERS = 300  # of a salary text; a longer one is a description
MAX_AMOUNT = Decimal(10) ** 12  # in any currency; more is a serial number

_CODES = (
    "USD EUR GBP CAD AUD NZD CHF SEK NOK DKK PLN CZK HUF RON BGN JPY CNY INR SGD HKD KRW BRL MXN"
    " ILS ZAR AED TRY UAH PHP THB IDR MYR VND ARS CLP COP RUB NGN KES EGP SAR QAR KWD TWD PKR PEN UYU GEL KZT RSD"
)
_CODE = re.compile(rf"\b({'|'.join(_CODES.split())})\b")
_CURRENCIES = [
    (name[:3], re.compile(words, 0 if name in {"ZAR", "CHF"} else re.IGNORECASE))
    for name, words in _PHRASES.by_name("currencies").items()
]
_UNITS = {int(times): words for times, words in _PHRASES.by_name("units").items()}
_TIMES = [(times, re.compile(words, re.IGNORECASE)) for times, words in _UNITS.items()]
_PERIODS = [(name, re.compile(words, re.IGNORECASE)) for name, words in _PHRASES.by_name("periods").items()]
_AMOUNT = re.compile(_PHRASES["amount"].replace("{units}", "|".join(_UNITS.values())), re.IGNORECASE)
_BETWEEN = re.compile(_PHRASES["between"], re.IGNORECASE)
_UP_TO = re.compile(_PHRASES["up_to"], re.IGNORECASE)
# American pension plans, hours of work and numbers of monthly salaries are no amounts.
_NO_AMOUNT = re.compile(rf"\b40[13]\s?\(?[kb]\)?|\b1[2-6]\s?(?:x\b|薪|个月|ヶ月)|{_PHRASES['hours']}", re.IGNORECASE)
_GLUED = re.compile(
    r"(?<=[a-z\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3])(?=[0-9])|(?<=[0-9])(?=[€£])", re.IGNORECASE
)
_MIN_BARE_AMOUNT = 1_000  # without currency and period a smaller number is not a salary
_DECIMALS = 2  # digits; three after a point are thousands


# Pay periods per year.
TIMES_A_YEAR = {"hour": 2_080, "day": 260, "week": 52, "month": 12, "year": 1}

MAX_DESCRIPTION = 30_000  # characters of running text that are searched
PAY_CHARACTERS = 60  # of context around an amount
MIN_YEARLY, MAX_YEARLY = 15_000, 2_000_000  # plausible yearly pay in the known currencies
_MONEY = re.compile(_PHRASES["money"])
_LABELLED_PAY = re.compile(_PHRASES["labelled_pay"], re.IGNORECASE)
_CLAUSE_END = re.compile(r"[;\n]|,\s|\.\s|\.$|\s(?:plus|with|in|for|per employee)\s|\s\+\s")
_SENTENCE_END = re.compile(r"[;\n!?]|\.\s|\.$|,\s|\s(?:plus|and)\s")
_THOUSANDS = re.compile(r"[0-9]\s?k\b", re.IGNORECASE)
_PAY_WORD = re.compile(_PHRASES["pay_word"], re.IGNORECASE)
_OTHER_MONEY = re.compile(_PHRASES["other_money"], re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Salary:
    """A range; currency as ISO code, period hour, day, week, month or year; None if not stated."""

    minimum: Decimal | None
    maximum: Decimal | None
    currency: str | None = None
    period: str | None = None


def salary_as_dict(salary: Salary) -> Mapping[str, Any]:
    """Return plain values; amounts as text, since they are decimals."""
    return {name: str(value) if isinstance(value, Decimal) else value for name, value in asdict(salary).items()}


def stated_salary(
    minimum: str | None, maximum: str | None, *, currency: str | None, period: str | None
) -> Salary | None:
    """Return the salary of fields; None unless at least one is an amount above zero."""
    return _salary(_decimal(minimum), _decimal(maximum), currency=_code(currency), period=_period(period or ""))


def salary_in(text: str) -> Salary | None:
    """Return the salary that a text states: its first amount, or the range it begins."""
    text = _GLUED.sub(" ", _NO_AMOUNT.sub(" ", text[:MAX_CHARACTERS]))
    amount = _AMOUNT.search(text)
    if amount is None:
        return None
    dash = _BETWEEN.match(text, amount.end())
    second = _AMOUNT.match(text, dash.end()) if dash else None
    unit = (amount[2] or "").lower()
    first, last = _value(amount[1], unit), None
    if second is not None:
        last_unit = (second[2] or "").lower()
        last = _value(second[1], last_unit)
        # "120-150k": the unit applies to both
        if not unit and last_unit and first is not None and first < _times(last_unit):
            first = _value(amount[1], last_unit)
    elif _UP_TO.search(text[: amount.start()].rstrip("$€£₹ ")):
        first, last = None, first
    currency, period = _currency(text), _period(text)
    is_small = max(first or 0, last or 0) < _MIN_BARE_AMOUNT
    if is_small and currency is None and period not in {"hour", "day"}:
        return None
    return _salary(first, last, currency=currency, period=period)


def salary_in_description(text: str) -> Salary | None:
    """Return the pay that running text states, the highest if there are several; None if none.

    An amount counts if it has a currency, is a plausible income, and is marked as pay: by a word
    near it, a period, a range or a `k`. Bonuses, budgets and the company's money do not count.
    Without a currency it counts right after the word: "Salary: 90-110k".
    """
    text = text[:MAX_DESCRIPTION]
    stated = [_pay_at(text, money) for money in _MONEY.finditer(text)]
    stated += [salary_in(match["pay"]) for match in _LABELLED_PAY.finditer(text)]
    return max((pay for pay in stated if pay is not None), key=_yearly, default=None)


def _pay_at(text: str, money: re.Match[str]) -> Salary | None:
    """Return the pay that begins at this amount; None if it is other money."""
    clause = _CLAUSE_END.split(text[money.start() : money.start() + PAY_CHARACTERS])[0]
    before = text[max(0, money.start() - PAY_CHARACTERS) : money.start()]
    behind = text[money.end() : money.end() + PAY_CHARACTERS // 2]
    after = _SENTENCE_END.split(behind)[0].partition(" with ")[0]
    sentence = f"{_SENTENCE_END.split(before)[-1]} {after}"
    pay = salary_in(clause)
    if pay is None or pay.currency is None or _OTHER_MONEY.search(sentence):
        return None
    is_range = pay.minimum is not None and pay.maximum is not None
    is_said = bool(_PAY_WORD.search(before + clause)) or is_range or _THOUSANDS.search(clause)
    if not is_said and pay.period is None:
        return None
    return pay if MIN_YEARLY <= _yearly(pay) <= MAX_YEARLY else None


def _yearly(pay: Salary) -> Decimal:
    amount = pay.maximum or pay.minimum or Decimal(0)
    return amount * TIMES_A_YEAR[pay.period or "year"]


def _salary(first: Decimal | None, last: Decimal | None, *, currency: str | None, period: str | None) -> Salary | None:
    if first is None and last is None:
        return None
    if first is not None and last is not None and first > last:
        first, last = last, first
    return Salary(minimum=first, maximum=last, currency=currency, period=period)


def _value(written: str, unit: str) -> Decimal | None:
    amount = re.sub(r"['\u2019\u00a0\u202f ]", "", written)
    whole, mark, rest = amount[: -_DECIMALS - 1], amount[-_DECIMALS - 1 :][:1], amount[-_DECIMALS:]
    one_digit = re.fullmatch(r"([0-9]+)[.,]([0-9])", amount)
    if one_digit:
        plain = f"{one_digit[1]}.{one_digit[2]}"
    elif mark in {".", ","}:
        plain = f"{re.sub('[.,]', '', whole)}.{rest}"
    else:
        plain = re.sub("[.,]", "", amount)
    value = _decimal(plain)
    return None if value is None else _bounded(value * _times(unit))


def _times(unit: str) -> int:
    """Return what the unit multiplies a number by."""
    return next((times for times, words in _TIMES if unit and words.match(f"{unit} €")), 1)


def _decimal(text: str | None) -> Decimal | None:
    try:
        value = Decimal(text or "")
    except InvalidOperation:
        return None
    return _bounded(value) if value.is_finite() else None


def _bounded(value: Decimal) -> Decimal | None:
    return value.quantize(Decimal("0.01")).normalize() + 0 if 0 < value < MAX_AMOUNT else None


def _currency(text: str) -> str | None:
    if match := _CODE.search(text):
        return match[1]
    return next((code for code, words in _CURRENCIES if words.search(text)), None)


def _code(text: str | None) -> str | None:
    stated = (text or "").strip().upper()
    return stated if re.fullmatch("[A-Z]{3}", stated) else _currency(text or "")


def _period(text: str) -> str | None:
    return next((name for name, words in _PERIODS if words.search(text)), None)


class Remote(StrEnum):
    """Where the work is done."""

    REMOTE = "remote"
    HYBRID = "hybrid"
    ON_SITE = "on_site"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """One posting; `description` is Markdown, times are UTC, `external_id` is the platform's own.

    `employment_type` and `department` are in the board's words, `company_website` as it links. A
    relative date ("3 days ago") changes with every poll: only the first one counts.
    """

    external_id: str | None
    title: str
    url: str | None
    location: str | None = None
    posted_at: datetime | None = None
    description: str | None = None
    company: str | None = None
    department: str | None = None
    employment_type: str | None = None
    remote: Remote | None = None
    salary: Salary | None = None
    other_locations: tuple[str, ...] = ()
    valid_until: datetime | None = None
    company_website: str | None = None
    posted_is_relative: bool = False

    def __post_init__(self) -> None:
        """Resolve character references in names, and remove secrets from URLs."""
        for name in ("title", "location", "company", "department", "employment_type"):
            if (text := getattr(self, name)) is not None and "&" in text:
                object.__setattr__(self, name, clean_text(without_references(text)) or text)
        for name in ("url", "company_website", "external_id"):
            if (address := getattr(self, name)) is not None and "://" in address:
                object.__setattr__(self, name, without_secrets(address))
        places = tuple(without_references(place) for place in self.other_locations)
        object.__setattr__(self, "other_locations", places)


def is_expired(valid_until: datetime | None, *, now: datetime) -> bool:
    """Return whether the deadline has passed; a date without a time lasts until its end."""
    if valid_until is None:
        return False
    is_date = valid_until.time() == time.min
    return valid_until < now - timedelta(days=1 if is_date else 0)  # 9999-12-31 has no day after


def listing_as_dict(listing: Listing) -> Mapping[str, Any]:
    """Return the listing as plain values, times as ISO text."""
    return {name: _plain(getattr(listing, name)) for name in _STATED}


_STATED = [field.name for field in fields(Listing) if field.name != "posted_is_relative"]


def _plain(value: object) -> object:
    match value:
        case datetime():
            return value.isoformat()
        case Remote():
            return value.value
        case Salary():
            return salary_as_dict(value)
        case tuple():
            return list(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]  of texts
        case _:
            return value
