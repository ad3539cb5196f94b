"""Dagster's partition sets follow our store, also under concurrent writers."""

from multiprocessing.synchronize import Barrier
from pathlib import Path

import dagster as dg
import pytest

from ingestion_pipeline.orchestration.runs import SETS, differences, register_keys, set_names
from ingestion_pipeline.sources import Kind
from ingestion_pipeline_tests.processes import FORKSERVER, Child

NAME = "series_sources"
ROUNDS = [[f"series:s{turn}-{number}" for number in range(3)] for turn in range(10)]


def register_in_step(folder: str, barrier: Barrier) -> None:
    """Register the keys of each round in the same moment as the others."""
    with dg.DagsterInstance.local_temp(folder) as instance:
        for keys in ROUNDS:
            barrier.wait(60)
            register_keys(instance, NAME, keys)


def test_a_source_is_in_the_set_of_all_and_in_its_own() -> None:
    assert set_names(Kind.SERIES) == ["sources", NAME]
    assert set_names(Kind.CATALOG) == ["sources", "catalogs"]
    assert set_names(Kind.COMPANY) == ["sources", "companies"]
    assert set_names(Kind.JOB_BOARD) == ["sources", "job_boards"]
    assert set_names(Kind.WEBSITE) == ["sources", "websites"]
    assert set(SETS) == set(Kind)


def test_differences_are_added_and_removed_keys() -> None:
    assert differences(["b", "a", "c"], ["c", "d"]) == (["a", "b"], ["d"])


def test_existing_keys_are_left_alone(instance: dg.DagsterInstance) -> None:
    register_keys(instance, NAME, ["series:a"])

    register_keys(instance, NAME, ["series:b", "series:a", "series:b"])

    assert instance.get_dynamic_partitions(NAME) == ["series:a", "series:b"]


@pytest.mark.slow
def test_two_runs_that_register_the_same_keys_at_the_same_moment_both_succeed(tmp_path: Path) -> None:
    """On SQLite Dagster selects and then inserts: every third such pair raised IntegrityError."""
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        instance.get_dynamic_partitions(NAME)  # the tables are there
        barrier = FORKSERVER.Barrier(2)

        for child in [Child(register_in_step, str(tmp_path), barrier) for _ in range(2)]:
            child.result()

        keys_registered = instance.get_dynamic_partitions(NAME)
    assert sorted(keys_registered) == sorted(key for keys in ROUNDS for key in keys)
