"""`ingest identity`."""

from ingestion_pipeline_tests.cli.conftest import Ingest


def test_a_key_is_created_once_and_its_directory_printed(ingest: Ingest) -> None:
    assert "no key" in ingest.refused("identity", "show")

    created = ingest.output("identity", "create")

    [key] = ingest.json("identity", "show")["keys"]
    assert key["kid"] in created
    assert key["crv"] == "Ed25519"
    assert "not signed" in ingest.output("identity", "show")
    assert "exists" in ingest.refused("identity", "create")
