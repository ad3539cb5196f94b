"""`ingest simulate`: what another schedule would have cost and found, from this installation's own history."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from ingestion_pipeline.cli.output import echo, is_json, json_option, print_json, print_records
from ingestion_pipeline.cli.session import reading

if TYPE_CHECKING:
    from ingestion_pipeline.operations.polling_simulation import Simulation


@click.group()
def simulate() -> None:
    """Replay recorded history under other settings."""


@simulate.command()
@click.option("--days", type=click.FloatRange(1, 365), default=30.0, show_default=True, help="The last days to replay.")
@click.option("--budget", type=click.FloatRange(min=0, min_open=True), help="Requests a day for all sources of a kind.")
@json_option
def polling(*, days: float, budget: float | None) -> None:
    """Replay the changes of series and boards under several polling policies.

    Prints the requests and the delays by tiers, by the change model at as many requests, at one
    request more a source and day, and at --budget. Older changes are learned before the replay.
    """
    from ingestion_pipeline.operations.polling_simulation import simulate_polling

    with reading() as (settings, connection, now):
        simulations = simulate_polling(connection, settings, now=now, days=days, budget=budget)
    if is_json():
        print_json({"days": days, "kinds": [asdict(simulation) for simulation in simulations]})
        return
    for simulation in simulations:
        echo(f"{simulation.kind}: {simulation.sources} sources, {simulation.changes} changes in {days:g} days")
        print_records([asdict(policy) for policy in simulation.policies], numbers=NUMBERS, flexible={"policy"})
        echo(_marginal(simulation))
    if not simulations:
        echo(f"no source has two changes and one of them in the last {days:g} days; try more --days")


NUMBERS = {"requests_per_day", "mean_delay_minutes", "p90_delay_minutes", "request_cost_seconds"}


def _marginal(simulation: "Simulation") -> str:
    """Return what one more request a day for each source saves."""
    policies = {policy.policy: policy for policy in simulation.policies}
    before, after = policies["change model"], policies["one request more a source and day"]
    saved = before.mean_delay_minutes - after.mean_delay_minutes
    return f"one more request a day and source finds a change {saved:.1f} minutes earlier on average\n"
