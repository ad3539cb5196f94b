"""A heat map of how fresh sources are: sources against the intervals since their last success.

A few sources have a row each; many are grouped by kind and tier, so that the picture stays small.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from io import BytesIO
from typing import Any

from ingestion_pipeline.extras import is_installed
from ingestion_pipeline.operations.health import SourceFacts
from ingestion_pipeline.sources.health import UNHEALTHY, Health

MOST_ROWS = 25  # more sources than this are grouped
LIMITS = (1.0, 2.0, 3.0, 5.0, 10.0)  # intervals since the last success; the fourth is stale
COLUMNS = ("≤ 1", "≤ 2", "≤ 3", "≤ 5", "≤ 10", "> 10", "never", "not yet")
NEVER, NOT_YET = len(COLUMNS) - 2, len(COLUMNS) - 1  # failed so far, and not tried yet
GREY = (0.6, 0.6, 0.6)
LEGEND = (("fresh", 0), ("stale", 4), ("tried, never read", NEVER), ("not read yet", NOT_YET))
NAME_CHARS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The number of sources per cell; `names` label the rows, `COLUMNS` the columns."""

    names: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    is_gathered: bool


def freshness(statuses: Sequence[SourceFacts], *, now: datetime) -> Grid:
    """Return the grid of all sources that are polled; those switched off are left out."""
    polled = [status for status in statuses if status.health is not Health.OFF]
    is_gathered = len(polled) > MOST_ROWS
    cells: Counter[tuple[str, int]] = Counter()
    order: dict[str, None] = {}
    for status in polled:
        name = _group(status) if is_gathered else status.facts.id
        order[name] = None
        cells[name, column_of(status, now)] += 1
    names = tuple(sorted(order) if is_gathered else order)
    counts = tuple(tuple(cells[name, column] for column in range(len(COLUMNS))) for name in names)
    return Grid(names=names, counts=counts, is_gathered=is_gathered)


def _group(status: SourceFacts) -> str:
    return f"{status.facts.kind.value} {status.facts.tier.value}"


def column_of(status: SourceFacts, now: datetime) -> int:
    """Return the column by the number of intervals since the last success."""
    if status.facts.last_success_at is None:
        is_in_vain = status.facts.failure_count > 0 or status.health in UNHEALTHY
        return NEVER if is_in_vain else NOT_YET
    return bisect_left(LIMITS, (now - status.facts.last_success_at) / status.facts.interval)


def freshness_picture(grid: Grid) -> bytes:
    """Return a PNG of the grid, nothing without the extra `plots`; raise ValueError if there is nothing to draw."""
    if not grid.names:
        raise ValueError("there is no source to draw")
    if not is_installed("matplotlib"):
        return b""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(7.5, 1.25 + 0.24 * len(grid.names)), dpi=80, layout="constrained")
    axes: Any = figure.subplots()
    most = max(max(row) for row in grid.counts)
    strength = PowerNorm(0.35, vmin=0, vmax=max(most, 1))  # one among thousands must be visible
    _label(axes, grid)
    _legend(figure)
    for y, row in enumerate(grid.counts):
        for x, count in enumerate(row):
            alpha = 0.4 + 0.6 * float(strength(count)) if count else 0.12
            _cell(axes, x, y, f"{count:,}" if count and grid.is_gathered else "", alpha)
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    return _small_png(canvas.get_width_height(), bytes(canvas.buffer_rgba()))


def _small_png(size: tuple[int, int], pixels: bytes) -> bytes:
    """Return a PNG of few colours: Dagster stores one every five minutes."""
    from PIL import Image

    out = BytesIO()
    image = Image.frombuffer("RGBA", size, pixels).convert("RGB").quantize(64)
    image.save(out, format="PNG", optimize=True)
    return out.getvalue()


def _cell(axes: Any, x: int, y: int, text: str, alpha: float) -> None:  # noqa: ANN401
    from matplotlib.patches import Rectangle

    place, colour = (x - 0.48, y - 0.45), colour_of(x)
    axes.add_patch(Rectangle(place, 0.96, 0.9, facecolor=colour, alpha=alpha, linewidth=0))
    if text:
        axes.text(x, y, text, ha="center", va="center", fontsize=8)


def colour_of(column: int) -> tuple[float, float, float]:
    """Return the colour: green to red, grey for what was not read yet."""
    from matplotlib import colormaps

    if column == NOT_YET:
        return GREY
    shade = 0.12 + 0.76 * column / NEVER  # the ends of the map are too dark to read on
    red, green, blue, _ = colormaps["RdYlGn_r"](shade)
    return red, green, blue


def _legend(figure: Any) -> None:  # noqa: ANN401
    from matplotlib.patches import Patch

    marks = [Patch(facecolor=colour_of(column), label=label) for label, column in LEGEND]
    place = {"loc": "outside lower center", "ncols": len(marks)}
    figure.legend(handles=marks, fontsize=7, frameon=False, **place)


def _label(axes: Any, grid: Grid) -> None:  # noqa: ANN401
    axes.set_xlim(-0.5, len(COLUMNS) - 0.5)
    axes.set_ylim(len(grid.names) - 0.5, -0.5)
    axes.set_xticks(range(len(COLUMNS)), COLUMNS, fontsize=8)
    axes.set_yticks(range(len(grid.names)), [_short_name(name) for name in grid.names], fontsize=8)
    axes.set_xlabel("intervals since the last success", fontsize=8)
    of = "sources by kind and tier" if grid.is_gathered else "sources"
    axes.set_title(f"freshness of {of}", fontsize=9)
    axes.tick_params(length=0)
    for side in ("top", "right", "bottom", "left"):
        axes.spines[side].set_visible(False)


def _short_name(name: str) -> str:
    return name if len(name) <= NAME_CHARS else name[: NAME_CHARS - 1] + "…"
