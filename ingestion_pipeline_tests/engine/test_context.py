from __future__ import annotations

import gc
from contextlib import suppress

from ingestion_pipeline.engine.context import NEW_OBJECTS, reduced_gc


def test_garbage_is_looked_for_as_before_once_a_crawl_has_failed() -> None:
    before = gc.get_threshold()

    with suppress(ValueError), reduced_gc():
        raise ValueError("a page")

    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)


def test_what_was_there_before_is_left_alone_during_a_crawl() -> None:
    with reduced_gc():
        assert gc.get_threshold()[0] == NEW_OBJECTS
        assert gc.get_freeze_count() > 0


def test_whoever_has_switched_it_off_keeps_it_off() -> None:
    before = gc.get_threshold()
    gc.set_threshold(0)

    try:
        with reduced_gc():
            assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)
