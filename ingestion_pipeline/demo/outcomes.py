"""What students of Harbour College learn, in prose: two pages that only a model can read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from ingestion_pipeline.demo.content import DemoContent, plain
from ingestion_pipeline.demo.markup import html_page

OUTCOMES_PATH = "/outcomes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Programme:
    """A page of outcomes: each learned thing stands word for word in one of its paragraphs."""

    name: str
    title: str
    paragraphs: Sequence[str]
    learned: Sequence[str]

    @property
    def path(self) -> str:
        """Where its page is."""
        return f"{OUTCOMES_PATH}/{self.name}"


NAVIGATION = Programme(
    name="navigation",
    title="What navigators of Harbour College can do",
    paragraphs=(
        "Whoever finishes the programme can plot a course on a paper chart, by day and by night,"
        " and will correct a magnetic compass for variation and deviation before relying on it.",
        "On the last voyage they fix the ship's position from three star sights, without help.",
    ),
    learned=(
        "plot a course on a paper chart",
        "correct a magnetic compass for variation and deviation",
        "fix the ship's position from three star sights",
    ),
)
TIDAL_BIOLOGY = Programme(
    name="tidal-biology",
    title="What students of the tidal flat take home",
    paragraphs=(
        "After six field days everybody can name the wading birds of the flat by their calls.",
        "Back in the laboratory they estimate the density of lugworms from random samples, and"
        " say how far the estimate may be wrong.",
    ),
    learned=(
        "name the wading birds of the flat by their calls",
        "estimate the density of lugworms from random samples",
    ),
)
PROGRAMMES = (NAVIGATION, TIDAL_BIOLOGY)


def outcomes(path: str, *, footer: str) -> DemoContent:
    """The list of the pages, or one of them."""
    if path == OUTCOMES_PATH:
        rows = "".join(
            f'<li class="outcomes"><a href="{one.path}">{escape(one.title)}</a></li>'
            for one in PROGRAMMES
        )
        return html_page("Outcomes", f"<h1>Outcomes</h1><ul>{rows}</ul>", footer=footer)
    found = {one.path: one for one in PROGRAMMES}.get(path)
    if found is None:
        return plain(404, "Not Found")
    paragraphs = "".join(f"<p>{escape(one)}</p>" for one in found.paragraphs)
    title = escape(found.title)
    return html_page(title, f"<h1>{title}</h1>{paragraphs}", footer=footer)
