"""robots.txt as RFC 9309 and Google's tests define it: who may fetch what, and how slowly.

A parser of our own instead of Protego: that fails 12 of Google's 142 vectors, all in how lines
become groups and names, so that a correction would be a second parser in front of it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property, lru_cache
from string import ascii_letters, digits
from typing import Any, NamedTuple

from ingestion_pipeline.tasks.ended_tasks import http_date, retry_after

MAX_BYTES = 500 * 1024  # RFC 9309, 2.5: what is beyond need not be read
MAX_LINE_CHARACTERS = 2083 * 8  # Google's own limit; the rest of such a line is ignored

_LINE_END = re.compile(r"\r\n|\r|\n")
_STARS = re.compile(r"\*{2,}")
_NAME = re.compile(r"[A-Za-z_-]+")
_WORDS = re.compile(r"[A-Za-z_-]+(?: +[A-Za-z_-]+)+")
_ODD = re.compile(r"%[0-9A-Fa-f]{2}|[^\x00-\x7f]+")
# Quotes are escaped as urls.py does in a query; non-ASCII characters are handled separately.
_SPELT_TWO_WAYS = re.compile(r"%[0-9A-F]{2}|[^A-Za-z0-9\-._~!$&()*+,;=:@/?\x80-\U0010ffff]")
_RESPELT = {chr(code): f"%{code:02X}" for code in range(128)} | {
    f"%{ord(unreserved):02X}": unreserved for unreserved in f"{ascii_letters}{digits}-._~"
}
_PARAMETER = re.compile(r"(\?\*&|[?&])(?=[^*$?&])")
_RATE = re.compile(r"([0-9]{1,6})/([0-9]{1,6})([smhd]?)", re.IGNORECASE)
_UNIT_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_COMPATIBLE = re.compile(r"\(\s*compatible;\s*([A-Za-z_-]+)", re.IGNORECASE)

# Field names as they are found in the wild; Google accepts the same misspellings.
_FIELDS = {
    **dict.fromkeys(("user-agent", "useragent", "user agent"), "agent"),
    **dict.fromkeys(("disallow", "dissallow", "dissalow", "disalow", "diasllow", "disallaw"), "disallow"),
    **dict.fromkeys(("sitemap", "site-map"), "sitemap"),
    **dict.fromkeys(("crawl-delay", "crawldelay", "crawl delay"), "delay"),
    "allow": "allow",
    "request-rate": "rate",
    "content-signal": "signal",
}


@dataclass(frozen=True, slots=True)
class RobotsRule:
    """One `Allow` or `Disallow`; the longest matching pattern decides, and `Allow` on a tie."""

    prefix: str
    parts: tuple[str, ...]
    is_anchored: bool
    is_allowed: bool
    pattern: str

    @classmethod
    def of(cls, pattern: str, *, is_allowed: bool, written: str = "") -> "RobotsRule":
        """Return the rule of a pattern: `*` is anything, a final `$` the end; `written` is shown in its place."""
        prefix, *parts = _STARS.sub("*", pattern.removesuffix("$")).split("*")
        return cls(prefix, tuple(parts), pattern.endswith("$"), is_allowed, written or pattern)

    def __str__(self) -> str:
        return f"{'Allow' if self.is_allowed else 'Disallow'}: {self.pattern}"

    def matches(self, path: str) -> bool:
        """Return whether the path matches the pattern; each part between `*` is searched once."""
        if not path.startswith(self.prefix):
            return False
        if not self.parts:
            return not self.is_anchored or path == self.prefix
        position = len(self.prefix)
        for part in self.parts[:-1]:
            index = path.find(part, position)
            if index < 0:
                return False
            position = index + len(part)
        last = self.parts[-1]
        if self.is_anchored:
            return path.endswith(last) and len(path) - len(last) >= position
        return path.find(last, position) >= 0


@dataclass(frozen=True)
class RobotsGroup:
    """The rules for one agent from every group that names it, the decisive rule first."""

    rules: Sequence[RobotsRule] = ()
    delay_seconds: float | None = None
    signal: str | None = None  # its Content-Signal

    @cached_property
    def plain_rules(self) -> Sequence[RobotsRule]:
        """The rules for a normalised path, the decisive one first."""
        return _decisive_first((_plain(rule.pattern), rule) for rule in self.rules)

    @cached_property
    def cautious_rules(self) -> Sequence[RobotsRule]:
        """The normalised rules, and those that forbid if their first parameter comes later."""
        plain = [(_plain(rule.pattern), rule) for rule in self.rules]
        moved = ((_with_parameter_moved(spelling), rule) for spelling, rule in plain if not rule.is_allowed)
        return _decisive_first([*plain, *(spelling for spelling in moved if spelling[0])])


@dataclass(frozen=True, slots=True, kw_only=True)
class Robots:
    """A parsed robots.txt; an agent that it does not mention may fetch everything."""

    groups: Mapping[str, RobotsGroup]
    sitemaps: Sequence[str] = ()

    def allows(self, user_agent: str, url: str) -> bool:
        """Return whether the agent may fetch the URL, given as it is sent (escaped)."""
        rule = self.decisive_rule(user_agent, url)
        return rule is None or rule.is_allowed

    def decisive_rule(self, user_agent: str, url: str, *, in_any_order: bool = False) -> RobotsRule | None:
        """Return the rule that allows or forbids the URL; None if no rule matches.

        A URL is forbidden if it is forbidden as written or normalised: RFC 9309 compares
        normalised, Google's vectors (`Allow: /%62` does not allow `/b`) as written. `in_any_order`
        is for URLs whose query was sorted, while the site links and forbids its own order.
        """
        group, path = self.group(user_agent), _path(url)
        written = _first_match(group.rules, path)
        if written is not None and not written.is_allowed:
            return written
        rules = group.cautious_rules if in_any_order else group.plain_rules
        plain = _first_match(rules, _plain(path))
        return written if plain is None or plain.is_allowed else plain

    def delay_seconds(self, user_agent: str) -> float | None:
        """Return the crawl delay for the agent; None if there is none."""
        return self.group(user_agent).delay_seconds

    def group(self, user_agent: str) -> RobotsGroup:
        """Return the group of the agent: the one that names it, or the one for all."""
        named = self.groups.get(agent_name(user_agent))
        return named or self.groups.get("*") or RobotsGroup()


ALLOW_ALL = Robots(groups={})
DISALLOW_ALL = Robots(groups={"*": RobotsGroup(rules=[RobotsRule.of("/", is_allowed=False)])})


def robots_allows(robots_txt: str, user_agent: str, url: str) -> bool:
    """Return whether this robots.txt lets the agent fetch the URL."""
    return _read_text(robots_txt).allows(user_agent, url)


def read_robots(body: bytes) -> Robots:
    """Parse a body up to 500 KiB; bytes that are not UTF-8 are preserved."""
    whole = body[:MAX_BYTES]
    if len(body) > MAX_BYTES:  # a cut line could forbid more than the whole one
        whole = whole[: max(whole.rfind(b"\n"), whole.rfind(b"\r")) + 1]
    return _read_text(whole.decode("utf-8", errors="surrogateescape"))


def agent_name(user_agent: str) -> str:
    """Return the product name under which a group may name the agent, in lower case.

    Of a header (`Name/1.0 (+address)`) it is the first product, or where that is Mozilla the one after `compatible;`,
    up to the first character that no product name has: groups are parsed the same way, and `Bot2` must find its own.
    Bare words (`Foo Bar`) are one name that no group can have, as Google's vectors require.
    """
    header = user_agent.strip()
    product, slash, rest = header.partition("/")
    if slash and product.lower() == "mozilla" and (compatible := _COMPATIBLE.search(rest)):
        product = compatible[1]
    match = None if _WORDS.fullmatch(header) else _NAME.match(product)
    return (match[0] if match else product).lower()


@lru_cache(maxsize=8)
def _read_text(text: str) -> Robots:
    text = text.lstrip("\ufeff")
    if text.lstrip()[:1] == "<":  # an HTML page instead: an error page, or the front page
        return ALLOW_ALL
    blocks_by_agent: dict[str, list[_Naming]] = {}
    sitemaps: list[str] = []
    block = _Block()
    is_open = True  # whether another agent line joins the block, rather than starting one
    for name, value in _fields(text):
        if name == "agent":
            block = block if is_open else _Block()
            is_open = True
            _name(blocks_by_agent.setdefault(_agent(value), []), block)
        elif name == "sitemap":
            sitemaps.append(value)
        else:
            is_open = is_open and name in {"delay", "rate", "signal"}
            _add_field(block, name, value)
    blocks_by_agent.pop("", None)
    return Robots(groups=_LazyGroups(blocks_by_agent), sitemaps=tuple(sitemaps))


@dataclass(frozen=True, slots=True)
class _Block:
    """The rules below some agent lines, shared by all the agents that they name."""

    rules: list[RobotsRule] = field(default_factory=list[RobotsRule])
    delays: list[float] = field(default_factory=list[float])
    signals: list[str] = field(default_factory=list[str])


class _Naming(NamedTuple):
    """A block that names an agent, and how many delays it had before, which apply to others."""

    block: _Block
    delays_before: int


class _LazyGroups(Mapping[str, RobotsGroup]):
    """The groups of a file by agent, each built when it is first used.

    Building them all would cost agents times rules: 2,000 lines took 14 seconds and 250 MB.
    """

    def __init__(self, blocks_by_agent: Mapping[str, Sequence[_Naming]]) -> None:
        self._blocks_by_agent = blocks_by_agent
        self._groups: dict[str, RobotsGroup] = {}

    def __getitem__(self, agent: str) -> RobotsGroup:
        if agent not in self._groups:
            self._groups[agent] = _group(self._blocks_by_agent[agent])
        return self._groups[agent]

    def __iter__(self) -> Iterator[str]:
        return iter(self._blocks_by_agent)

    def __len__(self) -> int:
        return len(self._blocks_by_agent)


def _group(namings: Sequence[_Naming]) -> RobotsGroup:
    rules = ((rule.pattern, rule) for naming in namings for rule in naming.block.rules)
    last_delays = (naming.block.delays[naming.delays_before :][-1:] for naming in namings)
    delays = [delay for last in last_delays for delay in last]
    signals = [signal for naming in namings for signal in naming.block.signals]
    return RobotsGroup(_decisive_first(rules), delays[-1] if delays else None, signals[-1] if signals else None)


def _name(namings: list[_Naming], block: _Block) -> None:
    """Add the block to the agent's blocks, once however often it names the agent."""
    if not namings or namings[-1].block is not block:
        namings.append(_Naming(block, len(block.delays)))


def _decisive_first(spelt: Iterable[tuple[str, RobotsRule]]) -> list[RobotsRule]:
    """Return the rules, each in the spelling given: the longest first, `Allow` before its equal."""

    def rank(spelling: tuple[str, RobotsRule]) -> tuple[int, bool]:
        pattern, rule = spelling
        return min(len(pattern), len(rule.pattern)), rule.is_allowed  # an escape is one character

    return [
        rule if pattern == rule.pattern else RobotsRule.of(pattern, is_allowed=rule.is_allowed, written=rule.pattern)
        for pattern, rule in sorted(spelt, key=rank, reverse=True)
    ]


def _first_match(rules: Sequence[RobotsRule], path: str) -> RobotsRule | None:
    return next((rule for rule in rules if rule.matches(path)), None)


def _fields(text: str) -> Iterator[tuple[str, str]]:
    for line in _LINE_END.split(text):
        content = line[:MAX_LINE_CHARACTERS].partition("#")[0].strip()
        name, colon, value = content.partition(":")
        if not colon:
            name, _, value = content.partition(" ")
        if what := _FIELDS.get(name.strip().lower()):
            yield what, value.strip()


def _agent(value: str) -> str:
    if value.split()[:1] == ["*"]:
        return "*"
    match = _NAME.match(value)
    return match[0].lower() if match else ""


def _add_field(block: _Block, name: str, value: str) -> None:
    if not value:
        return
    if name == "signal":
        block.signals.append(value.replace("\0", ""))
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


def _escaped(match: re.Match[str]) -> str:
    """Return escapes in capitals, and non-ASCII characters escaped as they are sent."""
    text = match[0]
    if text.startswith("%"):
        return text.upper()
    return "".join(f"%{byte:02X}" for byte in text.encode("utf-8", errors="surrogateescape"))


def _plain(text: str) -> str:
    """Return the normalised spelling of a pattern or path.

    Characters that need no escape have none (`~`, RFC 9309, 2.2.2), and those a request must escape
    have one: a site writes `?filter[` and we request `?filter%5B`.
    """
    return _SPELT_TWO_WAYS.sub(lambda match: _RESPELT.get(match[0], match[0]), text)


def _with_parameter_moved(pattern: str) -> str:
    """Return the pattern with its first parameter moved behind others, or the reverse; or ""."""
    moved, count = _PARAMETER.subn(lambda at: "?*&" if at[0] == "?" else "?", pattern, count=1)
    return moved if count else ""


def _path(url: str) -> str:
    """Return path and query with escapes in capitals, `/` if empty; fragments are never sent."""
    rest = url if url.startswith("/") and not url.startswith("//") else _after_host(url)
    rest = rest.partition("#")[0]
    if not rest.startswith("/"):
        rest = "/" + rest
    return re.sub("%[0-9A-Fa-f]{2}", lambda escape: escape[0].upper(), rest)


def _after_host(url: str) -> str:
    match = re.match(r"(?:[A-Za-z][A-Za-z0-9+.-]*:)?(?://)?[^/?#]*(.*)", url, re.DOTALL)
    return match[1] if match else ""


MAX_REDIRECTS = 5  # RFC 9309: at least five are followed; beyond them the file counts as absent
LONGEST = timedelta(hours=24)  # RFC 9309: a copy should not be used for longer
SHORTEST = timedelta(minutes=5)  # `no-cache` would double every request to the host
CLOSED_FOR = timedelta(hours=1)  # pause for a host whose robots.txt cannot be read

_MAX_AGE = re.compile(r"(?:^|[\s,])max-age\s*=\s*\"?([0-9]{1,12})", re.IGNORECASE)
_NO_CACHE = re.compile(r"(?:^|[\s,])no-(?:cache|store)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRules:
    """The rules of a host until `expires_at`; if `is_closed`, nothing may be fetched until robots.txt can be read."""

    robots: Robots
    expires_at: datetime
    reason: str
    is_closed: bool = False
    tdm: Sequence[Sequence[str]] = ()  # of its tdmrep.json: location, reservation, policy

    def are_fresh(self, *, now: datetime) -> bool:
        """Return whether the rules still hold; if not, robots.txt is fetched first."""
        return now < self.expires_at


def rules_of_answer(status: int, headers: Mapping[str, str], body: bytes, *, now: datetime) -> HostRules:
    """Return the rules after a response: 2xx is parsed, 4xx allows all, 5xx and 429 close.

    Header names are lower case. A redirect left after `MAX_REDIRECTS` counts as no file. A closed
    host may not be fetched for a while.
    """
    if 200 <= status < 300:  # noqa: PLR2004 - the success class of HTTP
        until = now + lifetime(headers, now=now)
        return HostRules(robots=read_robots(body), expires_at=until, reason="robots.txt was read")
    # 429 means "slower", not "there is no such file": Google closes the host, too.
    if status == 429 or status >= 500 or status < 200:  # noqa: PLR2004
        wait = retry_after(headers.get("retry-after"), now=now)
        return _closed(f"robots.txt answered {status}", wait, now=now)
    return HostRules(
        robots=ALLOW_ALL,
        expires_at=now + lifetime(headers, now=now),
        reason=f"robots.txt answered {status}: there is none",
    )


def rules_when_unreachable(reason: str, *, now: datetime) -> HostRules:
    """Return the rules while robots.txt cannot be fetched at all: nothing may be fetched."""
    return _closed(f"robots.txt could not be fetched: {reason}", None, now=now)


def lifetime(headers: Mapping[str, str], *, now: datetime) -> timedelta:
    """Return how long the headers let a copy be used, from 5 minutes to 24 hours; by default 24."""
    control = headers.get("cache-control", "")
    if _NO_CACHE.search(control):
        return SHORTEST
    if match := _MAX_AGE.search(control):
        return _bounded(timedelta(seconds=min(int(match[1]), 10**6)))
    expires = http_date(headers.get("expires", ""))
    return LONGEST if expires is None else _bounded(expires - now)


def _bounded(duration: timedelta) -> timedelta:
    return min(max(duration, SHORTEST), LONGEST)


def _closed(reason: str, wait: timedelta | None, *, now: datetime) -> HostRules:
    until = now + _bounded(CLOSED_FOR if wait is None else wait)
    return HostRules(robots=DISALLOW_ALL, expires_at=until, reason=reason, is_closed=True)


def as_stored(rules: HostRules, user_agent: str) -> dict[str, Any]:
    """Return the rules for this agent in the form that the host's row stores."""
    group = rules.robots.group(user_agent)
    return {
        "agent": agent_name(user_agent),
        "expires_at": rules.expires_at.isoformat(),
        "reason": rules.reason,
        "is_closed": rules.is_closed,
        "delay_seconds": group.delay_seconds,
        "signal": group.signal,
        "tdm": [list(rule) for rule in rules.tdm],
        # No URL contains a NUL, and PostgreSQL rejects it.
        "rules": [[rule.is_allowed, rule.pattern] for rule in group.rules if "\0" not in rule.pattern],
    }


def from_stored(stored: Mapping[str, Any], user_agent: str) -> HostRules | None:
    """Return the stored rules; None if they are for an agent of another name."""
    if stored["agent"] != agent_name(user_agent):
        return None
    group = RobotsGroup(
        rules=[RobotsRule.of(pattern, is_allowed=is_allowed) for is_allowed, pattern in stored["rules"]],
        delay_seconds=stored["delay_seconds"],
        signal=stored.get("signal"),
    )
    return HostRules(
        robots=Robots(groups={"*": group}),
        expires_at=datetime.fromisoformat(stored["expires_at"]),
        reason=stored["reason"],
        is_closed=stored["is_closed"],
        tdm=stored.get("tdm") or (),
    )
