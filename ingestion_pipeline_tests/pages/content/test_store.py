"""The content store keeps equal bytes once, complete, synced, and readable by the owner only."""

import errno
import os
import resource
import stat
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.pages import ContentStore
from ingestion_pipeline.pages.content import store as content_store
from ingestion_pipeline.pages.content.store import (
    MANY,
    can_sync_file_system,
    storage_errors_fatal,
    sync_each,
    sync_file_system,
)
from ingestion_pipeline.pages.zstd import zstd
from ingestion_pipeline.tasks.errors import ErrorClass, Fatal, Permanent, Transient, classify
from ingestion_pipeline_tests.pages.page_fetches import failing
from ingestion_pipeline_tests.processes import Child

BODY = b"<html>" + b"row " * 1000
HASH = sha256(BODY).hexdigest()


@pytest.fixture
def store(tmp_path: Path) -> ContentStore:
    return ContentStore(tmp_path / "deep" / "content")


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if not path.is_dir()]


@pytest.mark.parametrize("body", [b"", b"\x00\xff", BODY], ids=["empty", "binary", "page"])
def test_get_returns_the_stored_bytes(store: ContentStore, body: bytes) -> None:
    content_hash = store.put(body)

    assert content_hash == sha256(body).hexdigest()
    assert store.get(content_hash) == body


def test_the_object_is_compressed_and_named_by_its_hash(store: ContentStore, tmp_path: Path) -> None:
    store.put(BODY)

    (path,) = files(tmp_path)
    assert path == tmp_path / "deep" / "content" / HASH[:2] / HASH[2:]
    assert path.stat().st_size < len(BODY) / 10


def test_only_the_owner_may_read_an_object(store: ContentStore, tmp_path: Path) -> None:
    store.put(BODY)

    modes = {stat.S_IMODE(path.stat().st_mode) for path in files(tmp_path)}
    folders = {stat.S_IMODE(p.stat().st_mode) for p in tmp_path.rglob("*") if p.is_dir()}
    assert (modes, folders) == ({0o600}, {0o700})


def test_an_existing_object_is_not_written_again(store: ContentStore, tmp_path: Path) -> None:
    store.put(BODY)
    (path,) = files(tmp_path)
    before = path.stat()

    store.put(BODY)

    assert path.stat().st_ino == before.st_ino


def test_many_writers_of_one_body_leave_one_whole_object(store: ContentStore, tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        hashes = set(pool.map(store.put, [BODY] * 40))

    assert hashes == {HASH}
    assert len(files(tmp_path)) == 1
    assert store.get(HASH) == BODY


def test_a_missing_object_is_fetched_again(store: ContentStore) -> None:
    with failing(Transient, "content_missing"):
        store.get(HASH)


@pytest.mark.parametrize("damage", ["cut", "other", "empty"])
def test_a_damaged_object_is_detected_and_repaired(store: ContentStore, tmp_path: Path, damage: str) -> None:
    other = ContentStore(tmp_path / "other").put(b"other")
    foreign = (tmp_path / "other" / other[:2] / other[2:]).read_bytes()
    store.put(BODY)
    path = tmp_path / "deep" / "content" / HASH[:2] / HASH[2:]
    path.write_bytes({"cut": path.read_bytes()[:-9], "other": foreign, "empty": b""}[damage])

    with failing(Transient, "content_damaged"):
        store.get(HASH)
    store.put(BODY)

    assert store.get(HASH) == BODY


def test_a_symbolic_link_is_not_followed(store: ContentStore, tmp_path: Path) -> None:
    store.put(BODY)
    path = tmp_path / "deep" / "content" / HASH[:2] / HASH[2:]
    elsewhere = path.rename(tmp_path / "elsewhere")
    path.symlink_to(elsewhere)

    with failing(Transient, "content_damaged"):
        store.get(HASH)
    assert elsewhere.exists()


@pytest.mark.parametrize("name", ["", "../../etc/passwd", HASH.upper(), HASH + "\n", HASH[:-1], "/" + HASH[1:], "CON"])
def test_a_name_that_is_no_hash_touches_no_file(store: ContentStore, name: str) -> None:
    with failing(Permanent, "content_name"):
        store.get(name)


def test_a_failed_write_leaves_nothing_behind(store: ContentStore, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "content" / HASH[:2]
    (folder / HASH[2:]).mkdir(parents=True)  # a folder where the object should be: rename fails

    with pytest.raises(OSError, match=r"directory"):
        store.put(BODY)

    assert files(tmp_path) == []


def test_an_unreferenced_object_is_pruned_once_it_is_old(store: ContentStore, tmp_path: Path) -> None:
    referenced, old, young = store.put(b"kept"), store.put(b"old"), store.put(b"young")
    make_old(store, tmp_path, referenced, old)

    assert store.prune({referenced}, older_than_seconds=3_600) == 1

    assert store.get(referenced) == b"kept"
    assert store.get(young) == b"young"
    with pytest.raises(Transient, match="no content"):
        store.get(old)


def test_storing_an_object_again_resets_its_age(store: ContentStore, tmp_path: Path) -> None:
    body = store.put(b"back")
    make_old(store, tmp_path, body)
    store.put(b"back")

    assert store.prune(set(), older_than_seconds=3_600) == 0


def test_put_many_returns_names_in_order_and_stores_each_body_once(store: ContentStore, tmp_path: Path) -> None:
    store.put(b"old")

    names = store.put_many([b"new", b"old", b"new", b""])

    assert [store.get(name) for name in names] == [b"new", b"old", b"new", b""]
    assert len(files(tmp_path)) == 3


def test_the_forms_of_a_page_share_a_file_under_their_names(store: ContentStore, tmp_path: Path) -> None:
    store.put(b"text of old")

    names = store.put_together([[BODY, b"text"], [b"other", b"text of old"], [BODY]])

    bodies_read = [[store.get(name) for name in group] for group in names]
    assert bodies_read == [[BODY, b"text"], [b"other", b"text of old"], [BODY]]
    assert len({path.stat().st_ino for path in files(tmp_path)}) == 3


def test_a_form_with_a_given_hash_is_stored_under_it(store: ContentStore) -> None:
    ((body, text),) = store.put_together([[(HASH, BODY), b"text"]])

    assert body == HASH
    assert (store.get(body), store.get(text)) == (BODY, b"text")


def test_pruning_one_form_leaves_the_other(store: ContentStore, tmp_path: Path) -> None:
    ((body, text),) = store.put_together([[BODY, b"text"]])
    make_old(store, tmp_path, body)

    assert store.prune({text}, older_than_seconds=3_600) == 1

    assert store.get(text) == b"text"
    assert not store.has(body)


def test_damage_to_a_page_file_is_detected_by_each_of_its_names_and_repaired(
    store: ContentStore, tmp_path: Path
) -> None:
    ((body, text),) = store.put_together([[BODY, b"text"]])
    path = tmp_path / "deep" / "content" / body[:2] / body[2:]
    path.write_bytes(path.read_bytes()[:-3])

    for name in (text, body):
        with pytest.raises(Transient, match="damaged"):
            store.get(name)

    assert store.put_together([[BODY, b"text"]]) == [[body, text]]
    assert (store.get(body), store.get(text)) == (BODY, b"text")


@pytest.mark.slow
@given(st.lists(st.binary(max_size=300), min_size=1, max_size=5), st.data())
def test_a_damaged_page_file_returns_the_stored_bytes_or_an_error(bodies: list[bytes], data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        store = ContentStore(Path(folder))
        (names,) = store.put_together([bodies], fsync=False)
        path = Path(folder) / names[0][:2] / names[0][2:]
        stored = bytearray(path.read_bytes())
        stored[data.draw(st.integers(0, len(stored) - 1))] ^= data.draw(st.integers(1, 255))
        path.write_bytes(stored)

        for name, body in zip(names, bodies, strict=True):
            with suppress(Transient):
                assert store.get(name) == body


def test_text_shared_by_the_forms_of_a_page_is_stored_once(store: ContentStore, tmp_path: Path) -> None:
    text = b" ".join(sha256(str(number).encode()).hexdigest().encode() for number in range(500))
    forms = [b"<p>" + text, text, b"# " + text]

    (names,) = store.put_together([forms])

    assert [store.get(name) for name in names] == forms
    assert files(tmp_path)[0].stat().st_size < len(text)


def test_forms_that_were_written_as_a_frame_each_are_still_read(store: ContentStore, tmp_path: Path) -> None:
    for body in (BODY, b"text"):
        name = sha256(body).hexdigest()
        path = tmp_path / "deep" / "content" / name[:2] / name[2:]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(zstd.compress(BODY) + zstd.compress(b"text"))

        assert store.get(name) == body


def test_forms_are_read_together_wherever_they_are_stored(store: ContentStore) -> None:
    ((body, text, _),) = store.put_together([[BODY, b"text", b"more"]])
    alone = store.put(b"alone")

    assert store.get_together([text, alone, body, text]) == [b"text", b"alone", BODY, b"text"]


def test_a_damaged_form_fails_what_is_read_together_with_it(store: ContentStore, tmp_path: Path) -> None:
    ((body, text),) = store.put_together([[BODY, b"text"]])
    path = tmp_path / "deep" / "content" / body[:2] / body[2:]
    path.write_bytes(path.read_bytes()[:-3])

    with pytest.raises(Transient, match="damaged"):
        store.get_together([body, text])


def test_without_hard_links_each_form_has_its_own_file(
    store: ContentStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, "this file system knows no links")

    monkeypatch.setattr(os, "link", refused)
    ((body, text),) = store.put_together([[BODY, b"text"]])

    assert (store.get(body), store.get(text)) == (BODY, b"text")
    assert len({path.stat().st_ino for path in files(tmp_path)}) == 2


def test_a_symbolic_link_is_replaced_by_a_form(store: ContentStore, tmp_path: Path) -> None:
    place = tmp_path / "deep" / "content" / HASH[:2] / HASH[2:]
    place.parent.mkdir(parents=True)
    place.symlink_to(tmp_path / "elsewhere")

    store.put_together([[BODY, b"text"]])

    assert store.get(HASH) == BODY
    assert not place.is_symlink()


def test_an_object_that_was_written_with_zlib_is_still_read(store: ContentStore, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "content" / HASH[:2] / HASH[2:]
    path.parent.mkdir(parents=True)
    path.write_bytes(zlib.compress(BODY))

    assert store.get(HASH) == BODY


def test_a_header_that_claims_a_terabyte_is_damage_and_takes_no_memory(store: ContentStore, tmp_path: Path) -> None:
    store.put(BODY)
    (path,) = files(tmp_path)
    path.write_bytes(b"\x28\xb5\x2f\xfd\xe0" + (1 << 40).to_bytes(8, "little") + b"\x01\0\0")

    with failing(Transient, "content_damaged"):
        store.get(HASH)


@pytest.mark.slow
def test_a_full_disk_in_the_middle_of_many_leaves_no_half_object(store: ContentStore, tmp_path: Path) -> None:
    """A real file size limit in a separate process; without it the store recovers by itself."""
    root, large = tmp_path / "deep" / "content", os.urandom(300_000)
    bodies = [b"first", large, b"last"]

    message = Child(put_on_a_full_disk, str(root), bodies, 100_000).result()

    assert message == "Fatal: storage"
    assert files(tmp_path) == []
    assert [store.get(name) for name in store.put_many(bodies)] == bodies


def put_on_a_full_disk(root: str, bodies: list[bytes], limit_bytes: int) -> str:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
    try:
        with storage_errors_fatal():
            ContentStore(Path(root)).put_many(bodies)
    except Fatal as error:
        return f"Fatal: {error.code}"
    return "no error"


def make_old(store: ContentStore, folder: Path, *hashes: str) -> None:
    for path in files(folder):
        if path.parent.name + path.name in hashes:
            os.utime(path, (0, 0))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENOMEM, errno.EMFILE, errno.ENFILE])
def test_an_exhausted_resource_is_fatal(number: int) -> None:
    with failing(Fatal, "storage", match="content store"), storage_errors_fatal():
        raise OSError(number, "no more")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EISDIR, errno.EIO, errno.ENOENT])
def test_an_error_of_a_single_object_is_transient(number: int) -> None:
    with pytest.raises(OSError) as caught, storage_errors_fatal():  # noqa: PT011 - the errno is what counts
        raise OSError(number, "this one")

    assert classify(caught.value).error_class is ErrorClass.TRANSIENT


def test_a_folder_in_place_of_an_object_is_not_fatal(tmp_path: Path) -> None:
    content = ContentStore(tmp_path)
    name = content.put(b"body")
    path = tmp_path / name[:2] / name[2:]
    path.unlink()
    path.mkdir()

    with pytest.raises(IsADirectoryError), storage_errors_fatal():
        content.put(b"body")


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
        library = content_store._libc()
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
