from __future__ import annotations

import errno
from pathlib import Path

import pytest

from ingestion_pipeline.pages.content.store import ContentStore, storage_errors_fatal
from ingestion_pipeline.tasks.errors import ErrorClass, Fatal, classify


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENOMEM, errno.EMFILE, errno.ENFILE])
def test_a_disk_that_takes_nothing_more_is_fatal(number: int) -> None:
    with pytest.raises(Fatal, match="content store") as caught, storage_errors_fatal():
        raise OSError(number, "no more")

    assert caught.value.code == "storage"


@pytest.mark.parametrize("number", [errno.EACCES, errno.EISDIR, errno.EIO, errno.ENOENT])
def test_an_object_that_alone_cannot_be_read_is_its_polls_trouble(number: int) -> None:
    with pytest.raises(OSError) as caught, storage_errors_fatal():  # noqa: PT011 - the errno is what counts
        raise OSError(number, "this one")

    assert classify(caught.value).error_class is ErrorClass.TRANSIENT


def test_a_folder_in_an_objects_place_does_not_stop_every_run(tmp_path: Path) -> None:
    content = ContentStore(tmp_path)
    name = content.put(b"body")
    path = tmp_path / name[:2] / name[2:]
    path.unlink()
    path.mkdir()

    with pytest.raises(IsADirectoryError), storage_errors_fatal():
        content.put(b"body")
