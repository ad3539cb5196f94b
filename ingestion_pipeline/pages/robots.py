"""robots.txt as RFC 9309 and Google's own tests read it: who may fetch what, and how slowly.

An own reader, not Protego: that misses 12 of Google's 142 vectors, all of them in how lines become
groups and names, so that a correction would be a second parser in front of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

MAX_BYTES = 500 * 1024  # RFC 9309, 2.5: what is beyond need not be read
MAX_LINE_CHARACTERS = 2083 * 8  # Google's own limit; the rest of such a line is ignored

_LINE_END = re.compile(r"\r\n|\r|\n")
_STARS = re.compile(r"\*{2,}")
_NAME = re.compile(r"[A-Za-z_-]+")
_ODD = re.compile(r"%[0-9A-Fa-f]{2}|[^\x00-\x7f]+")
_RATE = re.compile(r"([0-9]{1,6})/([0-9]{1,6})([smhd]?)", re.IGNORECASE)
_UNIT_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_COMPATIBLE = re.compile(r"\(\s*compatible;\s*([A-Za-z_-]+)", re.IGNORECASE)

# Field names as they are found in the wild; Google accepts the same misspellings.
_AGENT = ("user-agent", "useragent", "user agent")
_DISALLOW = ("disallow", "dissallow", "dissalow", "disalow", "diasllow", "disallaw")
_SITEMAP = ("sitemap", "site-map")
_DELAY = ("crawl-delay", "crawldelay", "crawl delay")
_FIELDS = {
    **dict.fromkeys(_AGENT, "agent"),
    **dict.fromkeys(_DISALLOW, "disallow"),
    **dict.fromkeys(_SITEMAP, "sitemap"),
    **dict.fromkeys(_DELAY, "delay"),
    "allow": "allow",
    "request-rate": "rate",
}


@dataclass(frozen=True, slots=True)
class Rule:
    """One `Allow` or `Disallow`; the longest pattern that matches decides, and `Allow` on a tie."""

    prefix: str
    pieces: tuple[str, ...]
    is_anchored: bool
    is_allowed: bool
    pattern: str

    @classmethod
    def of(cls, pattern: str, *, is_allowed: bool) -> Rule:
        """The rule that the pattern writes: `*` is anything, `$` at its end the end."""
        prefix, *pieces = _STARS.sub("*", pattern.removesuffix("$")).split("*")
        return cls(prefix, tuple(pieces), pattern.endswith("$"), is_allowed, pattern)

    def __str__(self) -> str:
        return f"{'Allow' if self.is_allowed else 'Disallow'}: {self.pattern}"

    def matches(self, path: str) -> bool:
        """Whether the path begins like the pattern; each piece between `*` is sought once."""
        if not path.startswith(self.prefix):
            return False
        if not self.pieces:
            return not self.is_anchored or path == self.prefix
        position = len(self.prefix)
        for piece in self.pieces[:-1]:
            found = path.find(piece, position)
            if found < 0:
                return False
            position = found + len(piece)
        last = self.pieces[-1]
        if self.is_anchored:
            return path.endswith(last) and len(path) - len(last) >= position
        return path.find(last, position) >= 0


@dataclass(slots=True)
class Group:
    """What one agent is told, gathered from every group that names it; the decisive rule first."""

    rules: list[Rule] = field(default_factory=list[Rule])
    delay_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Robots:
    """A robots.txt that was read; one without a word for an agent allows it everything."""

    groups: Mapping[str, Group]
    sitemaps: Sequence[str] = ()

    def allows(self, user_agent: str, url: str) -> bool:
        """Whether the agent may fetch the URL, given as it goes on the wire (escaped)."""
        rule = self.decisive_rule(user_agent, url)
        return rule is None or rule.is_allowed

    def decisive_rule(self, user_agent: str, url: str) -> Rule | None:
        """The rule that allows or forbids the URL; None where nothing is said of it."""
        path = _path(url)
        return next((rule for rule in self.group(user_agent).rules if rule.matches(path)), None)

    def delay_seconds(self, user_agent: str) -> float | None:
        """The pause between two requests that the agent is asked for, if any."""
        return self.group(user_agent).delay_seconds

    def group(self, user_agent: str) -> Group:
        """What the agent is told, by its name or with all others."""
        named = self.groups.get(agent_name(user_agent))
        return named or self.groups.get("*") or Group()


ALLOW_ALL = Robots(groups={})
DISALLOW_ALL = Robots(groups={"*": Group(rules=[Rule.of("/", is_allowed=False)])})


def robots_allows(robots_txt: str, user_agent: str, url: str) -> bool:
    """Whether this robots.txt lets the agent fetch the URL."""
    return _read_text(robots_txt).allows(user_agent, url)


def read_robots(body: bytes) -> Robots:
    """What a body says, up to 500 KiB; bytes that are no UTF-8 stay what they are."""
    whole = body[:MAX_BYTES]
    if len(body) > MAX_BYTES:  # half a line could forbid more than the whole one
        whole = whole[: max(whole.rfind(b"\n"), whole.rfind(b"\r")) + 1]
    return _read_text(whole.decode("utf-8", errors="surrogateescape"))


def agent_name(user_agent: str) -> str:
    """The product name by which a group may call the agent, in lower case.

    Of a header (`Name/1.0 (+address)`) it is the name before the slash, or, where that is Mozilla,
    the one after `compatible;`. Anything else is taken whole.
    """
    product, slash, rest = user_agent.strip().partition("/")
    if slash and product.lower() == "mozilla" and (found := _COMPATIBLE.search(rest)):
        product = found[1]
    return product.lower()


@lru_cache(maxsize=8)
def _read_text(text: str) -> Robots:
    text = text.lstrip("\ufeff")
    if text.lstrip()[:1] == "<":  # a web page in its place: an error page, or the front page
        return ALLOW_ALL
    groups: dict[str, Group] = {}
    sitemaps: list[str] = []
    current: list[Group] = []
    is_open = True  # whether another agent line joins the group, rather than starting one
    for name, value in _fields(text):
        if name == "agent":
            current = current if is_open else []
            is_open = True
            current.append(groups.setdefault(_agent(value), Group()))
        elif name == "sitemap":
            sitemaps.append(value)
        else:
            is_open = is_open and name in {"delay", "rate"}
            _tell(current, name, value)
    groups.pop("", None)
    for group in groups.values():
        group.rules.sort(key=lambda rule: (len(rule.pattern), rule.is_allowed), reverse=True)
    return Robots(groups=groups, sitemaps=tuple(sitemaps))


def _fields(text: str) -> Iterator[tuple[str, str]]:
    """The lines that mean something, as (what, value)."""
    for line in _LINE_END.split(text):
        said = line[:MAX_LINE_CHARACTERS].partition("#")[0].strip()
        name, colon, value = said.partition(":")
        if not colon:
            name, _, value = said.partition(" ")
        if what := _FIELDS.get(name.strip().lower()):
            yield what, value.strip()


def _agent(value: str) -> str:
    if value.split()[:1] == ["*"]:
        return "*"
    found = _NAME.match(value)
    return found[0].lower() if found else ""


def _tell(groups: Sequence[Group], name: str, value: str) -> None:
    if not value:
        return
    for group in groups:
        if name in {"delay", "rate"}:
            group.delay_seconds = _delay(name, value) or group.delay_seconds
            continue
        pattern = _ODD.sub(_escaped, value)
        group.rules.append(Rule.of(pattern, is_allowed=name == "allow"))
        if name == "allow" and pattern.endswith("/index.html"):
            folder = pattern.removesuffix("index.html") + "$"
            group.rules.append(Rule.of(folder, is_allowed=True))


def _delay(name: str, value: str) -> float | None:
    if name == "delay":
        number = re.fullmatch(r"[0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9}", value)
        return float(number[0]) if number else None
    rate = _RATE.match(value)
    if rate is None or int(rate[1]) == 0:
        return None
    return int(rate[2]) * _UNIT_SECONDS[rate[3].lower()] / int(rate[1])


def _escaped(found: re.Match[str]) -> str:
    """Escapes in capitals, and what is not ASCII escaped, as it is on the wire."""
    text = found[0]
    if text.startswith("%"):
        return text.upper()
    return "".join(f"%{byte:02X}" for byte in text.encode("utf-8", errors="surrogateescape"))


def _path(url: str) -> str:
    """Path and query with escapes in capitals, `/` if there is none; a fragment is never sent."""
    rest = url if url.startswith("/") and not url.startswith("//") else _after_host(url)
    rest = rest.partition("#")[0]
    if not rest.startswith("/"):
        rest = "/" + rest
    return re.sub("%[0-9A-Fa-f]{2}", lambda escape: escape[0].upper(), rest)


def _after_host(url: str) -> str:
    found = re.match(r"(?:[A-Za-z][A-Za-z0-9+.-]*:)?(?://)?[^/?#]*(.*)", url, re.DOTALL)
    return found[1] if found else ""
