"""Histories of changes, in seconds of the epoch: generated from fixed seeds, and recorded by samples.

Each generated family is a process with known parameters. `rate` is the rate of change at a moment for
an observer who knows the process and the changes so far: what no estimate can improve on.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from math import erf, exp, sqrt
from pathlib import Path
from random import Random

HOUR, DAY, WEEK = 3_600.0, 86_400.0, 7 * 86_400.0
START = datetime(2025, 1, 6, tzinfo=UTC).timestamp()  # a Monday
FLOOR = 1e-9  # changes a second: no moment is entirely without

Changes = list[float]
Rate = Callable[[float, Sequence[float]], float]  # of the moment and the changes detected so far
Draw = Callable[[Random, float], tuple[Changes, Rate]]


@dataclass(frozen=True, slots=True)
class History:
    """The changes of one source; with `states_dates` its records say when they were published."""

    changes: Sequence[float]
    states_dates: bool
    rate: Rate | None = None  # of a generated one
    start: float = START
    end: float = float("inf")


def poisson(random: Random, days: float) -> tuple[Changes, Rate]:
    """Draw changes without any memory, from three a day to one in three weeks."""
    rate = 3 * 63 ** -random.random() / DAY
    return _arrivals(random, days, rate), lambda _at, _detected: rate


def weekly(random: Random, days: float) -> tuple[Changes, Rate]:
    """Draw the same day and hour each week, an hour or two off; one in ten left out, one in ten late."""
    day, hour, spread = random.randrange(7), random.uniform(0, 24), random.uniform(0.5, 2)
    changes = sorted(
        START + week * WEEK + day * DAY + (hour + random.gauss(0, spread)) * HOUR + _late(random)
        for week in range(int(days // 7))
        if random.random() > 0.1
    )
    first = START + day * DAY + hour * HOUR
    return changes, lambda at, detected: _weekly_rate(at, detected, first, spread * HOUR)


def _late(random: Random) -> float:
    return random.uniform(0, 2 * DAY) if random.random() < 0.1 else 0.0


def _weekly_rate(at: float, detected: Sequence[float], first: float, spread: float) -> float:
    """Return the hazard of this week's release, which nine in ten weeks have and one in ten of those late."""
    margin = 4 * spread
    slot = first + (at - first + margin) // WEEK * WEEK
    if any(change >= slot - margin for change in detected[-2:]):
        return FLOOR
    offset = at - slot
    density = 0.81 * exp(-((offset / spread) ** 2) / 2) / (spread * sqrt(2 * 3.14159265))
    density += 0.09 * (_normal(offset / spread) - _normal((offset - 2 * DAY) / spread)) / (2 * DAY)
    late = min(max(offset, 0.0), 2 * DAY) / (2 * DAY)
    return density / (1 - 0.81 * _normal(offset / spread) - 0.09 * late) + FLOOR


def _normal(deviations: float) -> float:
    return (1 + erf(deviations / sqrt(2))) / 2


BURST_GAP = 1.5 * HOUR
FEWEST_IN_BURST, MOST_IN_BURST = 2, 8


def bursty(random: Random, days: float) -> tuple[Changes, Rate]:
    """Draw a handful within hours, then nothing for days or weeks."""
    changes: Changes = []
    rate = 1 / (random.uniform(4, 20) * DAY)
    for begun in _arrivals(random, days, rate):
        at = begun
        for _ in range(random.randint(FEWEST_IN_BURST, MOST_IN_BURST)):
            changes.append(at)
            at += random.expovariate(1 / BURST_GAP)
    return sorted(changes), lambda at, detected: rate + _burst_rate(at, detected)


def _burst_rate(at: float, detected: Sequence[float]) -> float:
    """Return the hazard of one more change of the burst, by its size and its age."""
    if not detected or at - detected[-1] > DAY:
        return 0.0
    size = 1
    while size < len(detected) and size < MOST_IN_BURST and detected[-size] - detected[-size - 1] < 8 * BURST_GAP:
        size += 1
    left = MOST_IN_BURST - size
    more = 1.0 if size < FEWEST_IN_BURST else left / (left + 1)
    survived = more * exp(-(at - detected[-1]) / BURST_GAP)
    return survived / (survived + 1 - more + 1e-12) / BURST_GAP


def dying(random: Random, days: float) -> tuple[Changes, Rate]:
    """Draw as many as of another family, until one day the source falls silent for good.

    The known rate includes when that is.
    """
    end = START + random.uniform(0.2, 0.9) * days * DAY
    alive, rate = random.choice((poisson, weekly, bursty))(random, days)
    return [at for at in alive if at < end], lambda at, detected: rate(at, detected) if at < end else FLOOR


SEASON, PAUSED = 90, 130  # days from the start of a season


def seasonal(random: Random, days: float) -> tuple[Changes, Rate]:
    """Draw weekly ones for a quarter of a year, then a pause for half as long."""
    phase = random.uniform(0, 130)
    changes, rate = weekly(random, days)

    def is_on(at: float) -> bool:
        return ((at - START) / DAY + phase) % PAUSED < SEASON

    return [at for at in changes if is_on(at)], lambda at, detected: rate(at, detected) if is_on(at) else FLOOR


def office(random: Random, days: float) -> tuple[Changes, Rate]:
    """Draw those of a job board: from Monday to Friday in working hours, now and then."""
    rate = random.uniform(0.3, 3) / (8 * HOUR)
    zone = random.choice((-8, -5, 0, 1, 8))
    drawn = _arrivals(random, days, rate)
    changes = [at for at in drawn if _is_at_work(at + zone * HOUR)]
    return changes, lambda at, _detected: rate if _is_at_work(at + zone * HOUR) else FLOOR


def _is_at_work(at: float) -> bool:
    return (at - START) % WEEK < 5 * DAY and 9 * HOUR <= (at - START) % DAY < 17 * HOUR


def _arrivals(random: Random, days: float, rate: float) -> Changes:
    changes: Changes = []
    at = START + random.expovariate(rate)
    while at < START + days * DAY:
        changes.append(at)
        at += random.expovariate(rate)
    return changes


FAMILIES: Mapping[str, Draw] = {
    "poisson": poisson,
    "weekly": weekly,
    "bursty": bursty,
    "dying": dying,
    "seasonal": seasonal,
    "office": office,
}


def synthetic(name: str, *, count: int, days: float, seed: int = 7) -> list[History]:
    """Return so many histories of a family; half of them state their dates."""
    random = Random(f"{name}:{seed}")
    histories: list[History] = []
    for number in range(count):
        changes, rate = FAMILIES[name](random, days)
        histories.append(History(changes, states_dates=number % 2 == 0, rate=rate, end=START + days * DAY))
    return histories


NO_SAMPLES = "INGESTION_SAMPLES names no folder with manga/mangadex and change_histories"
LEAST_CHANGES = 6


def recorded_releases() -> list[History]:
    """Return the release histories of two series in the samples; none without samples."""
    histories: list[History] = []
    for path in sorted((_samples() / "manga" / "mangadex").glob("feed_*.json")):
        document = json.loads(path.read_bytes())
        dates = sorted(datetime.fromisoformat(row["attributes"]["readableAt"]).timestamp() for row in document["data"])
        histories.append(_moved_to_start(dates, dates[-1] + 60 * DAY, states_dates=True))
    return histories


USED_FOR_CONSTANTS = 80  # documents, in the order of the hash of their name


def recorded_documents(
    *, used_for_constants: bool, count: int | None = None, days: float | None = None
) -> list[History]:
    """Return the changes of documents, which state no dates: those that constants were chosen on, or the others.

    They are in the order of the hash of their name; `days` keeps the last ones of each.
    """
    by_hash = sorted(
        (sha256(name.encode()).hexdigest(), times)
        for path in (_samples() / "change_histories").glob("*.json")
        for name, times in json.loads(path.read_bytes()).items()
    )
    part = by_hash[:USED_FOR_CONSTANTS] if used_for_constants else by_hash[USED_FOR_CONSTANTS:]
    latest = [[at for at in times if days is None or at > times[-1] - days * DAY] for _, times in part]
    enough = [times for times in latest if len(times) >= LEAST_CHANGES]
    return [_moved_to_start(times, times[-1], states_dates=False) for times in enough[:count]]


def _samples() -> Path:
    return Path(os.environ.get("INGESTION_SAMPLES", ""))


def _moved_to_start(changes: Sequence[float], end: float, *, states_dates: bool) -> History:
    """Return the history moved by whole weeks, so that it begins in the first one at its own day and hour."""
    offset = (changes[0] - START) // WEEK * WEEK
    return History(
        [at - offset for at in changes], states_dates=states_dates, start=changes[0] - offset, end=end - offset
    )
