"""Asset checks: run from the UI, and reported by runs when their findings change."""

from collections.abc import Callable, Collection, Iterable, Iterator

import dagster as dg

from ingestion_pipeline.catalogs.crawling import checks as catalog_checks
from ingestion_pipeline.catalogs.operations import listing, quarantined_datasets
from ingestion_pipeline.companies import checks as company_checks
from ingestion_pipeline.companies.boards import checks as board_checks
from ingestion_pipeline.companies.matching.runs import profile_findings
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.notices.status import undelivered
from ingestion_pipeline.orchestration.check_events import evaluation_metadata, last_reported
from ingestion_pipeline.orchestration.resources import RunContextResource
from ingestion_pipeline.registry import definition_check
from ingestion_pipeline.series import checks
from ingestion_pipeline.sources import Kind
from ingestion_pipeline.sources.files import read_folder
from ingestion_pipeline.sources.health import Finding
from ingestion_pipeline.websites import checks as website_checks

CHAPTERS = dg.AssetKey("chapters")
PAGES = dg.AssetKey("pages")
DATASETS = dg.AssetKey("datasets")
COMPANIES = dg.AssetKey("companies")
WEBSITE_INFO = dg.AssetKey("website_info")
WEBSITE_PROMPTS = dg.AssetKey("website_prompts")
WEBSITE_ANALYSIS = dg.AssetKey("website_analysis")
SOURCES = dg.AssetKey("sources")
NOTICES = dg.AssetKey("notices")
JOB_LISTINGS = dg.AssetKey("job_listings")
JOB_MATCHES = dg.AssetKey("job_matches")


def _gaps(ctx: RunContext) -> list[Finding]:
    with ctx.store.read() as connection:
        return checks.gaps(connection)


def _quarantined(ctx: RunContext) -> list[Finding]:
    with ctx.store.read() as connection:
        return checks.quarantined(connection)


def _stale(ctx: RunContext) -> list[Finding]:
    with ctx.store.read() as connection:
        now = ctx.store.clock.now(connection)
        return checks.stale(connection, now=now, settings=ctx.settings)


def _bad_files(ctx: RunContext) -> list[Finding]:
    files = read_folder(ctx.settings.sources, check=definition_check(ctx.settings.sources))
    return [
        Finding(subject=f"{problem.path}:{problem.line}", message=f"{problem.field}: {problem.message}")
        for file in files
        for problem in file.problems
    ]


def _failed_pages(ctx: RunContext) -> list[Finding]:
    with ctx.store.read() as connection:
        share = ctx.settings.crawl.failed_share
        return catalog_checks.failed_pages(connection, failed_share=share)


def _empty_shells(ctx: RunContext) -> list[Finding]:
    with ctx.store.read() as connection:
        return catalog_checks.empty_shells(connection)


def _lost_pages(ctx: RunContext) -> list[Finding]:
    with ctx.store.read() as connection:
        return catalog_checks.lost_pages(connection, drop_share=ctx.settings.crawl.drop_share)


def _quarantined_datasets(ctx: RunContext) -> list[Finding]:
    with ctx.store.read() as connection:
        return quarantined_datasets.quarantined(connection)


def _missing_records(context: RunContext) -> list[Finding]:
    with context.store.read() as connection:
        return quarantined_datasets.missing_pages(connection)


def _unfinished(ctx: RunContext) -> list[Finding]:
    with ctx.store.read() as connection:
        return listing.unfinished(connection)


def _unproved(ctx: RunContext) -> list[Finding]:
    with ctx.store.read() as connection:
        share = ctx.settings.extraction.flagged_share
        return listing.unproved(connection, flagged_share=share)


def _thin_companies(ctx: RunContext) -> list[Finding]:
    with ctx.store.read() as connection:
        return company_checks.thin(connection)


def _stale_companies(ctx: RunContext) -> list[Finding]:
    with ctx.store.read() as connection:
        now = ctx.store.clock.now(connection)
        return company_checks.stale(connection, now=now, settings=ctx.settings)


def _dropped_boards(ctx: RunContext) -> list[Finding]:
    with ctx.store.read() as connection:
        return board_checks.dropped(connection)


def _lost_fields(ctx: RunContext) -> list[Finding]:
    with ctx.store.read() as connection:
        return board_checks.lost_fields(connection)


def _stale_boards(ctx: RunContext) -> list[Finding]:
    with ctx.store.read() as connection:
        now = ctx.store.clock.now(connection)
        return board_checks.stale(connection, now=now, settings=ctx.settings)


def _all_filtered(ctx: RunContext) -> list[Finding]:
    with ctx.store.read() as connection:
        return board_checks.all_filtered(connection)


def _bad_profile(ctx: RunContext) -> list[Finding]:
    return profile_findings(ctx.settings)


def _unanswered(ctx: RunContext) -> list[Finding]:
    with ctx.store.read() as connection:
        return website_checks.unanswered(connection)


def _doubtful(ctx: RunContext) -> list[Finding]:
    with ctx.store.read() as connection:
        return website_checks.doubtful(connection, below=ctx.settings.website.low_confidence)


def _few_prompts(ctx: RunContext) -> list[Finding]:
    with ctx.store.read() as connection:
        return website_checks.giving_away(connection)


def _dropped(ctx: RunContext) -> list[Finding]:
    with ctx.store.read() as connection:
        return website_checks.dropped(connection, by=ctx.settings.website.visibility_drop)


def _undelivered(ctx: RunContext) -> list[Finding]:
    with ctx.store.read() as connection:
        now = ctx.store.clock.now(connection)
        late = ctx.settings.notices.overdue_seconds
        recipients = undelivered(connection, now=now, overdue_seconds=late)
    return [
        Finding(
            subject=recipient.recipient,
            message=f"{recipient.failed} failed, {recipient.overdue} overdue: {recipient.error or 'no deliverer'}",
        )
        for recipient in recipients
    ]


FINDERS: dict[dg.AssetCheckKey, tuple[Callable[[RunContext], list[Finding]], str]] = {
    dg.AssetCheckKey(CHAPTERS, "no_gaps"): (
        _gaps,
        "No whole chapter number is missing between a series' first and latest.",
    ),
    dg.AssetCheckKey(CHAPTERS, "not_empty_after_full"): (
        _quarantined,
        "No listing is quarantined for being empty, or for having lost most of its chapters.",
    ),
    dg.AssetCheckKey(CHAPTERS, "sources_fresh"): (_stale, "Every source succeeded within three of its intervals."),
    dg.AssetCheckKey(PAGES, "share_of_failures"): (
        _failed_pages,
        "No catalogue's last crawl had more failed pages than the setting crawl.failed_share.",
    ),
    dg.AssetCheckKey(PAGES, "no_empty_shells"): (
        _empty_shells,
        "No page of a last crawl was an empty shell that needs a browser.",
    ),
    dg.AssetCheckKey(PAGES, "no_drop_against_history"): (
        _lost_pages,
        "No complete crawl found far fewer pages than the complete one before it.",
    ),
    dg.AssetCheckKey(DATASETS, "not_quarantined"): (
        _quarantined_datasets,
        "No catalogue's newest dataset is held back: empty, far smaller, or with a lost field.",
    ),
    dg.AssetCheckKey(DATASETS, "no_records_missing"): (
        _missing_records,
        "No catalogue's last extraction kept records of pages that failed or now state none.",
    ),
    dg.AssetCheckKey(DATASETS, "extractions_complete"): (
        _unfinished,
        "No catalogue's last extraction ended stale or cancelled.",
    ),
    dg.AssetCheckKey(DATASETS, "values_proved"): (
        _unproved,
        "No newest dataset has more unproved items than the setting extraction.flagged_share.",
    ),
    dg.AssetCheckKey(COMPANIES, "enough_data"): (
        _thin_companies,
        "Every company's pages give enough data: a name and some words of about or culture.",
    ),
    dg.AssetCheckKey(COMPANIES, "companies_fresh"): (
        _stale_companies,
        "Every company was analysed within three of its source's intervals.",
    ),
    dg.AssetCheckKey(JOB_LISTINGS, "no_drop"): (
        _dropped_boards,
        "No board's listing is quarantined for being empty, or for having lost most of its jobs.",
    ),
    dg.AssetCheckKey(JOB_LISTINGS, "no_lost_fields"): (
        _lost_fields,
        "No board's listing is quarantined because most of its jobs have lost a field.",
    ),
    dg.AssetCheckKey(JOB_LISTINGS, "boards_fresh"): (
        _stale_boards,
        "Every board succeeded within the setting boards.stale_seconds, and none was given up.",
    ),
    dg.AssetCheckKey(WEBSITE_INFO, "information_sure"): (
        _doubtful,
        "No business is known with less confidence than the setting website.low_confidence.",
    ),
    dg.AssetCheckKey(WEBSITE_PROMPTS, "asked_without_the_name"): (
        _few_prompts,
        "Every website's last analysis has a question that does not name the business.",
    ),
    dg.AssetCheckKey(WEBSITE_ANALYSIS, "providers_answer"): (
        _unanswered,
        "No website's last analysis went without the answers of a provider, or of all.",
    ),
    dg.AssetCheckKey(WEBSITE_ANALYSIS, "no_visibility_drop"): (
        _dropped,
        "No business lost more visibility than the setting website.visibility_drop at once.",
    ),
    dg.AssetCheckKey(SOURCES, "files_readable"): (
        _bad_files,
        "No source file has a mistake: one that has imports nothing of itself.",
    ),
    dg.AssetCheckKey(JOB_MATCHES, "not_all_filtered"): (
        _all_filtered,
        "Of no board with several listings the filter rejected every one.",
    ),
    dg.AssetCheckKey(JOB_MATCHES, "profile_readable"): (
        _bad_profile,
        "The profile has no mistake: with one, no listing is evaluated.",
    ),
    dg.AssetCheckKey(NOTICES, "all_delivered"): (
        _undelivered,
        "No notice has failed or is overdue; a failed one waits in the dead letters for a replay.",
    ),
}

# Checks that a poll run reports at once. The others cost more with every chapter or file, and the
# cost of a poll must not grow with history: `maintain` reports them every five minutes.
POLLED_ASSETS = {Kind.SERIES.value: CHAPTERS, Kind.JOB_BOARD.value: JOB_LISTINGS}
REPORTED_BY_POLLS = [
    dg.AssetCheckKey(CHAPTERS, "not_empty_after_full"),
    dg.AssetCheckKey(CHAPTERS, "sources_fresh"),
    dg.AssetCheckKey(JOB_LISTINGS, "no_drop"),
    dg.AssetCheckKey(JOB_LISTINGS, "no_lost_fields"),
    dg.AssetCheckKey(JOB_LISTINGS, "boards_fresh"),
]


def reported_checks(keys: Collection[str] | None) -> list[dg.AssetCheckKey]:
    """Return the checks a poll run reports; of requested sources only their own asset's."""
    if keys is None:
        return REPORTED_BY_POLLS
    kinds = {key.partition(":")[0] for key in keys}
    assets = {POLLED_ASSETS[kind] for kind in kinds if kind in POLLED_ASSETS}
    return [key for key in REPORTED_BY_POLLS if key.asset_key in assets]


REPORTED_BY_COMPLETION = [key for key in FINDERS if key.asset_key == DATASETS]
REPORTED_BY_CRAWLS = [key for key in FINDERS if key.asset_key == PAGES]
WEBSITE_ASSETS = (WEBSITE_INFO, WEBSITE_PROMPTS, WEBSITE_ANALYSIS)
REPORTED_BY_WEBSITES = [key for key in FINDERS if key.asset_key in WEBSITE_ASSETS]
REPORTED_BY_COMPANIES = [key for key in FINDERS if key.asset_key == COMPANIES]


# New data is held back: an error (red in the UI); all others are warnings (orange).
HELD_BACK = {
    dg.AssetCheckKey(CHAPTERS, "not_empty_after_full"),
    dg.AssetCheckKey(JOB_LISTINGS, "no_drop"),
    dg.AssetCheckKey(JOB_LISTINGS, "no_lost_fields"),
    dg.AssetCheckKey(DATASETS, "not_quarantined"),
}


def severity(key: dg.AssetCheckKey) -> dg.AssetCheckSeverity:
    """Return how a failure of the check is shown; neither stops a run."""
    return dg.AssetCheckSeverity.ERROR if key in HELD_BACK else dg.AssetCheckSeverity.WARN


def _check(key: dg.AssetCheckKey) -> dg.AssetChecksDefinition:
    finder, description = FINDERS[key]

    @dg.asset_check(asset=key.asset_key, name=key.name, description=description)
    def check(run_context: RunContextResource) -> dg.AssetCheckResult:
        with run_context.open() as ctx:
            findings = finder(ctx)
        return dg.AssetCheckResult(passed=not findings, severity=severity(key), metadata=evaluation_metadata(findings))

    return check


CHAPTER_CHECKS = [_check(key) for key in FINDERS if key.asset_key == CHAPTERS]
JOB_LISTING_CHECKS = [_check(key) for key in FINDERS if key.asset_key == JOB_LISTINGS]
DATASET_CHECKS = [_check(key) for key in REPORTED_BY_COMPLETION]
COMPANY_CHECKS = [_check(key) for key in REPORTED_BY_COMPANIES]
WEBSITE_CHECKS = [_check(key) for key in REPORTED_BY_WEBSITES]
PAGE_CHECKS = [_check(key) for key in REPORTED_BY_CRAWLS]
MATCH_CHECKS = [_check(key) for key in FINDERS if key.asset_key == JOB_MATCHES]
NOTICE_CHECKS = [_check(key) for key in FINDERS if key.asset_key == NOTICES]
SOURCE_CHECKS = [_check(key) for key in FINDERS if key.asset_key == SOURCES]


def changed_checks(
    instance: dg.DagsterInstance, ctx: RunContext, keys: Iterable[dg.AssetCheckKey]
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield evaluations of the checks whose findings differ from those last reported."""
    for key in keys:
        finder, _ = FINDERS[key]
        metadata = evaluation_metadata(findings := finder(ctx))
        if last_reported(instance, key) == metadata["details"].value:
            continue
        yield dg.AssetCheckEvaluation(
            asset_key=key.asset_key, check_name=key.name, passed=not findings, severity=severity(key), metadata=metadata
        )
