"""Score records against true ones, field by field: precision, recall and F1."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

RECORD = "record"  # the score of whole records: found, whatever their other fields say


@dataclass(slots=True)
class FieldScore:
    """Values read rightly, read wrongly, and not read although stated."""

    right: int = 0
    wrong: int = 0
    missed: int = 0

    @property
    def precision(self) -> float:
        """The share of what was read that is right; 1 if nothing was."""
        return self.right / (self.right + self.wrong) if self.right + self.wrong else 1.0

    @property
    def recall(self) -> float:
        """The share of what is stated that was read rightly; 1 if nothing is."""
        return self.right / (self.right + self.missed) if self.right + self.missed else 1.0

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        total = 2 * self.right + self.wrong + self.missed
        return 2 * self.right / total if total else 1.0

    def count(self, value: object, expected: object) -> None:
        """Count a value against the true one; None on either side means that there is none."""
        is_right = value is not None and normal(value) == normal(expected)
        self.right += is_right
        self.wrong += value is not None and not is_right
        self.missed += expected is not None and not is_right


Scores = dict[str, FieldScore]
Values = Mapping[str, Any]


def score_records(scores: Scores, expected: Sequence[Values], records: Sequence[Values], *, key: Sequence[str]) -> None:
    """Add the score of each field that the true records name; records with equal values of the key belong together."""
    fields = dict.fromkeys(name for record in expected for name in record)
    record_score = scores.setdefault(RECORD, FieldScore())
    waiting: defaultdict[object, list[Values]] = defaultdict(list)
    for record in records:
        waiting[_key(record, key)].append(record)
    for record in expected:
        same = waiting[_key(record, key)]
        other = same.pop(0) if same else None
        record_score.count(other and RECORD, RECORD)
        for name in record:
            scores.setdefault(name, FieldScore()).count(other and other.get(name), record[name])
    for record in (record for same in waiting.values() for record in same):
        record_score.count(RECORD, None)
        for name in fields:
            scores.setdefault(name, FieldScore()).count(record.get(name), None)


def _key(record: Values, key: Sequence[str]) -> tuple[object, ...]:
    return tuple(normal(record.get(name)) for name in key)


def normal(value: object) -> object:
    """Return the value as it is compared: text without case and layout, numbers by their value."""
    text = " ".join(str(value).split()).casefold()
    if isinstance(value, bool) or not text[:1].isdecimal():
        return text
    try:
        return Decimal(text).normalize()
    except InvalidOperation:
        return text
