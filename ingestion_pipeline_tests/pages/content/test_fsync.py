"""Objects are synced to disk one by one or all at once, before they get their names."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ingestion_pipeline.pages.content import store
from ingestion_pipeline.pages.content.store import MANY, ContentStore, can_sync_file_system, sync_each, sync_file_system


def test_syncing_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        sync_each([str(tmp_path / "gone")])


@pytest.mark.skipif(not can_sync_file_system(), reason="no syncfs here")
def test_syncing_a_missing_file_system_is_an_error(tmp_path: Path) -> None:
    sync_file_system(tmp_path, [])

    with pytest.raises(FileNotFoundError):
        sync_file_system(tmp_path / "gone", [])


@pytest.mark.parametrize("count", [1, MANY - 1, MANY, 3 * MANY])
def test_put_many_stores_every_object_and_no_other_file(tmp_path: Path, count: int) -> None:
    bodies = [f"body {number}".encode() for number in range(count)]
    store = ContentStore(tmp_path / "content")

    names = store.put_many(bodies)

    assert [store.get(name) for name in names] == bodies
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == count


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the disk operations in order: `sync` or `name`."""
    steps: list[str] = []

    def recorded(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            result = call(*arguments)
            steps.append(name)
            return result

        return called

    monkeypatch.setattr(os, "replace", recorded("name", os.replace))
    monkeypatch.setattr(os, "fsync", recorded("sync", os.fsync))
    if can_sync_file_system():
        library = store._libc()
        monkeypatch.setattr(library, "syncfs", recorded("sync", library.syncfs))
    return steps


@pytest.mark.parametrize("count", [1, MANY - 1, MANY])
def test_an_object_is_synced_before_it_gets_its_name_and_its_folder_after(
    tmp_path: Path, steps: list[str], count: int
) -> None:
    store = ContentStore(tmp_path / "content")

    store.put_many([f"body {number}".encode() for number in range(count)])

    named_at = [place for place, step in enumerate(steps) if step == "name"]
    is_at_once = count >= MANY and can_sync_file_system()
    assert len(named_at) == count
    assert steps[: named_at[0]] == ["sync"] * (1 if is_at_once else count)
    assert set(steps[named_at[-1] + 1 :]) == {"sync"}


def test_a_copy_for_a_second_name_is_synced_before_it_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: list[str]
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, "this file system knows no links")

    monkeypatch.setattr(os, "link", refused)
    store = ContentStore(tmp_path / "content")

    store.put_together([[b"body", b"its text"]])

    assert steps.count("name") == 2
    assert steps.index("name") >= 2  # the file and its copy are synced
    assert steps[-1] == "sync"


def test_temporary_files_of_a_dead_process_are_pruned(tmp_path: Path) -> None:
    store = ContentStore(tmp_path)
    name = store.put(b"kept")
    (tmp_path / "in" / ".left-0.tmp").write_bytes(b"half")

    assert store.prune([name], older_than_seconds=-60) == 1
    assert store.get(name) == b"kept"
