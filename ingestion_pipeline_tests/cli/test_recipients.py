from pathlib import Path

import pytest
from sqlalchemy import select

from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import audit_log, follows, recipients
from ingestion_pipeline_tests.cli.conftest import Ingest
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import rows

SOURCE = ("sources", "add", "https://a.test/feed", "--id", "series:solo", "--kind", "series")
FILE = """\
sources:
  - {id: "series:solo", kind: series, platform: rss, url: "https://a.test/feed", series: solo}
recipients:
  - id: ann
    address: https://hooks.example.org/ann
    mode: digest
    follows: [solo, {series: other, mode: immediate, language: de}]
"""


@pytest.fixture(autouse=True)
def a_source(ingest: Ingest) -> None:
    ingest.output(*SOURCE, "--platform", "rss", "--series", "solo")


def follow_rows(home_store: Store) -> list[tuple[object, ...]]:
    query = select(follows.c.series_id, follows.c.mode, follows.c.language, follows.c.origin)
    with home_store.read() as connection:
        return sorted(tuple(row) for row in connection.execute(query))


def test_adding_following_and_removing_a_recipient_is_audited(ingest: Ingest, home_store: Store) -> None:
    output = ingest.output("recipients", "add", "ann", "https://hooks.example.org/ann")
    ingest.output("follow", "ann", "solo", "--mode", "digest", "--language", "PT-br")
    assert "already follows" in ingest.output(*("follow", "ann", "solo", "--mode", "digest", "--language", "pt-br"))
    [recipient] = ingest.json("recipients", "list")
    ingest.output("unfollow", "ann", "solo")
    assert "0 pending notices were muted" in ingest.output("recipients", "remove", "ann")

    assert "signed with whsec_" in output
    assert (recipient["id"], recipient["follows"], recipient["pending"]) == ("ann", ["solo"], 0)
    assert "secret" not in recipient
    assert "whsec_" not in str(recipient)
    assert (follow_rows(home_store), ingest.json("recipients", "list")) == ([], [])
    with home_store.read() as connection:
        actions = connection.execute(select(audit_log.c.action).order_by(audit_log.c.id)).scalars()
        assert list(actions)[1:] == [*("recipient.add", "recipient.follow", "recipient.unfollow", "recipient.remove")]


@pytest.mark.parametrize(
    ("line", "cure"),
    [
        (("recipients", "add", "ann", "tgram://123/456"), "'tgram' leads to no recipient"),
        (("recipients", "add", "ann", "https://u:p@a.test/"), "remove the part before the @"),
        (("recipients", "add", "Ann", "notify:"), "'Ann' is no id"),
        (("recipients", "add", "ann", "notify:", "--language", "?"), "'?' is no language"),
        (("recipients", "add", "ann", "notify:", "--kinds", "news"), "a list of: chapter"),
        (("recipients", "add", "ann", "https://a.test/", "--secret", "abc"), "base64 of 24 to 64"),
        (("recipients", "add", "bob", "notify:"), "exists already"),
        (("follow", "bobb", "solo"), "did you mean bob?"),
        (("follow", "bob", "sole"), "did you mean solo?"),
        (("unfollow", "bob", "solo"), "bob does not follow 'solo'"),
        (("recipients", "test", "bobb"), "did you mean bob?"),
    ],
)
def test_a_mistake_is_named_with_its_cure(ingest: Ingest, line: tuple[str, ...], cure: str) -> None:
    ingest.output("recipients", "add", "bob", "notify:")

    assert cure in ingest.refused(*line)


def test_a_test_message_prints_the_answer(ingest: Ingest) -> None:
    with FakeWeb({"/good": 204, "/bad": 500}) as web:
        allowed = {"INGESTION_ALLOW_HOSTS": web.host_port}
        ingest.output("recipients", "add", "good", web.url("/good"))
        ingest.output("recipients", "add", "bad", web.url("/bad"))

        accepted = ingest.with_variables(allowed, "recipients", "test", "good")
        rejected = ingest.with_variables(allowed, "recipients", "test", "bad")
        refused = ingest("recipients", "test", "good")

    assert (accepted.exit_code, "answered 204" in accepted.stdout) == (0, True)
    assert (rejected.exit_code, "answered 500" in rejected.stderr) == (1, True)
    assert (refused.exit_code, "INGESTION_ALLOW_HOSTS" in refused.stderr) == (1, True)
    assert len(web.requests) == 2
    assert b'"type":"test"' in web.requests[0].body


def test_a_file_owns_its_recipients_and_their_follows(ingest: Ingest, folder: Path, home_store: Store) -> None:
    file = folder / "mine.yaml"
    file.write_text(FILE)
    assert "recipients: 1 added, 0 updated, 0 unchanged" in ingest.output("sources", "import")
    assert "recipients: 0 added, 0 updated, 1 unchanged" in ingest.output("sources", "import")
    assert follow_rows(home_store) == [("other", "immediate", "de", "mine.yaml"), ("solo", None, None, "mine.yaml")]
    assert "mine.yaml; remove it there" in ingest.refused("unfollow", "ann", "solo")

    file.write_text(FILE.replace("solo, {", "{").replace("digest", "immediate"))
    assert "recipients: 0 added, 1 updated" in ingest.output("sources", "import")

    assert follow_rows(home_store) == [("other", "immediate", "de", "mine.yaml")]
    assert [row["mode"] for row in ingest.json("recipients", "list")] == ["immediate"]


def test_files_leave_manually_added_recipients_alone(ingest: Ingest, folder: Path, home_store: Store) -> None:
    ingest.output("recipients", "add", "ann", "notify:")
    (folder / "mine.yaml").write_text(FILE)

    assert "1 left alone (added by hand)" in ingest.output("sources", "import")

    assert [row.address_url for row in rows(home_store, recipients)] == ["notify:"]
    assert follow_rows(home_store) == []


def test_every_mistake_of_recipients_in_a_file_is_reported_and_nothing_is_imported(
    ingest: Ingest, folder: Path
) -> None:
    wrong = FILE.replace("mode: digest", "mode: loud").replace("solo, {", "SOLO, {")
    wrong += "  - {id: ann, adress: x}\n"
    (folder / "mine.yaml").write_text(wrong.replace("series:solo", "series:another"))

    result = ingest("sources", "import")

    assert result.exit_code == 2
    for problem in (
        "mine.yaml:6: mode: 'loud' is no mode; there are: immediate, digest, muted",
        "mine.yaml:7: follows[0].series: 'SOLO' is no id",
        "mine.yaml:8: adress: unknown key",
        "mine.yaml:8: address: is missing",
        "mine.yaml:8: id: 'ann' is declared on line 4 already",
    ):
        assert problem in result.stderr
    assert [row["id"] for row in ingest.json("sources", "list")] == ["series:solo"]
    assert ingest.json("recipients", "list") == []


def test_a_recipient_declared_in_two_files_invalidates_both(ingest: Ingest, folder: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (folder / name).write_text("recipients:\n  - {id: ann, address: 'notify:'}\n")

    message = ingest.refused("sources", "import")

    assert "a.yaml:2: id: 'ann' is declared in a.yaml and b.yaml" in message
    assert ingest.json("recipients", "list") == []


def test_the_services_of_the_operator_are_never_printed(ingest: Ingest) -> None:
    secret = {"INGESTION_NOTIFY_URLS": "json://u:hunter2@127.0.0.1/"}

    settings_list = ingest.with_variables(secret, "settings", "list", "--json")

    assert "hunter2" not in settings_list.output
    assert "(set, and secret)" in settings_list.output


def test_notices_can_be_listed_by_status(ingest: Ingest) -> None:
    assert ingest.json("notices", "list") == []
    assert "no notices are failed" in ingest.output("notices", "list", "--status", "failed")
