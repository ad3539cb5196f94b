"""What checks find wrong with sources although every run succeeded, and how it is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SHOWN = 20  # findings written out; their number tells of the rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as it should be; a warning, unless `is_error`."""

    subject: str
    message: str
    is_error: bool = False


def summary(findings: Sequence[Finding]) -> str:
    """The first findings, a line each."""
    lines = [f"{one.subject}: {one.message}" for one in findings[:SHOWN]]
    more = len(findings) - SHOWN
    return "\n".join([*lines, *([f"and {more} more"] if more > 0 else [])])
