"""Contracts in the catalogue, and as checks."""

from __future__ import annotations

import dagster as dg
import pytest
from sqlalchemy import update

from ingestion_pipeline.assembly import open_workshop
from ingestion_pipeline.definitions import defs
from ingestion_pipeline.exports.contracts import CONTRACTS
from ingestion_pipeline.orchestration.contracts import NAME, changed_contracts
from ingestion_pipeline.store.tables import sources
from ingestion_pipeline_tests.builders import a_definition
from ingestion_pipeline_tests.orchestration.house import House
from ingestion_pipeline_tests.pollers import given_sources


@pytest.mark.parametrize("asset", CONTRACTS)
def test_every_asset_shows_the_columns_of_its_contract(asset: str) -> None:
    spec = defs.resolve_asset_graph().get(dg.AssetKey(asset))
    columns = spec.metadata["dagster/column_schema"].columns

    assert [one.name for one in columns] == [one.name for one in CONTRACTS[asset].columns()]


def test_a_broken_contract_is_told_once_with_its_severity(
    house: House, instance: dg.DagsterInstance
) -> None:
    with open_workshop(house.environment) as shop:
        given_sources(shop.store, a_definition())
        with shop.store.begin() as connection:
            connection.execute(update(sources).values(url="ftp://a.test/"))
        told = {one.asset_key.to_user_string(): one for one in changed_contracts(instance, shop)}

    assert {one.check_name for one in told.values()} == {NAME}
    assert told.keys() == CONTRACTS.keys()
    assert [name for name, one in told.items() if not one.passed] == ["sources"]
    assert told["sources"].severity is dg.AssetCheckSeverity.WARN
    assert "rows series:solo" in str(told["sources"].metadata["details"].value)
