"""A mount: the names and settings under which these definitions stand in a Dagster project.

Ops, assets, jobs, schedules and sensors are written as plain functions with a parameter `run_context`; the mount makes
Dagster's objects of them, each under its prefix. The run context carries the prefixes to what runs log and request.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Signature
from typing import Any

import dagster as dg

from ingestion_pipeline.engine.context import MountNames, RunContext
from ingestion_pipeline.registry import kind_specs
from ingestion_pipeline.sources import Kind

OWNERS = ("team:ingestion",)
RESOURCE = "run_context"
SOURCES = "sources"  # the partition set of all kinds
AnyOption = Any  # of Dagster's decorators
AnyJob = Any  # that of assets has a type of Dagster's own
RunContextParam = dg.ResourceParam[RunContext]


def asset_key(names: MountNames, asset: str) -> dg.AssetKey:
    """Return the key of the asset."""
    return dg.AssetKey([*names.key_prefix, asset])


def check_key(names: MountNames, asset: str, check: str) -> dg.AssetCheckKey:
    """Return the key of the asset's check."""
    return dg.AssetCheckKey(asset_key(names, asset), check)


def own_asset(names: MountNames, key: dg.AssetKey) -> str | None:
    """Return the name of the asset; None if the key has not the prefix of ours."""
    *prefix, asset = key.path
    return asset if tuple(prefix) == names.key_prefix else None


def set_name(names: MountNames, kind: Kind | None = None) -> str:
    """Return the name of the kind's partition set; without a kind, of the one of all sources."""
    return names.job(SOURCES if kind is None else kind_specs()[kind].partitions)


def set_names(kind: Kind, names: MountNames | None = None) -> list[str]:
    """Return the names of the sets that a source of this kind belongs to."""
    names = names or MountNames()
    return [set_name(names), *([set_name(names, kind)] if kind in kind_specs() else [])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """Where the definitions stand: their prefixes, the key of their resource, and the store they work on.

    `environment` has variables that replace those of the process. A `group` and `owners` replace those of the assets.
    """

    names: MountNames = field(default_factory=MountNames)
    resource_key: str = RESOURCE
    group: str | None = None
    owners: Sequence[str] = OWNERS
    environment: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def io_key(self) -> str:
        """Return the key of our I/O manager."""
        return f"{self.resource_key}_io"

    def key(self, asset: str) -> dg.AssetKey:
        """Return the key of the asset."""
        return asset_key(self.names, asset)

    def partitions(self, kind: Kind | None = None) -> dg.DynamicPartitionsDefinition:
        """Return the partition set of the kind; without a kind, that of all sources."""
        return dg.DynamicPartitionsDefinition(name=set_name(self.names, kind))

    def attributes(self, group: str) -> dict[str, Any]:
        """Return group and owners of an asset."""
        return {"group_name": self.group or group, "owners": list(self.owners)}

    def bound(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its parameter `run_context` under the name of our resource."""
        signature = inspect.signature(function)
        if self.resource_key == RESOURCE or RESOURCE not in signature.parameters:
            return function

        @functools.wraps(function)
        def renamed(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the function does
            ctx = kwargs.pop(self.resource_key)
            return function(*args, **kwargs, run_context=ctx)

        parameters = [
            parameter.replace(name=self.resource_key) if parameter.name == RESOURCE else parameter
            for parameter in signature.parameters.values()
        ]
        # Dagster takes what a function yields for its output's type, unless it sees that it is a generator.
        returned = Signature.empty if inspect.isgeneratorfunction(function) else signature.return_annotation
        bound = signature.replace(parameters=parameters, return_annotation=returned)
        renamed.__signature__ = bound  # pyright: ignore[reportAttributeAccessIssue]
        return renamed

    def op(
        self, function: Callable[..., Any], *, name: str | None = None, is_required: bool = True, **options: AnyOption
    ) -> dg.OpDefinition:
        """Return the op; what it returns passes through our I/O manager."""
        out = dg.Out(is_required=is_required, io_manager_key=self.io_key)
        name = self.names.job(name or function.__name__)
        return dg.op(name=name, out=out, **options)(self.bound(function))

    def job(self, function: Callable[[], None], *, name: str, **options: AnyOption) -> dg.JobDefinition:
        """Return the job; its steps run in the run's own process (another one costs three seconds each)."""
        return dg.job(name=self.names.job(name), executor_def=dg.in_process_executor, **options)(function)

    def step_job(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        description: str,
        config: AnyOption = None,
        run_tags: Mapping[str, str] | None = None,
        **options: AnyOption,
    ) -> dg.JobDefinition:
        """Return the job of one op; `config` is what the Launchpad opens with."""
        step = self.op(function, **options)
        opening = None if config is None else {"ops": {step.name: {"config": config}}}
        return self.job(step_alone(step), name=name, description=description, config=opening, tags=run_tags)

    def asset_job(self, name: str, *assets: str, has_checks: bool, **options: AnyOption) -> AnyJob:
        """Return the job that materializes these assets."""
        selection = dg.AssetSelection.assets(*map(self.key, assets))
        return dg.define_asset_job(
            self.names.job(name),
            selection=selection if has_checks else selection.without_checks(),
            executor_def=dg.in_process_executor,
            **options,
        )


def step_alone(step: dg.OpDefinition) -> Callable[[], None]:
    """Return the graph of this op alone."""

    def graph() -> None:
        step()

    return graph
