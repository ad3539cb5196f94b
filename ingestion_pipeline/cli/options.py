"""Options that several commands share."""

from __future__ import annotations

import json
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


config_option = click.option(
    "--config", type=JsonObject(), help="What the platform's reader is told, as a JSON object."
)
