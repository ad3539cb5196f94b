"""Histories of changes, as seconds of the epoch: made by fixed seeds, and those of samples."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random

HOUR, DAY, WEEK = 3_600.0, 86_400.0, 7 * 86_400.0
START = datetime(2025, 1, 6, tzinfo=UTC).timestamp()  # a Monday

Changes = list[float]
Draw = Callable[[Random, float], Changes]


@dataclass(frozen=True, slots=True)
class History:
    """The changes of one source; with `states_dates` its records say when they were published."""

    changes: Sequence[float]
    states_dates: bool


def poisson(random: Random, days: float) -> Changes:
    """Changes without any memory, from three a day to one in three weeks."""
    rate = 3 * 63 ** -random.random() / DAY
    return _arrivals(random, days, rate)


def weekly(random: Random, days: float) -> Changes:
    """The same day and hour each week, an hour or two off; one in ten left out, one in ten late."""
    day, hour, spread = random.randrange(7), random.uniform(0, 24), random.uniform(0.5, 2)
    return sorted(
        START + week * WEEK + day * DAY + (hour + random.gauss(0, spread)) * HOUR + _late(random)
        for week in range(int(days // 7))
        if random.random() > 0.1
    )


def _late(random: Random) -> float:
    return random.uniform(0, 2 * DAY) if random.random() < 0.1 else 0.0


def bursty(random: Random, days: float) -> Changes:
    """A handful within hours, then nothing for days or weeks."""
    found: Changes = []
    for begun in _arrivals(random, days, 1 / (random.uniform(4, 20) * DAY)):
        at = begun
        for _ in range(random.randint(2, 8)):
            found.append(at)
            at += random.expovariate(1 / (1.5 * HOUR))
    return sorted(found)


def dying(random: Random, days: float) -> Changes:
    """As lively as the others, until one day it falls silent for good."""
    end = START + random.uniform(0.2, 0.9) * days * DAY
    alive = random.choice((poisson, weekly, bursty))(random, days)
    return [at for at in alive if at < end]


def seasonal(random: Random, days: float) -> Changes:
    """Weekly for a quarter of a year, then a pause for half as long."""
    phase = random.uniform(0, 130)
    return [at for at in weekly(random, days) if ((at - START) / DAY + phase) % 130 < 90]


def office(random: Random, days: float) -> Changes:
    """A job board: from Monday to Friday in working hours, now and then."""
    rate = random.uniform(0.3, 3) / (8 * HOUR)
    zone = random.choice((-8, -5, 0, 1, 8))
    drawn = _arrivals(random, days, rate)
    return [at for at in drawn if _is_at_work(at + zone * HOUR)]


def _is_at_work(at: float) -> bool:
    return (at - START) % WEEK < 5 * DAY and 9 * HOUR <= (at - START) % DAY < 17 * HOUR


def _arrivals(random: Random, days: float, rate: float) -> Changes:
    found: Changes = []
    at = START + random.expovariate(rate)
    while at < START + days * DAY:
        found.append(at)
        at += random.expovariate(rate)
    return found


FAMILIES: Mapping[str, Draw] = {
    "poisson": poisson,
    "weekly": weekly,
    "bursty": bursty,
    "dying": dying,
    "seasonal": seasonal,
    "office": office,
}


def synthetic(name: str, *, count: int, days: float, seed: int = 7) -> list[History]:
    """So many histories of a family; half of them state their dates."""
    random = Random(f"{name}:{seed}")
    return [History(FAMILIES[name](random, days), states_dates=one % 2 == 0) for one in range(count)]


NO_SAMPLES = "INGESTION_SAMPLES names no folder with manga/mangadex"


def recorded() -> list[tuple[History, float]]:
    """The release histories of the samples, with their length in days; none without samples."""
    folder = Path(os.environ.get("INGESTION_SAMPLES", "")) / "manga" / "mangadex"
    found: list[tuple[History, float]] = []
    for path in sorted(folder.glob("feed_*.json")):
        document = json.loads(path.read_bytes())
        dates = sorted(datetime.fromisoformat(one["attributes"]["readableAt"]).timestamp() for one in document["data"])
        days = (dates[-1] - dates[0]) / DAY + 60
        found.append((History([at - dates[0] + START for at in dates], states_dates=True), days))
    return found
