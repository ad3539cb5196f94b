"""What nobody can beat: to know every change beforehand, and to look at the moment it happens.

With as many requests as there are changes nothing is late. With fewer, some changes wait for the
next one that is looked for: each source's changes fall into runs, a request ends each run, and what
a run costs is how long its changes wait for its last. A request saves less the more there are, so
one price for all sources finds the best way to spend a number of them.
"""

from collections.abc import Sequence
from itertools import accumulate

STEPS = 60  # halvings of the price: far below a second


def least_delay(changes: Sequence[Sequence[float]], *, requests: int) -> float:
    """The mean delay in seconds that so many requests leave at least, by source's changes.

    Every change is found, so each source needs one request; fewer than that is an error.
    """
    total = sum(map(len, changes))
    busy = [sorted(one) for one in changes if one]
    if requests < len(busy):
        raise ValueError(f"{len(busy)} sources changed; {requests} requests cannot find it all")
    if requests >= total:
        return 0.0
    low, high = 0.0, max(one[-1] - one[0] for one in busy) * total
    for _ in range(STEPS):
        price = (low + high) / 2
        used = sum(_spent(one, price)[1] for one in busy)
        low, high = (price, high) if used > requests else (low, price)
    waits, used = map(sum, zip(*(_spent(one, high) for one in busy), strict=True))
    # Between two prices the delay is a straight line: each request left saves what one costs.
    return max(waits - (requests - used) * high, 0.0) / total


def _spent(changes: Sequence[float], price: float) -> tuple[float, int]:
    """The delays and the requests of the cheapest way, where a request costs the price."""
    sums = [0.0, *accumulate(at - changes[0] for at in changes)]
    best: list[tuple[float, int, float]] = [(0.0, 0, 0.0)]  # cost, requests, delays; up to each
    for end in range(1, len(changes) + 1):
        last = changes[end - 1] - changes[0]
        best.append(
            min(
                (best[start][0] + price + wait, best[start][1] + 1, best[start][2] + wait)
                for start in range(end)
                for wait in [(end - start) * last - (sums[end] - sums[start])]
            )
        )
    return best[-1][2], best[-1][1]
