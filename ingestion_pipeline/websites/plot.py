"""Plot of a business' visibility: over time, and against its competitors."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from io import BytesIO
from typing import Any

from ingestion_pipeline.websites.reporting import RankedDay

Axes = Any  # matplotlib's own annotations are partial

LEAST_DAYS = 6  # between the ends of the plot
MOST_LINES = 6  # more could not be distinguished
MOST_BARS = 8
MOST_NAME_CHARS = 24


def visibility_picture(name: str, history: Sequence[RankedDay]) -> bytes:
    """Return a PNG of both plots; raise ValueError if there is no day to draw.

    Names are drawn literally, neither as mathematics nor as markup.
    """
    if not history:
        raise ValueError("there is no ranking to draw")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(9, 3.2), dpi=80, layout="constrained")
    over_time, against = figure.subplots(1, 2)
    _draw_time(over_time, history)
    _draw_competitors(against, name, history[-1])
    out = BytesIO()
    canvas: Any = FigureCanvasAgg(figure)
    with warnings.catch_warnings():
        # A script that the font lacks is drawn as boxes; the table beside the picture has it.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font", category=UserWarning)
        canvas.print_png(out)
    return out.getvalue()


def _draw_time(axes: Axes, history: Sequence[RankedDay]) -> None:
    days: list[Any] = [ranked.day for ranked in history]
    axes.plot(days, [100 * ranked.visibility for ranked in history], "k.-", label="all", linewidth=2)
    names = list(dict.fromkeys(name for ranked in history for name in ranked.by_provider))
    for name in names[:MOST_LINES]:
        shares = [_percent(ranked.by_provider, name) for ranked in history]
        axes.plot(days, shares, ".-", label=_display_name(name), alpha=0.7)
    axes.set_title("visible in % of answers", fontsize=9, parse_math=False)
    axes.set_ylim(-5, 105)
    axes.set_xlim(*shown_days(history))
    axes.tick_params(labelsize=7)
    axes.tick_params(axis="x", labelrotation=30)
    axes.legend(fontsize=7)


def shown_days(history: Sequence[RankedDay]) -> tuple[date, date]:
    """Return the first and last day of the plot: a week or more, since one day would span years."""
    first, last = history[0].day, history[-1].day
    missing = max(LEAST_DAYS - (last - first).days, 0)
    before = missing // 2
    return first - timedelta(days=before), last + timedelta(days=missing - before)


def _percent(by_name: Mapping[str, Mapping[str, Any]], name: str) -> float:
    """Return the visibility in percent; NaN, which is not drawn, where there is none."""
    visibility = by_name.get(name)
    return float("nan") if visibility is None else 100 * float(visibility["visibility"])


def _draw_competitors(axes: Axes, name: str, last: RankedDay) -> None:
    others = sorted(last.competitors, key=lambda competitor: -_percent(last.competitors, competitor))
    bars = [(name, 100 * last.visibility)]
    bars += [(competitor, _percent(last.competitors, competitor)) for competitor in others[:MOST_BARS]]
    places = list(range(len(bars)))[::-1]
    colours = ["tab:blue", *["lightgrey"] * len(others)]
    drawn = axes.barh(places, [share for _, share in bars], color=colours[: len(bars)])
    axes.bar_label(drawn, fmt="%.0f %%", fontsize=7, padding=2)
    axes.set_yticks(places)
    axes.set_yticklabels([_display_name(competitor) for competitor, _ in bars], fontsize=7, parse_math=False)
    axes.set_xlim(0, 112)  # room for the label of a full bar
    axes.tick_params(axis="x", labelsize=7)
    axes.set_title(f"against competitors, {last.day}", fontsize=9, parse_math=False)


def _display_name(name: str) -> str:
    """Return the name cut, without signs that matplotlib reads as mathematics or hides."""
    cut = name if len(name) <= MOST_NAME_CHARS else name[: MOST_NAME_CHARS - 1] + "…"
    return cut.replace("$", "").lstrip("_") or "?"
