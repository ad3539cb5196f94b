"""Exports that a file declares, each to be kept current: what, in which format, to which folder, whole or by source."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import yaml
from pydantic import Field, StringConstraints

from ingestion_pipeline.exports.export_request import TABLES, ExportRequest, request_for
from ingestion_pipeline.exports.formats import Format
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.declarations import BadField, FileModel, Flag, as_mapping, expect, validated
from ingestion_pipeline.sources.files import compose, construct, located, repeated_keys, unreadable

_Id = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,59}$"),
    expect("{value} is no id: write a-z 0-9 _, a letter first"),
]
_Format = Annotated[Format, expect(f"{{value}} is no format; there are: {', '.join(Format)}")]


class DeclaredExport(FileModel):
    """An entry under `exports:`."""

    id: _Id = Field(description="name of the asset, and of the file")
    export: str = Field(description="table or entity type, as for `ingest export`")
    format: _Format = Format.PARQUET
    folder: Path | None = Field(default=None, description="where it is written; INGESTION_HOME/exports by default")
    by_source: Flag = Field(default=False, description="a file for each source, each a partition of the asset")
    evidence: Flag = Field(default=False, description="of items: columns with the evidence of each field")

    @classmethod
    def mistakes(cls, values: Mapping[str, Any]) -> Iterator[BadField]:
        """Yield what the table does not have."""
        table = TABLES.get(str(values.get("export")))
        if table is not None and values.get("by_source") is True and table.source_id is None:
            yield BadField("by_source", f"rows of {values['export']} belong to no single source")
        if table is not None and values.get("evidence") is True:
            yield BadField("evidence", f"{values['export']} has none: only items have")

    def request(self, settings: Settings, source_id: str | None = None) -> ExportRequest:
        """Return the request for the rows, of one source or of all."""
        return request_for(settings, self.export, source_id=source_id, evidence=self.evidence)

    def file_name(self, source_id: str | None) -> str:
        """Return the name of the file, which is replaced whenever the rows change."""
        return f"{self.id}.{source_id.replace(':', '~')}.{self.format}" if source_id else f"{self.id}.{self.format}"


class ExportsFile(FileModel):
    """The file of exports."""

    exports: tuple[DeclaredExport, ...]

    @classmethod
    def mistakes(cls, values: Mapping[str, Any]) -> Iterator[BadField]:
        """Yield the ids that are declared twice."""
        entries = cast("list[object]", values["exports"]) if isinstance(values.get("exports"), list) else []
        ids = [as_mapping(entry).get("id") for entry in entries]
        for place, id_ in enumerate(ids):
            if id_ is not None and id_ in ids[:place]:
                yield BadField(f"exports[{place}].id", f"{id_!r} is declared twice")


class BadExports(ValueError):
    """A file of exports with mistakes, a line for each."""


def read_exports(settings: Settings) -> Sequence[DeclaredExport]:
    """Return the exports of the file, none if there is no file; raise BadExports with all its mistakes."""
    path = settings.exports
    if not path.exists():
        return ()
    body = path.read_bytes()
    try:
        root = compose(body)
        raw: object = None if root is None else construct(root)
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise BadExports(str(unreadable(str(path), body, error))) from error
    if root is None:
        return ()
    file, bad = validated(ExportsFile, raw)
    bad += [BadField(key, "stands twice; keep one of them") for key, _ in repeated_keys(root)]
    if file is not None:
        bad += list(_unknown_exports(file, settings))
    if file is None or bad:
        raise BadExports("\n".join(map(str, located(str(path), root, bad))))
    return file.exports


def _unknown_exports(file: ExportsFile, settings: Settings) -> Iterator[BadField]:
    for place, declared in enumerate(file.exports):
        try:
            declared.request(settings).check()
        except (LookupError, ValueError) as error:
            yield BadField(f"exports[{place}].export", str(error))
