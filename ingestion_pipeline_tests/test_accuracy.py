"""`make eval`: the shared samples are read at least as well as the floors say."""

import shutil
from pathlib import Path

import pytest

from benchmarks import accuracy
from ingestion_pipeline.reading.scoring import FieldScore
from ingestion_pipeline_tests.samples import sample


@pytest.mark.slow
@pytest.mark.parametrize("name", accuracy.MEASURES)
def test_each_measure_reaches_its_floor(name: str) -> None:
    lines = list(accuracy.MEASURES[name](sample(name)))

    assert [line.name for line in lines if line.ours < line.floor] == []
    assert all(line.n >= 40 for line in lines)


def test_a_measure_below_its_floor_fails_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(sample("autopager"), tmp_path / "autopager")
    for file in (tmp_path / "autopager").glob("*.html"):
        file.write_text("<a class=next href=/2>Other words</a>")
    monkeypatch.setenv("INGESTION_SAMPLES", str(tmp_path))

    assert accuracy.main() == 1
    assert "below its floor" in capsys.readouterr().out


def test_without_samples_the_command_says_where_they_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INGESTION_SAMPLES", str(tmp_path))

    assert accuracy.main() == 2
    assert f"no samples in {tmp_path}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "accepted", "expected"),
    [
        ("R&D  Lead", ["R&D Lead"], (1, 0, 0)),
        ("Lead", ["R&D Lead"], (0, 1, 1)),
        (None, ["R&D Lead"], (0, 0, 1)),
        ("Lead", [], (0, 1, 0)),
        (None, [], (0, 0, 0)),
    ],
)
def test_a_value_is_right_wrong_or_missed(
    value: str | None, accepted: list[str], expected: tuple[int, int, int]
) -> None:
    hits = FieldScore()

    accuracy.count_value(hits, value, accepted)

    assert (hits.right, hits.wrong, hits.missed) == expected
