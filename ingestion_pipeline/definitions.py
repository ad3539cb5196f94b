"""The Dagster definitions: of this package alone, to merge into a project, and as a component in YAML."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import dagster as dg
from pydantic import Field

from ingestion_pipeline.engine.context import MountNames
from ingestion_pipeline.orchestration.assets import source_definitions
from ingestion_pipeline.orchestration.automation import schedules, sensors
from ingestion_pipeline.orchestration.checks import health_definitions, run_context_resource
from ingestion_pipeline.orchestration.exports import export_definitions
from ingestion_pipeline.orchestration.jobs import job_definitions
from ingestion_pipeline.orchestration.mount import OWNERS, RESOURCE, Mount
from ingestion_pipeline.orchestration.rows import rows_io_manager
from ingestion_pipeline.orchestration.runs import versioned
from ingestion_pipeline.sources.files import declare_in


def build_definitions(  # noqa: PLR0913 - each has a default
    *,
    key_prefix: Sequence[str] = (),
    job_prefix: str = "",
    group: str | None = None,
    owners: Sequence[str] | None = None,
    sources: str | Path | None = None,
    exports: str | Path | None = None,
    database_url: str | None = None,
    home: str | Path | None = None,
    shadow_of: str | Path | None = None,
    resource_key: str = RESOURCE,
) -> dg.Definitions:
    """Return assets, checks, jobs, schedules and sensors over one store, to merge with other definitions.

    `key_prefix` is that of the assets, `job_prefix` that of jobs, schedules, sensors, partition sets and shards. What
    is not given comes from the environment: the folder `sources` from INGESTION_SOURCES, the file `exports` from
    INGESTION_EXPORTS, `database_url` from INGESTION_DATABASE_URL, `home` from INGESTION_HOME. With `shadow_of`, the
    home of another installation, its snapshots are read instead of the web (INGESTION_SHADOW_HOME). A second mount in
    the same code location needs other prefixes and another `resource_key`.
    """
    variables = {
        "INGESTION_SOURCES": sources,
        "INGESTION_EXPORTS": exports,
        "INGESTION_DATABASE_URL": database_url,
        "INGESTION_HOME": home,
        "INGESTION_SHADOW": None if shadow_of is None else "1",
        "INGESTION_SHADOW_HOME": shadow_of,
    }
    mount = Mount(
        names=MountNames(key_prefix=tuple(key_prefix), job_prefix=job_prefix),
        resource_key=resource_key,
        group=group,
        owners=OWNERS if owners is None else owners,
        environment={name: str(value) for name, value in variables.items() if value is not None},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)  # backfill policies, references to code
        return _definitions(mount)


def _definitions(mount: Mount) -> dg.Definitions:
    parts = [source_definitions(mount), health_definitions(mount), job_definitions(mount), export_definitions(mount)]
    jobs = [job for part in parts for job in part.jobs or ()]
    by_name = {job.name.removeprefix(mount.names.job_prefix): job for job in jobs}
    assets: list[Any] = [asset for part in parts for asset in part.assets or ()]
    return dg.Definitions(
        assets=dg.with_source_code_references([asset.map_asset_specs(versioned) for asset in assets]),
        asset_checks=[check for part in parts for check in part.asset_checks or ()],
        jobs=jobs,
        schedules=schedules(mount, by_name),
        sensors=[*sensors(mount, by_name), *(sensor for part in parts for sensor in part.sensors or ())],
        resources={mount.resource_key: run_context_resource(mount), mount.io_key: rows_io_manager(mount)},
    )


def _described(text: str) -> dg.Resolver:
    """Return what gives an attribute with a default its description: Dagster drops that of a field."""
    return dg.Resolver.default(description=text)


class _WebSourcesScaffolder(dg.Scaffolder):
    """Writes a `defs.yaml` that polls one feed."""

    def scaffold(self, request: dg.ScaffoldRequest) -> None:
        """Write the file."""
        name = request.target_path.name
        feed = {"id": f"series:{name}", "kind": "series", "url": "https://example.com/feed.xml", "platform": "rss"}
        dg.scaffold_component(request, {"name": name, "home": f".ingestion/{name}", "sources": [feed]})


@dg.scaffold_with(_WebSourcesScaffolder)
class WebSources(dg.Component, dg.Model, dg.Resolvable):
    """Web sources (feeds, job boards, catalogues, company sites, websites) as fresh tables.

    Each source is a partition. Schedules and sensors poll it as often as it deserves, politely, and its records are
    stored once; assets downstream take them as arguments. Several components in a project work on stores of their own.
    """

    name: str = Field(
        pattern=r"^[a-z][a-z0-9_]*$", description="the prefix of jobs, schedules, sensors and partition sets"
    )
    home: str = Field(description="folder of database, snapshots and exports; relative to the project")
    sources: str | list[dict[str, Any]] = Field(
        description="folder of source files, relative to this file; or the sources themselves, as in such a file"
    )
    database_url: Annotated[str | None, _described("SQLAlchemy URL; SQLite in `home` by default")] = None
    shadow_of: Annotated[str | None, _described("home whose snapshots are read instead of the web; sends nothing")] = (
        None
    )
    exports: Annotated[str, _described("file of exports, each an asset; relative to this file")] = "exports.yaml"
    key_prefix: Annotated[list[str] | None, _described("of the assets' keys; the name by default")] = None
    group: Annotated[str | None, _described("of all assets; by default one for each system")] = None
    owners: Annotated[list[str] | None, _described("of all assets: addresses, or team:NAME")] = None

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the definitions over the component's own store."""
        home = context.project_root / self.home
        folder = home / "sources" if isinstance(self.sources, list) else context.path / self.sources
        if isinstance(self.sources, list):
            declare_in(folder, self.sources)
        return build_definitions(
            key_prefix=[self.name] if self.key_prefix is None else self.key_prefix,
            job_prefix=f"{self.name}_",
            resource_key=self.name,
            group=self.group,
            owners=self.owners,
            home=home,
            shadow_of=None if self.shadow_of is None else context.project_root / self.shadow_of,
            sources=folder,
            exports=context.path / self.exports,
            database_url=self.database_url,
        )


# Materializing assets in the UI, too, takes the run's own process: another one costs three seconds a step.
defs = dg.Definitions.merge(build_definitions(), dg.Definitions(executor=dg.in_process_executor))
