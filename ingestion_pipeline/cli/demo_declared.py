"""What the demo declares: its sources and followers, from the files of its own room."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ingestion_pipeline.sources.files import SourceFile

DECLARED = ("sources.yaml", "catalogs.yaml", "companies.yaml", "websites.yaml")


def demo_file() -> SourceFile:
    """The declarations of the demo's sources, as one."""
    from dataclasses import replace

    first, *others = demo_files()
    return replace(
        first,
        definitions=(*first.definitions, *(one for file in others for one in file.definitions)),
        problems=(*first.problems, *(one for file in others for one in file.problems)),
    )


def demo_files() -> list[SourceFile]:
    """Each file with its own declarations, as sources name their origin."""
    return [_read_declared(name) for name in DECLARED]


def _read_declared(name: str) -> SourceFile:
    from importlib.resources import as_file, files

    from ingestion_pipeline.sources.files import read_file
    from ingestion_pipeline.systems import check_definition

    with as_file(files("ingestion_pipeline.demo") / name) as path:
        return read_file(path, check=check_definition)
