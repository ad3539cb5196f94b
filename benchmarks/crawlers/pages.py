"""Pages like those of a catalogue or a magazine, the same ones each time: about 43 KB, 110 links.

A link is relative, rooted or absolute, may have a fragment or tracking parameters, and most pages
are linked to several times. The pages of a host are a tree, ten below each, with links across it
and to other hosts: from the front pages all are reached.
"""

import json
import random
from dataclasses import dataclass
from functools import cache
from html import escape

from benchmarks.crawlers.job import host_name

FAN_OUT = 10
WORDS_OF_TEXT = 200_000
ENOUGH = 80  # different pages that one page leads to, if its host has as many
SYLLABLES = "an ar be ca con de di el en er es fi ga in is la le lo ma men mi mo na ne no or pa per"
ENTITIES = ("&amp;", "&nbsp;&mdash; ", "caf&eacute;", "&ldquo;", "&#8217;s", "&lt;", "&copy;", "é")
SECTIONS = ("news", "guides", "courses", "reviews", "people", "archive", "events", "tools")
ELSEWHERE = ("https://www.example.org/share?u=1", "mailto:desk@example.org", "javascript:void(0)")


@dataclass(frozen=True, kw_only=True)
class Site:
    """So many pages, spread evenly over the hosts; `is_small` makes them a fortieth of the size."""

    pages: int
    hosts: int
    is_small: bool = False

    def pages_of(self, host: int) -> int:
        """How many the host has; the first ones have one more if it does not come out even."""
        return self.pages // self.hosts + (host < self.pages % self.hosts)

    def page(self, host: int, number: int) -> bytes:
        """The HTML of a page; page 0 is the host's front page."""
        make = _small_page if self.is_small else _page
        return make(self, host, number).encode()


def path_of(number: int) -> str:
    """Where a page is on its host."""
    if number == 0:
        return "/"
    return f"/{SECTIONS[number % len(SECTIONS)]}/{_words()[number % 500]}-{number}.html"


class _Links:
    """The links of one page: its children, so that none is forgotten, and then others."""

    def __init__(self, site: Site, host: int, number: int, dice: random.Random) -> None:
        self._site, self._host, self._dice = site, host, dice
        self._size = site.pages_of(host)
        first = number * FAN_OUT + 1
        children = list(range(first, min(first + FAN_OUT, self._size)))
        others = [] if site.is_small else dice.sample(range(self._size), min(self._size, ENOUGH))
        self._waiting = others + children

    def next_path(self) -> str:
        """A page of this host."""
        if self._waiting:
            return path_of(self._waiting.pop())
        return path_of(self._dice.randrange(self._size))

    def next(self) -> str:
        """In one of the ways in which pages write links."""
        path, way = self.next_path(), self._dice.random()
        if way < 0.5:
            return path
        if way < 0.65:
            return f"http://{host_name(self._host)}{path}"
        if way < 0.75:
            return f"{path}#part-{self._dice.randrange(9)}"
        if way < 0.83:
            return f"{path}?utm_source=site&amp;utm_medium=card"
        if way < 0.88 and path != "/":
            return f"..{path}"
        return self.abroad()

    def abroad(self) -> str:
        """A page of another host, written in full."""
        host = self._dice.randrange(self._site.hosts)
        number = self._dice.randrange(max(self._site.pages_of(host), 1))
        return f"http://{host_name(host)}{path_of(number)}"


def _page(site: Site, host: int, number: int) -> str:
    dice = random.Random(host * 1_000_003 + number)
    links = _Links(site, host, number, dice)
    cards = "\n".join(_card(links, dice) for _ in range(20))
    story = "\n".join(_paragraph(links, dice) for _ in range(18))
    aside = "\n".join(f'<li><a href="{links.next()}">{_phrase(dice, 4)}</a></li>' for _ in range(12))
    title = _phrase(dice, 6)
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title} &ndash; Bench {host}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="description" content="{_phrase(dice, 20)}">
<link rel="canonical" href="http://{host_name(host)}{path_of(number)}">
<link rel="stylesheet" href="/static/site.css?v=3"><style>{_style()}</style>
<script>window.__state = {_state(dice)};</script></head>
<body class="page page-{number}">
<!-- rendered by the bench -->
<header class="top"><a class="logo" href="/"><svg width="24" height="24" viewBox="0 0 24 24">
<path d="M12 2 2 7l10 5 10-5-10-5zM2 17l10 5 10-5M2 12l10 5 10-5"/></svg>Bench</a>
<nav aria-label="Main"><ul>{_navigation(site, host)}</ul></nav>
<form action="/search" method="get"><input name="q" type="search"><button>Search</button></form>
</header><main id="content">
<p class="crumbs"><a href="/">Home</a> &rsaquo; <a href="#content">Here</a></p><h1>{title}</h1>
<div class="meta"><time datetime="2026-03-{dice.randrange(10, 28)}">March</time>
<span>{dice.randrange(40)} comments</span></div><article>{story}</article>
{_table(dice)}<section class="cards">{cards}</section>
<aside><h2>More</h2><ul>{aside}</ul></aside></main>
<footer><p>{_phrase(dice, 30)}</p>{_elsewhere()}<p>&copy; 2026 Bench</p></footer>
<script>{_script()}</script></body></html>
"""


def _small_page(site: Site, host: int, number: int) -> str:
    dice = random.Random(host * 1_000_003 + number)
    links = _Links(site, host, number, dice)
    listed = "".join(f'<li><a href="{links.next_path()}">Page</a></li>' for _ in range(12))
    return f"<!DOCTYPE html><title>{host}/{number}</title><h1>Number {number}</h1><ul>{listed}</ul>"


def _navigation(site: Site, host: int) -> str:
    size = site.pages_of(host)
    paths = [path_of(number % size) for number in range(1, 17)]
    return "".join(
        f'<li class="item"><a href="{path}" data-track="nav">Part {n}</a></li>' for n, path in enumerate(paths)
    )


def _card(links: _Links, dice: random.Random) -> str:
    link = links.next()
    return f"""<div class="card" data-id="{dice.randrange(10**9)}">
  <a class="cover" href="{link}"><img src="/img/{dice.randrange(999)}.jpg" alt="{_phrase(dice, 3)}"
     width="320" height="180" loading="lazy"></a>
  <h3><a href="{link}">{_phrase(dice, 6)}</a></h3>
  <p class="teaser">{_phrase(dice, 34)}</p>
  <span class="tag tag--{dice.randrange(9)}">{_phrase(dice, 1)}</span>
</div>"""


def _paragraph(links: _Links, dice: random.Random) -> str:
    words = _phrase(dice, 74)
    linked = f'<a href="{links.next()}" title="{_phrase(dice, 3)}">{_phrase(dice, 3)}</a>'
    strong = f"<strong>{_phrase(dice, 2)}</strong>, <em>{_phrase(dice, 2)}</em>"
    again = f'<a href="{links.next()}">{_phrase(dice, 2)}</a>'
    return f"<p>{words} {linked} {dice.choice(ENTITIES)} {strong} {_phrase(dice, 40)} {again}.</p>"


def _table(dice: random.Random) -> str:
    rows = "".join(
        f"<tr><td>{_phrase(dice, 3)}</td><td>{dice.randrange(999)}</td><td>{_phrase(dice, 2)}</td></tr>"
        for _ in range(16)
    )
    return f"<table><thead><tr><th>What</th><th>Seats</th><th>Where</th></tr></thead>{rows}</table>"


def _phrase(dice: random.Random, count: int) -> str:
    start = int(dice.random() * (WORDS_OF_TEXT - count))
    return " ".join(_text()[start : start + count])


def _state(dice: random.Random) -> str:
    """What a front end leaves in a page for itself."""
    entries = [{"id": dice.randrange(10**9), "slug": _phrase(dice, 2), "flags": {"new": n % 2 == 0}} for n in range(40)]
    return json.dumps({"route": "item", "entries": entries})


def _elsewhere() -> str:
    return "".join(f'<a href="{escape(url)}">Elsewhere</a>' for url in ELSEWHERE)


@cache
def _text() -> list[str]:
    """What phrases are cut out of: quicker than to throw dice for each word."""
    return random.Random(11).choices(_words(), k=WORDS_OF_TEXT)


@cache
def _words() -> list[str]:
    dice = random.Random(7)
    syllables = SYLLABLES.split()
    return ["".join(dice.choices(syllables, k=dice.randrange(1, 5))) for _ in range(1_500)]


@cache
def _style() -> str:
    return "\n".join(
        f".c{n} {{ margin: {n}px auto; padding: .{n}rem 1rem; color: #{n * 4321:06x}; display: flex }}"
        for n in range(45)
    )


@cache
def _script() -> str:
    return "\n".join(
        f'document.querySelectorAll(".c{n}").forEach(e => e.addEventListener("click", t{n}));' for n in range(45)
    )
