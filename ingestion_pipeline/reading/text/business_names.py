"""Business names without the article before them and the legal form after them.

Legal forms of some fifty countries, written with and without their dots, before the name where the
language puts them there. The result is never empty: a name that is nothing else stays whole.
"""

import re
import unicodedata

# ruff: noqa: RUF001 - the letters of other scripts are meant


MAX_NAME_CHARACTERS = 120

# Longer ones first where one is the beginning of another. A dot may stand after each letter.
_AFTER = (
    "gmbh & co. kgaa|gmbh & co. kg|gmbh & co. ohg|gmbh & co|ug (haftungsbeschränkt)|ag & co. kgaa"
    "|ag & co. kg|gesellschaft mit beschränkter haftung|aktiengesellschaft|ggmbh|gmbh|mbh|kgaa|ohg"
    "|gbr|ug|ag|kg|e.v.|eg|e.k.|e.u.|se"
    "|incorporated|inc|corporation|corp|limited liability company|limited|ltd|llc|l.l.c.|llp|lllp"
    "|lp|plc|pbc|p.c.|pty ltd|pty|pvt ltd|pvt. ltd|private limited|pte ltd|pte|co. ltd"
    "|company limited"
    "|s.a. de c.v.|s. de r.l. de c.v.|s.a.b. de c.v.|sapi de cv|s.a.u.|s.l.u.|s.l.|s.a.s.|s.a.r.l."
    "|s.à r.l.|s.a.|s.c.|sarlu|sasu|eurl|snc|scop|s.coop|ltda|ltd.a.|eireli|mei|s.r.l.s.|s.r.l."
    "|s.p.a.|s.n.c.|s.a.s. di|b.v.|n.v.|c.v.|v.o.f.|bvba|cvba|sprl|vzw|asbl"
    "|sp. z o.o. sp.k.|sp. z o.o. sp. k.|sp. z o. o.|sp. z o.o.|sp.k.|sp. k.|sp.j.|s.k.a."
    "|spółka akcyjna|spółka z o.o.|s.r.o.|spol. s r.o.|a.s.|v.o.s.|z.s.|d.o.o.|d.d.|j.d.o.o.|d.n.o."
    "|kft|zrt|nyrt|bt|e.o.o.d.|o.o.d.|eood|ood|s.r.l.-d|uab|sia|oü|mtü|ab (publ)|aktiebolag|ab|hb"
    "|oyj|oy|ky|ry|a/s|aps|i/s|p/s|asa|as|ehf|hf|ans|da|a.ş.|ltd. şti.|limited şirketi|a.e.|ε.π.ε."
    "|α.ε.|ι.κ.ε.|sdn. bhd.|bhd|tbk|persero|joint stock company|jsc|pjsc|ooo|zao|oao|pao|ооо|оао"
    "|зао|пао|ао|нпао|ип|тоо|тов|прат|ат|еоод|оод|ад|k.k.|g.k.|kabushiki kaisha|co., ltd"
)
_BEFORE = (
    "ооо|оао|зао|пао|нпао|ао|ип|тоо|тов|прат|пат|еоод|оод|pt|cv|ud|ab|as|oy|sia|uab|oü|firma"
    "|общество с ограниченной ответственностью|акционерное общество"
)
_CJK = (
    "株式会社|有限会社|合同会社|合資会社|一般社団法人|（株）|\\(株\\)|㈱|㈲|股份有限公司|有限责任公司"
    "|有限責任公司|股份公司|集团有限公司|有限公司|주식회사|유한회사|\\(주\\)|（주）|㈜"
)
_ARTICLES = {
    "": "the",
    "de": "der|die|das",
    "fr": "le|la|les",
    "es": "el|la|los|las",
    "it": "il|lo|la|gli|le",
    "nl": "de|het",
    "pt": "os|as",
}
_QUOTES = "\"'«»“”„‚‘’《》「」『』"
_LEAST_LEFT = 2


def _alternatives(forms: str) -> str:
    """Return a pattern of the forms, with dots and blanks optional."""
    signs = {".": r"\.?\s?", " ": r"\s*"}
    patterns = (
        "".join(signs.get(sign) or re.escape(sign) for sign in form) + ("" if form.endswith((".", ")")) else r"\.?")
        for form in forms.split("|")
    )
    return "|".join(patterns)


_AFTER_NAME = re.compile(rf"(?<![\s,;])[\s,;]++(?=.{{2,80}}+\Z)(?:{_alternatives(_AFTER)})\s*+$", re.IGNORECASE)
_COMPANY = re.compile(
    r"(?:(?:(?<!\s)\s++)?+&\s*+|(?<!\s)\s++and\s++|(?<![\s,])[\s,]++)"
    r"(?:co|company|cie|companhia)\.?\s*+$",
    re.IGNORECASE,
)
_ABBREVIATED = re.compile(r"[^&\s,][\s,]++co\.?\s*+$", re.IGNORECASE)  # not `Tiffany & Co.`
_BEFORE_NAME = re.compile(rf"^(?:{_alternatives(_BEFORE)})\s+(?=[^\s])", re.IGNORECASE)
_AROUND_NAME = re.compile(rf"^(?:{_CJK})\s*+|(?:(?<!\s)\s++)?+(?:{_CJK})$")


def bare_name(name: str, *, language: str | None = None) -> str:
    """Return the name as people say it: no legal form, no article of English or of `language`."""
    whole = _trimmed(unicodedata.normalize("NFC", name))[:MAX_NAME_CHARACTERS]
    return without_legal_form(_without_article(whole, language))


def without_legal_form(name: str) -> str:
    """Return the name without its legal form, before or behind; an article stays."""
    while (shorter := _without_form(name)) != name:
        name = shorter
    return name


def _without_form(name: str) -> str:
    for pattern in (_AROUND_NAME, _AFTER_NAME, _BEFORE_NAME, _COMPANY):
        left = _trimmed(pattern.sub("", name, count=1))
        if left != name and len(left) >= _LEAST_LEFT and not _is_part(pattern, name, left):
            return left
    return name


def _is_part(pattern: re.Pattern[str], name: str, left: str) -> bool:
    """Return whether what looks like a form belongs to the name: Pizza Company, As Good As New."""
    if pattern is _BEFORE_NAME:
        return name.startswith(("As ", "as "))
    is_one_word = len(left.split()) < _LEAST_LEFT and "," not in name
    return pattern is _COMPANY and is_one_word and _ABBREVIATED.search(name) is None


def _without_article(name: str, language: str | None) -> str:
    primary = (language or "").partition("-")[0].lower()
    articles = "|".join(filter(None, (_ARTICLES[""], _ARTICLES.get(primary, ""))))
    # An article that is elided is part of the word that people say: L'Oréal stays.
    left = re.sub(rf"^(?:{articles})\s+(?=\S{{2}})", "", name, flags=re.IGNORECASE)
    return left if len(left) > _LEAST_LEFT else name


def _trimmed(name: str) -> str:
    """Return the name with single blanks, without surrounding quotes and punctuation."""
    trimmed = " ".join(name.split()).strip(" ,;:|–—-®™©")
    inner = trimmed.strip(_QUOTES)
    return inner if inner and (trimmed[0] in _QUOTES) == (trimmed[-1] in _QUOTES) else trimmed
