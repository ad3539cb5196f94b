"""Load the settings of a run: from the environment, else the `settings` table, else the default."""

import os
import re
from collections.abc import Mapping
from decimal import Decimal
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, SecretStr, ValidationError, field_validator

from ingestion_pipeline.settings import groups
from ingestion_pipeline.settings.groups import LIMIT, Group, Work, limit_usd, setting

PREFIX = "INGESTION_"
LAST_PORT = 65_535
# As the guard writes it: a name or an IPv4 address, or an IPv6 address in brackets.
_HOST_AND_PORT = re.compile(r"(?:[a-z0-9._-]+|\[[0-9a-f:.]+\]):(?P<port>[1-9][0-9]{0,4})")

_VARIABLE_AND_HOST = re.compile(
    r"[A-Za-z_][A-Za-z0-9_]{0,99}@(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[1-9][0-9]{0,4})?"
)

# A comma or a blank inside an Apprise URL separates its own targets.
_BEFORE_A_SCHEME = re.compile(r"(?<![\s,])[\s,]++(?=[A-Za-z][A-Za-z0-9+.-]*+://)")

# A key may stand in it by mistake; its message names each problem by place.
_HIDDEN = frozenset({"secrets", "website.providers"})
_USER_INFO = re.compile(r"//[^/]*@")


class BadSetting(ValueError):
    """A value that is not accepted; the message names the variable, the value and what is."""


class Settings(Group):
    """All settings of one run; build it with `load_settings` and pass it on."""

    database_url: str = setting("", "SQLAlchemy URL; SQLite in INGESTION_HOME by default")
    home: Path = setting(Path(".ingestion"), "database, snapshots, exports")
    sources: Path = setting(Path("sources"), "folder of source files")
    exports: Path = setting(Path("exports.yaml"), "file of exports that are kept current as assets")
    allow_hosts: str = setting("", "host:port,... exempt from the private-address guard")
    secrets: str = setting("", "VARIABLE@host,...: which secret of the environment may be sent to which host")
    shadow: bool = setting(default=False, meaning="read stored snapshots instead of the web, send nothing")
    shadow_home: str = setting("", "INGESTION_HOME of the installation that a shadow reads")
    shadow_database_url: str = setting("", "its database; SQLite in its home by default")
    ui_hosts: str = setting("", "names,... of the UI behind a proxy, besides localhost")
    user_agent: str = setting(
        "ingestion_pipeline/0.1",
        "printable ASCII, sent with every request; put a way to reach you into it",
        pattern=r"^[\x20-\x7e]+$",
    )
    log_level: str = setting(
        "INFO", "DEBUG, INFO, WARNING, ERROR or CRITICAL", pattern=r"^(DEBUG|INFO|WARNING|ERROR|CRITICAL)$"
    )
    log_format: str = setting(
        "text", "text, or json: a line on stderr with run, source and tracking id", pattern=r"^(text|json)$"
    )
    browser: str = setting("", "path of a Chromium; playwright's own or the system's by default")
    notify_urls: SecretStr = setting(SecretStr(""), "your own Apprise URLs, for mailto: and notify:; secret")
    openai_api_key: SecretStr = setting(SecretStr(""), "of the language model's provider; secret")
    openai_base_url: str = setting(
        "", "any server that speaks OpenAI's protocol; OpenAI's own by default", pattern=r"^(https?://[^\s@]+)?$"
    )
    model_cheap: str = setting("gpt-5-mini", "asked first, where rules end", pattern=r"^\S+$")
    model_strong: str = setting("gpt-5", "asked where the cheap one fails", pattern=r"^\S+$")
    model_budget_usd: str = setting("50", "dollars for one extraction, or none", pattern=LIMIT)
    model_budget_month_usd: str = setting("none", "dollars for all in a month (UTC), or none", pattern=LIMIT)
    polling: groups.Polling = groups.Polling()
    interval: groups.Interval = groups.Interval()
    tiers: groups.Tiers = groups.Tiers()
    work: groups.Work = groups.Work()
    hosts: groups.Hosts = groups.Hosts()
    crawl: groups.Crawl = groups.Crawl()
    fetch: groups.Fetch = groups.Fetch()
    rights: groups.Rights = groups.Rights()
    identity: groups.Identity = groups.Identity()
    snapshots: groups.Snapshots = groups.Snapshots()
    rendering: groups.Rendering = groups.Rendering()
    extraction: groups.Extraction = groups.Extraction()
    company: groups.Company = groups.Company()
    filter: groups.Filter = groups.Filter()
    match: groups.Match = groups.Match()
    website: groups.Website = groups.Website()
    retention: groups.Retention = groups.Retention()
    notices: groups.Notices = groups.Notices()
    models: groups.Models = groups.Models()
    runs: groups.Runs = groups.Runs()
    health: groups.HealthLimits = groups.HealthLimits()

    @field_validator("allow_hosts")
    @classmethod
    def _each_has_a_port(cls, allow_hosts: str) -> str:
        wrong = [entry for entry in _entries(allow_hosts) if not _is_host_and_port(entry)]
        if wrong:
            raise ValueError(
                f"{', '.join(map(repr, wrong))} is not host:port;"
                f" write name:port, address:port or [IPv6]:port, port 1 to {LAST_PORT}"
            )
        return allow_hosts

    @field_validator("secrets")
    @classmethod
    def _each_names_variable_and_host(cls, secrets: str) -> str:
        for number, entry in enumerate(_listed(secrets), start=1):
            if not _VARIABLE_AND_HOST.fullmatch(entry):  # not repeated: it may be a secret itself
                raise ValueError(
                    f"entry {number} is not VARIABLE@host; write the name of the variable, @,"
                    " and the host, with its port if it has one"
                )
        return secrets

    @property
    def store_url(self) -> str:
        """Return the database URL with an installed driver; by default SQLite under home."""
        return _with_driver(self.database_url or _sqlite_in(self.home))

    @property
    def shadowed_url(self) -> str:
        """Return the URL of the database that a shadow reads."""
        return _with_driver(self.shadow_database_url or _sqlite_in(Path(self.shadow_home)))

    @property
    def allowed_hosts(self) -> frozenset[str]:
        """Return the `host:port` pairs that may be private addresses."""
        return frozenset(_entries(self.allow_hosts))

    @property
    def allowed_secrets(self) -> frozenset[tuple[str, str]]:
        """Return each variable with a host that it may be sent to."""
        pairs = (entry.rpartition("@") for entry in _listed(self.secrets))
        return frozenset((variable, host.lower()) for variable, _, host in pairs)

    @property
    def ui_names(self) -> frozenset[str]:
        """Return the host names of the UI besides those of loopback."""
        return frozenset(_entries(self.ui_hosts))

    @property
    def notify_services(self) -> tuple[str, ...]:
        """Return the operator's Apprise URLs, separated by commas or blanks."""
        parts = _BEFORE_A_SCHEME.split(self.notify_urls.get_secret_value().strip())
        return tuple(part.rstrip(", ") for part in parts if part)

    @property
    def has_model(self) -> bool:
        """Return whether a language model is configured, by a key or a server URL; a shadow counts its questions."""
        return self.shadow or bool(self.openai_api_key.get_secret_value() or self.openai_base_url)

    @property
    def catalog_work(self) -> Work:
        """Return the retries of a catalogue's tasks, which have their own first delay."""
        base = {"backoff_base_seconds": self.crawl.backoff_base_seconds}
        return self.work.model_copy(update=base)

    @property
    def extraction_budget(self) -> Decimal | None:
        """Return the dollars that models may cost in one extraction; None for no limit."""
        return limit_usd(self.model_budget_usd)

    @property
    def month_budget(self) -> Decimal | None:
        """Return the dollars that models may cost in a month; None for no limit."""
        return limit_usd(self.model_budget_month_usd)

    def interval_seconds(self, kind: str, tier: str) -> int:
        """Return the seconds between two checks of a source of this kind in this tier."""
        return int(getattr(self.interval, f"{kind}_{tier}", None) or getattr(self.interval, f"other_{tier}"))


def _sqlite_in(home: Path) -> str:
    return f"sqlite:///{home.absolute() / 'ingestion.db'}"


def _with_driver(url: str) -> str:
    for scheme in ("postgresql://", "postgres://"):
        if url.startswith(scheme):
            return "postgresql+psycopg2://" + url.removeprefix(scheme)
    return url


OTHER_VARIABLES = frozenset({"INGESTION_SAMPLES"})  # read by the tests alone


def load_settings(environment: Mapping[str, str] | None = None, overrides: Mapping[str, str] | None = None) -> Settings:
    """Return the settings of this run; one `BadSetting` names every bad value."""
    environment = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    for key, text in (overrides or {}).items():
        if key in setting_fields():  # a row of another version is left alone; `doctor` names it
            _place(values, key.split("."), text)
    for variable, key in variables().items():
        if (text := environment.get(variable, "")) != "":
            _place(values, key.split("."), text)
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise BadSetting(_explain(error, environment)) from None


def replaced_environment(variables: Mapping[str, str]) -> Mapping[str, str] | None:
    """Return the environment with these variables; None, which is the environment, without any."""
    return {**os.environ, **variables} if variables else None


def secret_variable(name: str, environment: Mapping[str, str] | None = None) -> SecretStr:
    """Return a key that a setting names by its variable; empty if the variable is not set."""
    environment = os.environ if environment is None else environment
    return SecretStr(environment.get(name, "") if name else "")


def variables() -> dict[str, str]:
    """Return each environment variable with the key of its setting."""
    return {_variable(key): key for key in setting_fields()}


def _variable(key: str) -> str:
    # The OpenAI client's own names: its users have them set already.
    prefix = "" if key.startswith("openai_") else PREFIX
    return prefix + key.replace(".", "__").upper()


def setting_fields() -> dict[str, tuple[Any, str]]:
    """Return each setting's key with its default and description."""
    fields: dict[str, tuple[Any, str]] = {}
    for name, field in Settings.model_fields.items():
        if isinstance(field.default, Group):
            for inner, inner_field in type(field.default).model_fields.items():
                fields[f"{name}.{inner}"] = (inner_field.default, inner_field.description or "")
        else:
            fields[name] = (field.default, field.description or "")
    return fields


def check_override(key: str, text: str) -> str:
    """Return `text` if the settings table may hold it under `key`, else raise `BadSetting`."""
    fields = setting_fields()
    if "." not in key or key not in fields:
        raise unknown_setting(key)
    load_settings({}, {key: text})
    return text


def unknown_setting(key: str) -> BadSetting:
    """Return the error for a key that the table cannot hold, with the nearest ones."""
    keys = [name for name in setting_fields() if "." in name]
    close = get_close_matches(key, keys, cutoff=0.5) or get_close_matches(key.rpartition(".")[2], keys, cutoff=0.3)
    cure = f"did you mean {' or '.join(close)}? " if close else ""
    return BadSetting(f"{key!r} is not a setting of the table; {cure}`ingest settings list` shows all")


def value_type(key: str) -> str:
    """Return int, float or string: how the table names the type of a setting."""
    group, _, name = key.partition(".")
    owner = cast("type[BaseModel]", type(getattr(Settings(), group)) if name else Settings)
    annotation = owner.model_fields[name or group].annotation
    return {int: "int", float: "float"}.get(cast("type[Any]", annotation), "string")


def unknown_variables(environment: Mapping[str, str] | None = None) -> list[str]:
    """Return variables with our prefix that no setting reads: most likely a typo."""
    environment = os.environ if environment is None else environment
    read_variables = variables().keys() | OTHER_VARIABLES
    return sorted(name for name in environment if name.startswith(PREFIX) and name not in read_variables)


def _listed(comma_list: str) -> list[str]:
    parts = (part.strip() for part in comma_list.split(","))
    return [part for part in parts if part]


def _entries(comma_list: str) -> list[str]:
    return [part.lower() for part in _listed(comma_list)]


def _is_host_and_port(entry: str) -> bool:
    match = _HOST_AND_PORT.fullmatch(entry)
    return match is not None and int(match["port"]) <= LAST_PORT


def _place(values: dict[str, Any], path: list[str], text: str) -> None:
    for name in path[:-1]:
        values = values.setdefault(name, {})
    values[path[-1]] = text


def _explain(error: ValidationError, environment: Mapping[str, str]) -> str:
    lines: list[str] = []
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"])
        variable = _variable(key)
        name = variable if environment.get(variable, "") != "" else f"setting {key}"
        meaning = setting_fields().get(key, (None, "no such setting"))[1]
        message = problem["msg"].removeprefix("Value error, ")
        reason = message[:1].lower() + message[1:]
        value = _USER_INFO.sub("//...@", repr(problem["input"]))
        value = "..." if key in _HIDDEN else value
        lines.append(f"{name}={value}: {reason} ({meaning})")
    return "\n".join(lines)
