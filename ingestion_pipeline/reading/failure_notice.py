"""Recognise pages that report a failure of their own site although their status says 200."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

# Whole phrases: single words such as "maintenance" or "error" are taught in courses.
_PHRASES = (
    r"something (?:went|has gone) wrong|(?:an?|some|unexpected|unknown|internal|technical|database"
    r"|application|fatal|server) error(?: (?:has|have))? (?:occurr?ed|happened|prevented)"
    r"|(?:unexpected|unknown|internal|internal server|fatal|database|application) error\b"
    r"|error establishing a|(?:under|(?:down|offline|closed|unavailable) for|scheduled|undergoing)"
    r" maintenance|maintenance (?:mode|page|window|in progress)"
    r"|(?:is|are|be) (?:currently|momentarily) (?:unavailable|offline|down|out of service)"
    r"|temporarily (?:unavailable|out of (?:service|order)|offline|down)"
    r"|service (?:is )?(?:temporarily |currently )?unavailable|bad gateway|gateway time-?out"
    r"|(?:not |un)available (?:right now|at (?:this|the) (?:time|moment))"
    r"|server (?:is )?(?:too )?busy"
    r"|(?:unable to|could not|cannot|can't|couldn't) (?:load|process|connect|complete your)"
    r"|(?:uncaught|unhandled) exception|traceback \(most recent call last\)"
    r"|encountered an? (?:(?:unexpected|unknown|internal) )?(?:problem|error)"
    r"|for the inconvenience|^w?h?oops\b|connection (?:failed|refused|timed out)|request timed out"
    r"|technical (?:difficult(?:y|ies)|problems?|issues?)|too many requests"
    r"|(?:try|check|come) (?:again|back) (?:later|soon|shortly|in a)"
    r"|(?:will|'ll|’ll) be (?:right )?back|(?:could not|cannot|can't) be (?:loaded|displayed)"  # noqa: RUF001
    r"|wartungsarbeiten|wartungsmodus|wegen wartung|fehler (?:ist )?aufgetreten|ging etwas schief"
    r"|etwas ist schiefgelaufen|vorübergehend nicht|(?:zur ?zeit|derzeit|momentan) nicht"
    r" (?:verfügbar|erreichbar)|später (?:noch ?einmal|erneut|wieder)"
    r"|en maintenance|erreur (?:est survenue|s'est produite|interne)"
    r"|(?:momentanément|temporairement|actuellement) indisponible|réessayer plus tard"
    r"|en mantenimiento|(?:ha ocurrido|se ha producido|se produjo) un error"
    r"|algo (?:salió|ha ido) mal"
    r"|temporalmente (?:no disponible|fuera de servicio)|int[ée]nt\w{1,6} (?:de nuevo|más tarde)"
    r"|in manutenzione|si è verificato un errore|temporaneamente non disponibile|riprova più tardi"
    r"|em manutenção|ocorreu um erro|temporariamente indisponível|algo deu errado"
    r"|in onderhoud|er is iets (?:mis|fout)gegaan|tijdelijk niet beschikbaar"
)
_MOST_CHARACTERS = 20_000  # such a notice stands at the top of a page with little other text


def failure_notice(text: str) -> str | None:
    """Return the phrase with which a page's text reports a failure of its site; None if none."""
    match = _phrases().search(" ".join(text[:_MOST_CHARACTERS].lower().split()))
    return match[0] if match else None


@cache
def _phrases() -> Any:  # noqa: ANN401 - re2 has no types
    """Compile on first use, and with re2: it takes one pass, whatever the text."""
    re2: Any = import_module("re2")
    return re2.compile(_PHRASES)
