"""Platform `json`: any JSON list of chapters, described by the source's config."""

from __future__ import annotations

from collections.abc import Mapping

from ingestion_pipeline.reading.structured.json_items import BadJsonPath, JsonPath, JsonReader
from ingestion_pipeline.series.platforms.generic import FIELDS, ListedFeed, naming_field, read_defaults
from ingestion_pipeline.series.platforms.protocol import SeriesPlatform
from ingestion_pipeline.sources.config_reader import ConfigReader

ACCEPT = "application/json, */*;q=0.5"


def configure(url: str, config: Mapping[str, object]) -> ListedFeed:
    """Build the feed from `items` and `fields`; all problems of the config are raised at once."""
    reader = ConfigReader("json", config)
    defaults = read_defaults(url, reader)
    fields = reader.text_lists("fields", allowed=FIELDS)
    items, following = reader.text("items") or "", reader.text("next")
    json_reader = JsonReader(
        items=_path(reader, "items", items),
        fields={name: [_path(reader, f"fields.{name}", path) for path in paths] for name, paths in fields.items()},
        required=naming_field(list(fields), reader),
        next=_path(reader, "next", following) if following else None,
    )
    reader.finish()
    return ListedFeed(platform="json", accept=ACCEPT, defaults=defaults, reader=json_reader)


def _path(reader: ConfigReader, key: str, text: str) -> JsonPath:
    try:
        return JsonPath.of(text)
    except BadJsonPath as error:
        reader.reject(key, str(error))
        return JsonPath.of("")


PLATFORM = SeriesPlatform(name="json", version=2, rate=None, honours_robots=True, configure=configure)
