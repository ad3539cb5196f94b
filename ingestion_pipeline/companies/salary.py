"""Salaries from API fields and from text such as "$120-150k" or "60.000 €"."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

MAX_CHARACTERS = 300  # of a salary text; a longer one is a description
MAX_AMOUNT = Decimal(10) ** 12  # in any currency; more is a serial number

_CURRENCIES = {"$": "USD", "€": "EUR", "£": "GBP", "¥": "JPY", "₹": "INR", "₩": "KRW", "zł": "PLN"}
_DOLLARS = {"C$": "CAD", "CA$": "CAD", "A$": "AUD", "AU$": "AUD", "NZ$": "NZD", "S$": "SGD"}
_CODES = (
    "USD EUR GBP CAD AUD NZD CHF SEK NOK DKK PLN CZK HUF RON BGN JPY CNY INR SGD HKD KRW BRL MXN"
    " ILS ZAR AED TRY UAH PHP THB IDR MYR VND ARS CLP COP"
)
_CODE = re.compile(rf"\b({'|'.join(_CODES.split())})\b")
_DOLLAR = re.compile(r"(?<![A-Z])(CA|C|AU|A|NZ|S)\$")
_SYMBOL = re.compile("|".join(map(re.escape, _CURRENCIES)))
_CURRENCY_WORDS = {"euro": "EUR", "dollar": "USD"}
_CURRENCY_WORD = re.compile(r"\b(euro|dollar)s?\b", re.IGNORECASE)
_PERIODS = (
    ("hour", re.compile(r"hour|\bhr\b|stunde|heure|\bp\.?h\.?\b|/h\b", re.IGNORECASE)),
    ("day", re.compile(r"\bda(?:y|ily)|/d\b|\btag\b|jour\b", re.IGNORECASE)),
    ("week", re.compile(r"week|\bwk\b|woche|semaine", re.IGNORECASE)),
    ("month", re.compile(r"month|\bmo\b|monat|\bmois\b|\bmes\b|\bp\.?m\.?\b", re.IGNORECASE)),
    ("year", re.compile(r"year|\byr\b|annu|\bp\.?a\.?\b|jahr|\ban\b|\baño", re.IGNORECASE)),
)
# A number and the unit right after it: a "k" belongs to one number only.
_AMOUNT = re.compile(
    r"(?<![\w.,])([0-9]{1,3}(?:[.,'\u2019\u00a0\u202f ][0-9]{3})+(?:[.,][0-9]{1,2})?(?![0-9])"
    r"|[0-9]{1,12}(?:[.,][0-9]{1,2})?(?![0-9]))\s?(k|tsd|mio|m)?(?![\w%])",
    re.IGNORECASE,
)
_BETWEEN = re.compile(
    r"[^\w]*(?:[-\u2013\u2014]|\b(?:to|bis|and)\b)[^\w]*(?:[A-Z]{1,3}(?=[\s$])[^\w]*)?", re.IGNORECASE
)
_UP_TO = re.compile(r"(?:up to|max(?:imum)?\.?|bis zu|jusqu'à)[^\w]*$", re.IGNORECASE)
_PENSION = re.compile(r"\b40[13]\s?\(?[kb]\)?", re.IGNORECASE)  # American plans, not amounts
_MIN_BARE_AMOUNT = 1_000  # without currency and period a smaller number is not a salary
_TIMES = {"": 1, "k": 1_000, "tsd": 1_000, "m": 1_000_000, "mio": 1_000_000}
_DECIMALS = 2  # digits; three after a point are thousands


# Pay periods per year.
TIMES_A_YEAR = {"hour": 2_080, "day": 260, "week": 52, "month": 12, "year": 1}

MAX_DESCRIPTION = 30_000  # characters of running text that are searched
PAY_CHARACTERS = 60  # of context around an amount
MIN_YEARLY, MAX_YEARLY = 15_000, 2_000_000  # plausible yearly pay in the known currencies
_FIGURES = r"[0-9][0-9.,'\u2019]{0,12}+(?:[ \u00a0\u202f][0-9]{3}(?![0-9])){0,2}+\s?k?"
_MONEY = re.compile(
    r"(?:(?:CA|C|AU|A|NZ|S)?[$€£]\s?|\b(?:USD|EUR|GBP|CAD|AUD|CHF)\s?)[0-9]"
    rf"|(?<![\w.,$€£]){_FIGURES}(?:\s?(?:[-\u2013\u2014]|to|bis)\s?{_FIGURES})?\s?"
    r"(?:[$€£]|(?:USD|EUR|GBP|CAD|AUD|CHF|(?i:euros?|dollars))\b)"
)
# "Salary: 90-110k" needs no currency; other figures do.
_LABELLED_PAY = re.compile(
    r"\b(?:salary|pay|compensation|gehalt|jahresgehalt|salaire)(?: range)?(?: is| of|:)? ?"
    r"(?P<pay>[0-9]{2,3}(?: ?k)?(?: ?[-\u2013\u2014] ?[0-9]{2,3})? ?k\b)",
    re.IGNORECASE,
)
_CLAUSE_END = re.compile(r"[;\n]|,\s|\.\s|\.$|\s(?:plus|with|in|for|per employee)\s|\s\+\s")
_SENTENCE_END = re.compile(r"[;\n!?]|\.\s|\.$|,\s|\s(?:plus|and)\s")
_THOUSANDS = re.compile(r"[0-9]\s?k\b", re.IGNORECASE)
_PAY_WORD = re.compile(
    r"salar|compensation|\bpay|\bpaid|\bbase\b|\bwages?\b|\bearn|\brate\b|\bOTE\b|remuneration|gehalt"
    r"|vergütung|salaire|rémunération|retribu",
    re.IGNORECASE,
)
_OTHER_MONEY = re.compile(
    r"bonus|stipend|budget|allowance|raised|funding|funded|revenue|\bARR\b|valuation|invest|worth"
    r"|saving|million|billion|grant|reimburs|learning|equipment|relocation|signing|referral"
    r"|commission|assets|\bdeals?\b|contracts?\b|process|transaction|payments|portfolio|sales|profit"
    r"|turnover|\bprize|donat|discount|voucher|insurance|401|fertility|tuition|wellness|coverage|matching",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Salary:
    """A range; currency as ISO code, period hour, day, week, month or year; None if not stated."""

    minimum: Decimal | None
    maximum: Decimal | None
    currency: str | None = None
    period: str | None = None


def salary_as_dict(salary: Salary) -> Mapping[str, Any]:
    """Return plain values; amounts as text, since they are decimals."""
    return {
        "minimum": None if salary.minimum is None else str(salary.minimum),
        "maximum": None if salary.maximum is None else str(salary.maximum),
        "currency": salary.currency,
        "period": salary.period,
    }


def stated_salary(
    minimum: str | None, maximum: str | None, *, currency: str | None, period: str | None
) -> Salary | None:
    """Return the salary of fields; None unless at least one is an amount above zero."""
    return _salary(_decimal(minimum), _decimal(maximum), currency=_code(currency), period=_period(period or ""))


def salary_in(text: str) -> Salary | None:
    """Return the salary that a text states: its first amount, or the range it begins."""
    text = _PENSION.sub(" ", text[:MAX_CHARACTERS])
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
        if not unit and last_unit and first is not None and first < _TIMES[last_unit]:
            first = _value(amount[1], last_unit)
    elif _UP_TO.search(text[: amount.start()].rstrip("$€£ ")):
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
    return None if value is None else _bounded(value * _TIMES[unit])


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
    if match := _DOLLAR.search(text):
        return _DOLLARS[f"{match[1]}$"]
    if symbol := _SYMBOL.search(text):
        return _CURRENCIES[symbol[0]]
    word = _CURRENCY_WORD.search(text)
    return _CURRENCY_WORDS[word[1].lower()] if word else None


def _code(text: str | None) -> str | None:
    stated = (text or "").strip().upper()
    return stated if re.fullmatch("[A-Z]{3}", stated) else _currency(text or "")


def _period(text: str) -> str | None:
    return next((name for name, words in _PERIODS if words.search(text)), None)
