from pathlib import Path

import pytest

from ingestion_pipeline.demo.content import (
    DemoState,
    DemoStateError,
    break_site,
    mutate,
    overload,
    read_state,
    repair,
    state_file,
    write_state,
)


def test_a_home_without_a_state_has_the_site_as_shipped(tmp_path: Path) -> None:
    assert read_state(tmp_path / "nowhere") == DemoState()


def test_a_written_state_is_read_back_whole(tmp_path: Path) -> None:
    state = DemoState(new_chapters=3, is_broken=True, is_overloaded=True)

    write_state(tmp_path, state)

    assert read_state(tmp_path) == state


def test_writing_replaces_the_old_state_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    write_state(tmp_path, DemoState(new_chapters=1))
    write_state(tmp_path, DemoState(new_chapters=2))

    assert read_state(tmp_path).new_chapters == 2
    assert list((tmp_path / "demo").iterdir()) == [state_file(tmp_path)]


def test_a_failed_write_leaves_no_temporary_file(tmp_path: Path) -> None:
    state_file(tmp_path).mkdir(parents=True)

    with pytest.raises(IsADirectoryError):
        write_state(tmp_path, DemoState())

    assert list((tmp_path / "demo").iterdir()) == [state_file(tmp_path)]


def test_each_mutation_is_one_more_chapter() -> None:
    assert mutate(mutate(DemoState())).new_chapters == 2


def test_repair_undoes_the_damage_but_keeps_the_chapters() -> None:
    bad_day = overload(break_site(mutate(DemoState())))

    assert bad_day == DemoState(new_chapters=1, is_broken=True, is_overloaded=True)
    assert repair(bad_day) == DemoState(new_chapters=1)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param(b'{"new_chap', "Unterminated string", id="cut off"),
        pytest.param(b"", "Expecting value", id="empty"),
        pytest.param(b"\xff\xfe\xff", "decode", id="not text"),
        pytest.param(b"[1]", "not a JSON object", id="not an object"),
        pytest.param(b'{"chapters": 1}', "unknown: chapters", id="unknown key"),
        pytest.param(b'{"new_chapters": -1}', "new_chapters is not a count: -1", id="negative"),
        pytest.param(b'{"new_chapters": true}', "new_chapters is not a count", id="flag as count"),
        pytest.param(b'{"is_broken": 1}', "is_broken is neither true nor false", id="count as flag"),
    ],
)
def test_a_damaged_state_names_the_file_the_reason_and_the_cure(tmp_path: Path, text: bytes, reason: str) -> None:
    path = state_file(tmp_path)
    path.parent.mkdir()
    path.write_bytes(text)

    with pytest.raises(DemoStateError) as caught:
        read_state(tmp_path)

    assert str(path) in str(caught.value)
    assert reason in str(caught.value)
    assert "delete it to restart the demo" in str(caught.value)
