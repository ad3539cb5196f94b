"""robots.txt as RFC 9309 and Google's own tests read it: who may fetch what, and how slowly.

An own reader, not Protego: that misses 12 of Google's 142 vectors, all of them in how lines become
groups and names, so that a correction would be a second parser in front of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property, lru_cache
from string import ascii_letters, digits
from typing import Any, NamedTuple

from ingestion_pipeline.tasks.retry import http_date, retry_after

MAX_BYTES = 500 * 1024  # RFC 9309, 2.5: what is beyond need not be read
MAX_LINE_CHARACTERS = 2083 * 8  # Google's own limit; the rest of such a line is ignored

_LINE_END = re.compile(r"\r\n|\r|\n")
_STARS = re.compile(r"\*{2,}")
_NAME = re.compile(r"[A-Za-z_-]+")
_WORDS = re.compile(r"[A-Za-z_-]+(?: +[A-Za-z_-]+)+")
_ODD = re.compile(r"%[0-9A-Fa-f]{2}|[^\x00-\x7f]+")
# Quotes are escaped as urls.py does in a query; what is not ASCII is no matter of spelling here.
_SPELT_TWO_WAYS = re.compile(r"%[0-9A-F]{2}|[^A-Za-z0-9\-._~!$&()*+,;=:@/?\x80-\U0010ffff]")
_RESPELT = {chr(code): f"%{code:02X}" for code in range(128)} | {
    f"%{ord(unreserved):02X}": unreserved for unreserved in f"{ascii_letters}{digits}-._~"
}
_PARAMETER = re.compile(r"(\?\*&|[?&])(?=[^*$?&])")
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
class RobotsRule:
    """One `Allow` or `Disallow`; the longest pattern that matches decides, and `Allow` on a tie."""

    prefix: str
    pieces: tuple[str, ...]
    is_anchored: bool
    is_allowed: bool
    pattern: str

    @classmethod
    def of(cls, pattern: str, *, is_allowed: bool, written: str = "") -> RobotsRule:
        """The rule that the pattern writes: `*` is anything, `$` at its end the end.

        It shows itself as it was `written`, if that is not how it is matched.
        """
        prefix, *pieces = _STARS.sub("*", pattern.removesuffix("$")).split("*")
        return cls(prefix, tuple(pieces), pattern.endswith("$"), is_allowed, written or pattern)

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


@dataclass(frozen=True)
class RobotsGroup:
    """What one agent is told, gathered from every group that names it; the decisive rule first."""

    rules: Sequence[RobotsRule] = ()
    delay_seconds: float | None = None

    @cached_property
    def plain_rules(self) -> Sequence[RobotsRule]:
        """The rules for a plain path, the decisive one first."""
        return _decisive_first((_plain(rule.pattern), rule) for rule in self.rules)

    @cached_property
    def cautious_rules(self) -> Sequence[RobotsRule]:
        """The plain rules, and what they forbid if the first parameter they name comes later."""
        plain = [(_plain(rule.pattern), rule) for rule in self.rules]
        moved = ((_with_parameter_moved(one), rule) for one, rule in plain if not rule.is_allowed)
        return _decisive_first([*plain, *(one for one in moved if one[0])])


@dataclass(frozen=True, slots=True, kw_only=True)
class Robots:
    """A robots.txt that was read; one without a word for an agent allows it everything."""

    groups: Mapping[str, RobotsGroup]
    sitemaps: Sequence[str] = ()

    def allows(self, user_agent: str, url: str) -> bool:
        """Whether the agent may fetch the URL, given as it goes on the wire (escaped)."""
        rule = self.decisive_rule(user_agent, url)
        return rule is None or rule.is_allowed

    def decisive_rule(
        self, user_agent: str, url: str, *, in_any_order: bool = False
    ) -> RobotsRule | None:
        """The rule that allows or forbids the URL; None where nothing is said of it.

        What is forbidden as it is written or in plain spelling is forbidden: RFC 9309 compares
        plainly, Google's vectors (`Allow: /%62` does not allow `/b`) as written. `in_any_order` is
        for URLs whose query was sorted: the site links, and forbids, it in an order of its own.
        """
        group, path = self.group(user_agent), _path(url)
        written = _first_match(group.rules, path)
        if written is not None and not written.is_allowed:
            return written
        rules = group.cautious_rules if in_any_order else group.plain_rules
        plain = _first_match(rules, _plain(path))
        return written if plain is None or plain.is_allowed else plain

    def delay_seconds(self, user_agent: str) -> float | None:
        """The pause between two requests that the agent is asked for, if any."""
        return self.group(user_agent).delay_seconds

    def group(self, user_agent: str) -> RobotsGroup:
        """What the agent is told, by its name or with all others."""
        named = self.groups.get(agent_name(user_agent))
        return named or self.groups.get("*") or RobotsGroup()


ALLOW_ALL = Robots(groups={})
DISALLOW_ALL = Robots(groups={"*": RobotsGroup(rules=[RobotsRule.of("/", is_allowed=False)])})


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

    Of a header (`Name/1.0 (+address)`) it is the one it begins with, or, where that is Mozilla, the
    one after `compatible;`, up to the first character that no product name has: groups are read so,
    too, and `Bot2` is to find its own. Bare words (`Foo Bar`) are one name that no group can have:
    so Google's vectors want it.
    """
    said = user_agent.strip()
    product, slash, rest = said.partition("/")
    if slash and product.lower() == "mozilla" and (compatible := _COMPATIBLE.search(rest)):
        product = compatible[1]
    found = None if _WORDS.fullmatch(said) else _NAME.match(product)
    return (found[0] if found else product).lower()


@lru_cache(maxsize=8)
def _read_text(text: str) -> Robots:
    text = text.lstrip("\ufeff")
    if text.lstrip()[:1] == "<":  # a web page in its place: an error page, or the front page
        return ALLOW_ALL
    told: dict[str, list[_Naming]] = {}
    sitemaps: list[str] = []
    block = _Block()
    is_open = True  # whether another agent line joins the block, rather than starting one
    for name, value in _fields(text):
        if name == "agent":
            block = block if is_open else _Block()
            is_open = True
            _name(told.setdefault(_agent(value), []), block)
        elif name == "sitemap":
            sitemaps.append(value)
        else:
            is_open = is_open and name in {"delay", "rate"}
            _tell(block, name, value)
    told.pop("", None)
    return Robots(groups=_Gathered(told), sitemaps=tuple(sitemaps))


@dataclass(frozen=True, slots=True)
class _Block:
    """What stands below some agent lines, held once for all the agents that they name."""

    rules: list[RobotsRule] = field(default_factory=list[RobotsRule])
    delays: list[float] = field(default_factory=list[float])


class _Naming(NamedTuple):
    """That a block names an agent, and how many delays it had told before: those were others'."""

    block: _Block
    delays_before: int


class _Gathered(Mapping[str, RobotsGroup]):
    """The groups of a file by agent, each gathered when it is first asked for.

    To gather them all would cost agents times rules: 2,000 lines took 14 seconds and 250 MB.
    """

    def __init__(self, told: Mapping[str, Sequence[_Naming]]) -> None:
        self._told = told
        self._groups: dict[str, RobotsGroup] = {}

    def __getitem__(self, agent: str) -> RobotsGroup:
        if agent not in self._groups:
            self._groups[agent] = _group(self._told[agent])
        return self._groups[agent]

    def __iter__(self) -> Iterator[str]:
        return iter(self._told)

    def __len__(self) -> int:
        return len(self._told)


def _group(namings: Sequence[_Naming]) -> RobotsGroup:
    rules = ((rule.pattern, rule) for naming in namings for rule in naming.block.rules)
    told = (naming.block.delays[naming.delays_before :][-1:] for naming in namings)
    delays = [delay for last in told for delay in last]
    return RobotsGroup(_decisive_first(rules), delays[-1] if delays else None)


def _name(namings: list[_Naming], block: _Block) -> None:
    """The block names the agent, once however often it does."""
    if not namings or namings[-1].block is not block:
        namings.append(_Naming(block, len(block.delays)))


def _decisive_first(spelt: Iterable[tuple[str, RobotsRule]]) -> list[RobotsRule]:
    """The rules, each in the spelling beside it: the longest first, `Allow` before its equal."""

    def rank(one: tuple[str, RobotsRule]) -> tuple[int, bool]:
        pattern, rule = one
        return min(len(pattern), len(rule.pattern)), rule.is_allowed  # an escape is one character

    return [
        rule
        if pattern == rule.pattern
        else RobotsRule.of(pattern, is_allowed=rule.is_allowed, written=rule.pattern)
        for pattern, rule in sorted(spelt, key=rank, reverse=True)
    ]


def _first_match(rules: Sequence[RobotsRule], path: str) -> RobotsRule | None:
    return next((rule for rule in rules if rule.matches(path)), None)


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


def _tell(block: _Block, name: str, value: str) -> None:
    if not value:
        return
    if name in {"delay", "rate"}:
        if seconds := _delay(name, value):
            block.delays.append(seconds)
        return
    pattern = _ODD.sub(_escaped, value)
    block.rules.append(RobotsRule.of(pattern, is_allowed=name == "allow"))
    if name == "allow" and pattern.endswith("/index.html"):
        folder = pattern.removesuffix("index.html") + "$"
        block.rules.append(RobotsRule.of(folder, is_allowed=True))


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


def _plain(text: str) -> str:
    """A pattern or path in the one spelling that all of its spellings share.

    What needs no escape has none (`~`, RFC 9309, 2.2.2), and what a request must escape has one: a
    site writes `?filter[` and we ask for `?filter%5B`.
    """
    return _SPELT_TWO_WAYS.sub(lambda found: _RESPELT.get(found[0], found[0]), text)


def _with_parameter_moved(pattern: str) -> str:
    """The pattern with the first parameter it names moved behind others, or the reverse; or ""."""
    moved, count = _PARAMETER.subn(lambda at: "?*&" if at[0] == "?" else "?", pattern, count=1)
    return moved if count else ""


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


MAX_REDIRECTS = 5  # RFC 9309: at least five are followed; beyond them the file counts as absent
LONGEST = timedelta(hours=24)  # RFC 9309: a copy should not be used for longer
SHORTEST = timedelta(minutes=5)  # `no-cache` would double every request to the host
CLOSED_FOR = timedelta(hours=1)  # how long a host that cannot say its rules is left alone

_MAX_AGE = re.compile(r"(?:^|[\s,])max-age\s*=\s*\"?([0-9]{1,12})", re.IGNORECASE)
_NO_CACHE = re.compile(r"(?:^|[\s,])no-(?:cache|store)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRules:
    """What a host allows until `expires_at`; `reason` says where that comes from.

    One that `is_closed` could not say its rules: nothing may be fetched until it can.
    """

    robots: Robots
    expires_at: datetime
    reason: str
    is_closed: bool = False

    def are_fresh(self, *, now: datetime) -> bool:
        """Whether the rules still hold; if not, robots.txt is fetched before anything else."""
        return now < self.expires_at


def rules_of_answer(
    status: int, headers: Mapping[str, str], body: bytes, *, now: datetime
) -> HostRules:
    """The rules after an answer: 2xx is read, 4xx allows all, 5xx and 429 close the host a while.

    Header names are lower case. A redirect that is left after `MAX_REDIRECTS` is as good as absent.
    """
    if 200 <= status < 300:  # noqa: PLR2004 - the success class of HTTP
        until = now + lifetime(headers, now=now)
        return HostRules(robots=read_robots(body), expires_at=until, reason="robots.txt was read")
    # 429 is a 4xx that says "slower", not "there is no such file": Google closes the host, too.
    if status == 429 or status >= 500 or status < 200:  # noqa: PLR2004
        wait = retry_after(headers.get("retry-after"), now=now, longest=LONGEST)
        return _closed(f"robots.txt answered {status}", wait, now=now)
    return HostRules(
        robots=ALLOW_ALL,
        expires_at=now + lifetime(headers, now=now),
        reason=f"robots.txt answered {status}: there is none",
    )


def rules_when_unreachable(reason: str, *, now: datetime) -> HostRules:
    """The rules while robots.txt cannot be fetched at all: nothing may be, for a while."""
    return _closed(f"robots.txt could not be fetched: {reason}", None, now=now)


def lifetime(headers: Mapping[str, str], *, now: datetime) -> timedelta:
    """How long the headers let a copy be used, between 5 minutes and 24 hours; by default 24."""
    control = headers.get("cache-control", "")
    if _NO_CACHE.search(control):
        return SHORTEST
    if found := _MAX_AGE.search(control):
        return _bounded(timedelta(seconds=min(int(found[1]), 10**6)))
    expires = http_date(headers.get("expires", ""))
    return LONGEST if expires is None else _bounded(expires - now)


def _bounded(wanted: timedelta) -> timedelta:
    return min(max(wanted, SHORTEST), LONGEST)


def _closed(reason: str, wait: timedelta | None, *, now: datetime) -> HostRules:
    until = now + _bounded(CLOSED_FOR if wait is None else wait)
    return HostRules(robots=DISALLOW_ALL, expires_at=until, reason=reason, is_closed=True)


def as_stored(rules: HostRules, user_agent: str) -> dict[str, Any]:
    """The rules as a host's row keeps them: only what this agent is told."""
    told = rules.robots.group(user_agent)
    return {
        "agent": agent_name(user_agent),
        "expires_at": rules.expires_at.isoformat(),
        "reason": rules.reason,
        "is_closed": rules.is_closed,
        "delay_seconds": told.delay_seconds,
        # No URL holds a NUL, and PostgreSQL takes none.
        "rules": [[one.is_allowed, one.pattern] for one in told.rules if "\0" not in one.pattern],
    }


def from_stored(stored: Mapping[str, Any], user_agent: str) -> HostRules | None:
    """The rules again; None if they were told to an agent of another name."""
    if stored["agent"] != agent_name(user_agent):
        return None
    told = RobotsGroup(
        rules=[
            RobotsRule.of(pattern, is_allowed=is_allowed) for is_allowed, pattern in stored["rules"]
        ],
        delay_seconds=stored["delay_seconds"],
    )
    return HostRules(
        robots=Robots(groups={"*": told}),
        expires_at=datetime.fromisoformat(stored["expires_at"]),
        reason=stored["reason"],
        is_closed=stored["is_closed"],
    )
