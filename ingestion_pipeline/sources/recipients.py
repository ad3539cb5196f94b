"""Recipients of notifications as declared, in a source file or on the command line.

They are declared here, beside sources, because the same files hold both; what is sent to whom is
decided in `notices`.
"""

from dataclasses import dataclass
from enum import StrEnum

from ingestion_pipeline.sources.source import BY_HAND

# Alerts for operators; `alerts` means all of them.
SOURCE_ALERTS = ("source_degraded", "source_recovered", "breaker_opened", "source_disabled")


SYSTEM_ALERTS = ("budget", "run_failures", "daemon_silent")


ALERTS = (*SOURCE_ALERTS, *SYSTEM_ALERTS)


ALL_ALERTS = "alerts"


SUBJECT_KINDS = ("chapter", "extraction", "recipe", "job_match", *ALERTS)


DEFAULT_KINDS = ("chapter",)  # followers of a series did not subscribe to catalogues


OWN_SERVICES = "notify:"


class Mode(StrEnum):
    """When a recipient is notified: at once, once a day, or never."""

    IMMEDIATE = "immediate"
    DIGEST = "digest"
    MUTED = "muted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Follow:
    """One followed series; None means the recipient's own value."""

    series: str
    mode: Mode | None = None
    language: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipient:
    """Somebody to notify; `origin` is the file that declares them."""

    id: str
    address: str
    mode: Mode = Mode.IMMEDIATE
    language: str | None = None
    kinds: tuple[str, ...] = DEFAULT_KINDS
    follows: tuple[Follow, ...] = ()
    origin: str = BY_HAND


def is_webhook(address: str) -> bool:
    """Return whether messages to the address are signed."""
    return address.lower().startswith(("http://", "https://"))
