"""What a run works with, built once and handed over."""

from __future__ import annotations

import errno
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from ingestion_pipeline.pages.content import ContentStore
from ingestion_pipeline.pages.hosts import Pace
from ingestion_pipeline.pages.system import Systems
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Kind, Source
from ingestion_pipeline.store import Store
from ingestion_pipeline.work.errors import FATAL_ERRNOS, Fatal

if TYPE_CHECKING:
    from ingestion_pipeline.pages.crawled import CrawledSystem, DeferredSystem

# A file where a folder should be, a limit on the size of files: it would be so for any object. One
# that alone cannot be read (EACCES, EISDIR, EIO) is its poll's trouble, not the run's.
_BROKEN_STORE = FATAL_ERRNOS | {errno.EEXIST, errno.ENOTDIR, errno.EFBIG}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """Database, settings, content store and systems; `random` only spreads due times.

    `run_id` is the run of Dagster that all this is for; a command has none. `crawlers` are the
    systems whose sources are walked through page by page, `starters` those
    whose polls begin other work.
    """

    store: Store
    settings: Settings
    content: ContentStore
    systems: Systems
    crawlers: Mapping[Kind, CrawledSystem] = field(default_factory=dict["Kind", "CrawledSystem"])
    starters: Mapping[Kind, DeferredSystem] = field(default_factory=dict["Kind", "DeferredSystem"])
    random: Random = field(default_factory=Random)
    run_id: str | None = None

    @property
    def begun(self) -> Mapping[Kind, DeferredSystem]:
        """Every system whose polls only begin the work."""
        return {**self.crawlers, **self.starters}

    def pace(self, source: Source) -> Pace:
        """How fast a host may be asked for the source."""
        system = self.begun.get(source.kind) or self.systems[source.kind]
        return system.pace(source, self.settings)


@contextmanager
def storage_errors_fatal() -> Generator[None]:
    """A disk of ours that is full, read-only or no folder is fatal, never a source's fault."""
    try:
        yield
    except OSError as error:
        if error.errno not in _BROKEN_STORE:
            raise
        raise Fatal(f"the content store does not work: {error}", code="storage") from error
