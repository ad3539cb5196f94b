from __future__ import annotations

import gc
from contextlib import suppress

import pytest

from ingestion_pipeline.engine.context import NEW_OBJECTS, reduced_gc


def test_gc_thresholds_are_restored_after_a_failed_crawl() -> None:
    before = gc.get_threshold()

    with suppress(ValueError), reduced_gc():
        raise ValueError("a page")

    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)


@pytest.mark.slow
def test_existing_objects_are_frozen_during_a_crawl() -> None:
    with reduced_gc():
        assert gc.get_threshold()[0] == NEW_OBJECTS
        assert gc.get_freeze_count() > 0


def test_a_disabled_gc_stays_disabled() -> None:
    before = gc.get_threshold()
    gc.set_threshold(0)

    try:
        with reduced_gc():
            assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)
