"""Options that several commands share."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, cast

import click

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON: stable keys, UTC times, decimals as text."
)


class JsonObject(click.ParamType[dict[str, Any]]):
    """An option whose value is a JSON object."""

    name = "JSON"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, Any]:
        """The object; anything else is refused with where it stops being one."""
        if isinstance(value, dict):
            return cast("dict[str, Any]", value)
        try:
            found: object = json.loads(str(value))
        except (ValueError, RecursionError) as error:
            self.fail(f"not JSON ({error}); quote it for the shell: '{{\"key\": 1}}'", param, ctx)
        if not isinstance(found, dict):
            self.fail(f"must be a JSON object, not {type(found).__name__}", param, ctx)
        return cast("dict[str, Any]", found)


class MomentType(click.ParamType[datetime]):
    """An option whose value is a moment; without a zone it is UTC."""

    name = "ISO"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        """The moment in UTC; anything else is refused."""
        if isinstance(value, datetime):
            return value
        try:
            moment = datetime.fromisoformat(str(value))
            return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is no moment such as 2026-03-01T12:00:00Z", param, ctx)


config_option = click.option(
    "--config", type=JsonObject(), help="What the platform's reader is told, as a JSON object."
)
