"""`ingest settings`: list, set and unset settings."""

from collections.abc import Mapping

import click

from ingestion_pipeline.cli.output import CommandRefused, echo, json_option, print_listing, print_result
from ingestion_pipeline.cli.session import actor, environment, opened_store, shown_database


@click.group()
def settings() -> None:
    """Show and change settings.

    The environment wins over the table, the table over the defaults.
    """


@settings.command("list")
@json_option
def list_() -> None:
    """Show every setting and where it comes from."""
    from ingestion_pipeline.store.stored_settings import overrides

    with opened_store() as store, store.read() as connection:
        rows = setting_rows(environment(), overrides(connection))
    print_listing(
        rows,
        lambda row: {"setting": row["key"], "value": row["value"], "from": row["from"], "meaning": row["meaning"]},
        empty="no settings",
        flexible={"value", "meaning"},
    )


def setting_rows(variables_set: Mapping[str, str], table: Mapping[str, str]) -> list[dict[str, str]]:
    """Return every setting, and unknown rows of the table; never fail over a bad value."""
    from ingestion_pipeline.settings import setting_fields, variables

    variable_of = {key: variable for variable, key in variables().items()}
    rows = [
        _row(key, variable_of[key], str(default), meaning, variables_set, table)
        for key, (default, meaning) in setting_fields().items()
    ]
    unknown = sorted(table.keys() - variable_of.keys())
    cure = "no such setting: `ingest settings unset` removes it"
    rows += [{"key": key, "value": table[key], "from": "table", "variable": "", "meaning": cure} for key in unknown]
    return rows


def _row(
    key: str, variable: str, default: str, meaning: str, variables_set: Mapping[str, str], table: Mapping[str, str]
) -> dict[str, str]:
    if text := variables_set.get(variable, ""):
        value, origin = text, "environment"
    elif key in table:
        value, origin = table[key], "table"
    else:
        value, origin = default, "default"
    if key == "database_url" and value:
        value = shown_database(value)
    if key in {"notify_urls", "openai_api_key"} and value:
        value = "(set, and secret)"
    return {"key": key, "value": value, "from": origin, "variable": variable, "meaning": meaning}


# A negative number is a value, not an option.
@settings.command("set", context_settings={"ignore_unknown_options": True})
@click.argument("key")
@click.argument("value")
@json_option
def set_(*, key: str, value: str) -> None:
    """Change a setting, from the next run on."""
    from ingestion_pipeline.settings import variables
    from ingestion_pipeline.store.stored_settings import set_override

    variable = {key: variable for variable, key in variables().items()}.get(key, "")
    if variable and "." not in key:
        raise CommandRefused(
            f"{key} is needed to find the table: set {variable} in the environment", code="environment_only"
        )
    with opened_store() as store, store.begin() as connection:
        set_override(connection, key, value, actor=actor(), now=store.clock.now(connection))
    print_result({"setting": key, "value": value}, f"{key} is {value} from the next run on")
    if environment().get(variable, ""):
        echo(f"warning: {variable} is set in the environment and takes precedence", is_error=True)


@settings.command()
@click.argument("key")
@json_option
def unset(*, key: str) -> None:
    """Restore the default."""
    from ingestion_pipeline.settings import setting_fields
    from ingestion_pipeline.settings.loading import unknown_setting
    from ingestion_pipeline.store.stored_settings import unset_override

    with opened_store() as store, store.begin() as connection:
        gone = unset_override(connection, key, actor=actor(), now=store.clock.now(connection))
    if not gone and key not in setting_fields():
        raise unknown_setting(key)
    is_out = "was removed from the settings table" if gone else "was not in the settings table"
    message = f"{key} {is_out}; the default applies, unless the environment sets it"
    print_result({"setting": key, "was_set": gone}, message)
