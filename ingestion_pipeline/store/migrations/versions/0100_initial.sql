-- All tables and views. `0100_initial.py` replaces the words that differ between the databases, such as SERIAL_ID.
CREATE TABLE audit_log (
    id SERIAL_ID NOT NULL, at UTC_TIME NOT NULL, actor TEXT NOT NULL, action VARCHAR(60) NOT NULL,
    subject TEXT NOT NULL, detail JSON NOT NULL,
    CONSTRAINT pk_audit_log PRIMARY KEY (id)
);
CREATE INDEX ix_audit_log_subject_at ON audit_log (subject, at);

CREATE TABLE batch_items (
    batch_id VARCHAR(36) NOT NULL, task_id BIG_ID NOT NULL, fence INTEGER NOT NULL, source_id VARCHAR(120) NOT NULL,
    fetched JSON NOT NULL, parsed_hash VARCHAR(64), fetched_at UTC_TIME NOT NULL,
    CONSTRAINT pk_batch_items PRIMARY KEY (batch_id, task_id)
);

CREATE TABLE businesses (
    id SERIAL_ID NOT NULL, url TEXT NOT NULL, url_key VARCHAR(64) NOT NULL, name TEXT NOT NULL, aliases JSON NOT NULL,
    industry TEXT, description TEXT, location TEXT, keywords JSON NOT NULL, language VARCHAR(12),
    competitors JSON NOT NULL, confidence INTEGER NOT NULL, evidence JSON, created_at UTC_TIME NOT NULL,
    updated_at UTC_TIME NOT NULL, modified_at UTC_TIME,
    CONSTRAINT pk_businesses PRIMARY KEY (id), CONSTRAINT uq_businesses_url_key UNIQUE (url_key)
);

CREATE TABLE changes (
    id SERIAL_ID NOT NULL, table_name VARCHAR(60) NOT NULL, row_key TEXT NOT NULL, source_id VARCHAR(120),
    op VARCHAR(6) NOT NULL, before JSON, after JSON, cause VARCHAR(20) NOT NULL, ingestion_id BIG_ID,
    snapshot_id BIG_ID, run_id VARCHAR(64), occurred_at UTC_TIME NOT NULL,
    CONSTRAINT pk_changes PRIMARY KEY (id)
);
CREATE INDEX ix_changes_occurred_at ON changes (occurred_at);
CREATE INDEX ix_changes_row_key_table_name ON changes (row_key, table_name);
CREATE INDEX ix_changes_source_id_occurred_at ON changes (source_id, occurred_at);

CREATE TABLE companies (
    id VARCHAR(120) NOT NULL, name TEXT, website TEXT, website_key VARCHAR(64), source_id VARCHAR(120),
    status VARCHAR(12) NOT NULL, about TEXT, culture TEXT, mission TEXT, size TEXT, employees_low INTEGER,
    employees_high INTEGER, size_category VARCHAR(10), headquarters TEXT, industry TEXT, founded INTEGER,
    is_remote_first BOOLEAN, tech_stack JSON, boards JSON, score INTEGER, score_parts JSON, tier VARCHAR(1),
    scoring_hash VARCHAR(64), quality JSON NOT NULL, evidence JSON, discovered_by TEXT NOT NULL,
    tracking_id VARCHAR(36) NOT NULL, failure TEXT, analyzed_at UTC_TIME, created_at UTC_TIME NOT NULL,
    updated_at UTC_TIME NOT NULL, modified_at UTC_TIME,
    CONSTRAINT pk_companies PRIMARY KEY (id)
);
CREATE INDEX ix_companies_scoring_hash ON companies (scoring_hash);
CREATE INDEX ix_companies_source_id ON companies (source_id);
CREATE UNIQUE INDEX uq_companies_website_key ON companies (website_key);

CREATE TABLE dead_letters (
    id SERIAL_ID NOT NULL, task_id BIG_ID NOT NULL, task_kind VARCHAR(40) NOT NULL, source_id VARCHAR(120),
    payload JSON NOT NULL, stage VARCHAR(40), error_class VARCHAR(20) NOT NULL, error_code VARCHAR(40) NOT NULL,
    error TEXT NOT NULL, stack TEXT, attempts INTEGER NOT NULL, occurrences INTEGER DEFAULT '1' NOT NULL,
    tracking_id VARCHAR(36) NOT NULL, failed_at UTC_TIME NOT NULL, replayed_at UTC_TIME, discarded_at UTC_TIME,
    discard_reason TEXT,
    CONSTRAINT pk_dead_letters PRIMARY KEY (id)
);
CREATE INDEX ix_dead_letters_failed_at ON dead_letters (failed_at);
CREATE INDEX ix_dead_letters_source_id ON dead_letters (source_id);
CREATE UNIQUE INDEX uq_dead_letters_open ON dead_letters (task_id, error_code)
    WHERE replayed_at IS NULL AND discarded_at IS NULL;

CREATE TABLE export_cursors (
    name VARCHAR(200) NOT NULL, destination TEXT NOT NULL, since UTC_TIME NOT NULL, files INTEGER NOT NULL,
    rows BIG_ID NOT NULL, updated_at UTC_TIME NOT NULL,
    CONSTRAINT pk_export_cursors PRIMARY KEY (name, destination)
);

CREATE TABLE hosts (
    host TEXT NOT NULL, next_allowed_at UTC_TIME, lease_owner VARCHAR(36), lease_until UTC_TIME, leased_at UTC_TIME,
    requested_at UTC_TIME, error_score FLOAT DEFAULT '0' NOT NULL, timed_out_at UTC_TIME, crawl_delay_seconds FLOAT,
    robots_fetched_at UTC_TIME, robots JSON,
    CONSTRAINT pk_hosts PRIMARY KEY (host)
);

CREATE TABLE ingestions (
    id BIG_ID NOT NULL, source_id VARCHAR(120) NOT NULL, config_version INTEGER NOT NULL, run_id VARCHAR(64),
    parser_version TEXT NOT NULL, snapshots JSON NOT NULL, outcome TEXT NOT NULL, tracking_id VARCHAR(36) NOT NULL,
    fetched_at UTC_TIME NOT NULL, ingested_at UTC_TIME NOT NULL,
    CONSTRAINT pk_ingestions PRIMARY KEY (id)
);
CREATE INDEX ix_ingestions_ingested_at ON ingestions (ingested_at);
CREATE INDEX ix_ingestions_source_id_ingested_at ON ingestions (source_id, ingested_at);

CREATE TABLE job_listings (
    id SERIAL_ID NOT NULL, source_id VARCHAR(120) NOT NULL, company_id VARCHAR(120), company_name TEXT,
    company_website TEXT, url TEXT, url_key VARCHAR(64), fingerprint VARCHAR(64) NOT NULL, origin_key VARCHAR(64),
    title TEXT NOT NULL, location TEXT, other_locations JSON, places JSON, remote VARCHAR(10), department TEXT,
    employment_type TEXT, description TEXT, salary JSON, posted_at UTC_TIME, valid_until UTC_TIME,
    status VARCHAR(10) NOT NULL, quality JSON NOT NULL, content_hash VARCHAR(64) NOT NULL, decision VARCHAR(10),
    rules_hash VARCHAR(64), filter_result JSON, match_result JSON, snapshot_id BIG_ID, detail_snapshot_id BIG_ID,
    ingestion_id BIG_ID, tracking_id VARCHAR(36) NOT NULL, first_seen_at UTC_TIME NOT NULL,
    changed_at UTC_TIME NOT NULL, evaluated_at UTC_TIME, closed_at UTC_TIME, closed_reason TEXT,
    first_listed_at UTC_TIME NOT NULL, last_listed_at UTC_TIME, times_reopened INTEGER DEFAULT '0' NOT NULL,
    repost_of BIG_ID, modified_at UTC_TIME,
    CONSTRAINT pk_job_listings PRIMARY KEY (id)
);
CREATE INDEX ix_job_listings_company_id ON job_listings (company_id);
CREATE INDEX ix_job_listings_fingerprint ON job_listings (fingerprint);
CREATE INDEX ix_job_listings_judged ON job_listings (rules_hash, id) WHERE status = 'open';
CREATE INDEX ix_job_listings_valid_until ON job_listings (valid_until) WHERE status = 'open';
CREATE UNIQUE INDEX uq_job_listings_origin_key ON job_listings (origin_key);
CREATE UNIQUE INDEX uq_job_listings_url_key ON job_listings (url_key);

CREATE TABLE model_answers (
    cache_key VARCHAR(64) NOT NULL, model TEXT NOT NULL, prompt_version VARCHAR(60) NOT NULL, answer JSON NOT NULL,
    created_at UTC_TIME NOT NULL,
    CONSTRAINT pk_model_answers PRIMARY KEY (cache_key)
);

CREATE TABLE model_batch_lines (
    cache_key VARCHAR(64) NOT NULL, batch_id BIG_ID NOT NULL, call_id BIG_ID, source_id VARCHAR(120), page_id BIG_ID,
    extraction_id BIG_ID, call_site VARCHAR(60) NOT NULL, prompt_version VARCHAR(60) NOT NULL, request JSON,
    outcome VARCHAR(40), reply TEXT, problems JSON, created_at UTC_TIME NOT NULL,
    CONSTRAINT pk_model_batch_lines PRIMARY KEY (cache_key)
);
CREATE INDEX ix_model_batch_lines_batch_id ON model_batch_lines (batch_id);
CREATE INDEX ix_model_batch_lines_call_id ON model_batch_lines (call_id);
CREATE INDEX ix_model_batch_lines_extraction_id ON model_batch_lines (extraction_id);
CREATE INDEX ix_model_batch_lines_source_id_page_id ON model_batch_lines (source_id, page_id);

CREATE TABLE model_batches (
    id SERIAL_ID NOT NULL, provider TEXT NOT NULL, model TEXT NOT NULL, format VARCHAR(20) NOT NULL,
    status VARCHAR(12) NOT NULL, key VARCHAR(36) NOT NULL, line_count INTEGER NOT NULL, remote_file_id TEXT,
    remote_id TEXT, outcome VARCHAR(40), created_at UTC_TIME NOT NULL, submitted_at UTC_TIME, ended_at UTC_TIME,
    CONSTRAINT pk_model_batches PRIMARY KEY (id)
);
CREATE INDEX ix_model_batches_status_provider_model ON model_batches (status, provider, model);

CREATE TABLE model_calls (
    id SERIAL_ID NOT NULL, source_id VARCHAR(120), page_id BIG_ID, extraction_id BIG_ID,
    call_site VARCHAR(60) NOT NULL, provider TEXT NOT NULL, model TEXT NOT NULL, format VARCHAR(20) NOT NULL,
    status VARCHAR(10) NOT NULL, outcome VARCHAR(40), input_tokens INTEGER, cached_input_tokens INTEGER,
    output_tokens INTEGER, usage_estimated BOOLEAN DEFAULT false NOT NULL, reserved_usd NUMERIC, cost_usd NUMERIC,
    latency_ms INTEGER, cache_key VARCHAR(64) NOT NULL, prompt_version VARCHAR(60) NOT NULL,
    created_at UTC_TIME NOT NULL, settled_at UTC_TIME,
    CONSTRAINT pk_model_calls PRIMARY KEY (id)
);
CREATE INDEX ix_model_calls_created_at ON model_calls (created_at);
CREATE INDEX ix_model_calls_extraction_id_created_at ON model_calls (extraction_id, created_at);
CREATE INDEX ix_model_calls_source_id_created_at ON model_calls (source_id, created_at);

CREATE TABLE model_endpoints (
    base_url TEXT NOT NULL, format VARCHAR(20) NOT NULL, reason TEXT NOT NULL, learned_at UTC_TIME NOT NULL,
    CONSTRAINT pk_model_endpoints PRIMARY KEY (base_url)
);

CREATE TABLE model_spending (
    scope VARCHAR(160) NOT NULL, held_usd NUMERIC NOT NULL, updated_at UTC_TIME NOT NULL,
    CONSTRAINT pk_model_spending PRIMARY KEY (scope)
);

CREATE TABLE notices (
    id SERIAL_ID NOT NULL, recipient VARCHAR(120) NOT NULL, subject_kind VARCHAR(40) NOT NULL,
    subject_id TEXT NOT NULL, status VARCHAR(10) NOT NULL, mode VARCHAR(10) NOT NULL, series_id VARCHAR(120),
    payload JSON NOT NULL, delivery_id VARCHAR(36), created_at UTC_TIME NOT NULL, sent_at UTC_TIME, error TEXT,
    CONSTRAINT pk_notices PRIMARY KEY (id),
    CONSTRAINT uq_notices_recipient_subject_kind_subject_id UNIQUE (recipient, subject_kind, subject_id)
);
CREATE INDEX ix_notices_failed ON notices (recipient) WHERE status = 'failed';
CREATE INDEX ix_notices_pending ON notices (recipient, created_at) WHERE status = 'pending';
CREATE INDEX ix_notices_recipient_sent_at ON notices (recipient, sent_at) WHERE sent_at IS NOT NULL;
CREATE INDEX ix_notices_subject_kind_subject_id ON notices (subject_kind, subject_id);

CREATE TABLE outbox (
    id SERIAL_ID NOT NULL, subject_kind VARCHAR(40) NOT NULL, subject_id TEXT NOT NULL, payload JSON NOT NULL,
    created_at UTC_TIME NOT NULL, handled_at UTC_TIME,
    CONSTRAINT pk_outbox PRIMARY KEY (id),
    CONSTRAINT uq_outbox_subject_kind_subject_id UNIQUE (subject_kind, subject_id)
);
CREATE INDEX ix_outbox_unhandled ON outbox (id) WHERE handled_at IS NULL;

CREATE TABLE service_heartbeats (
    name VARCHAR(40) NOT NULL, at UTC_TIME NOT NULL,
    CONSTRAINT pk_pulses PRIMARY KEY (name)
);

CREATE TABLE recipients (
    id VARCHAR(120) NOT NULL, address_url TEXT NOT NULL, secret TEXT, kinds JSON NOT NULL, mode VARCHAR(10) NOT NULL,
    language VARCHAR(20), origin TEXT NOT NULL, failures INTEGER DEFAULT '0' NOT NULL, not_before UTC_TIME,
    last_sent_at UTC_TIME, last_error TEXT, created_at UTC_TIME NOT NULL, updated_at UTC_TIME NOT NULL,
    CONSTRAINT pk_recipients PRIMARY KEY (id)
);

CREATE TABLE runs (
    run_id VARCHAR(64) NOT NULL, lease_owner VARCHAR(36) NOT NULL, job TEXT NOT NULL, started_at UTC_TIME NOT NULL,
    lease_until UTC_TIME NOT NULL, ended_at UTC_TIME,
    CONSTRAINT pk_runs PRIMARY KEY (run_id)
);
CREATE INDEX ix_runs_lease_until ON runs (lease_until);

CREATE TABLE series (
    id VARCHAR(120) NOT NULL, title TEXT NOT NULL, latest_chapter NUMERIC, last_chapter_at UTC_TIME,
    merged_into VARCHAR(120), created_at UTC_TIME NOT NULL, modified_at UTC_TIME,
    CONSTRAINT pk_series PRIMARY KEY (id)
);

CREATE TABLE settings (
    key VARCHAR(80) NOT NULL, value TEXT NOT NULL, value_type VARCHAR(10) NOT NULL, description TEXT NOT NULL,
    updated_at UTC_TIME NOT NULL,
    CONSTRAINT pk_settings PRIMARY KEY (key)
);

CREATE TABLE snapshots (
    id SERIAL_ID NOT NULL, source_id VARCHAR(120), url TEXT NOT NULL, url_key VARCHAR(64),
    content_hash VARCHAR(64) NOT NULL, content_type TEXT, size_bytes INTEGER NOT NULL, status_code INTEGER NOT NULL,
    fetched_at UTC_TIME NOT NULL, etag TEXT, last_modified TEXT, final_url TEXT, canonical_url TEXT,
    served_hash VARCHAR(64), links_hash VARCHAR(64), rendered_at UTC_TIME, rendering_hash VARCHAR(64), discovered JSON,
    body_hash VARCHAR(64), text_hash VARCHAR(64), markdown_hash VARCHAR(64), markdown_version TEXT,
    screenshot_hash VARCHAR(64), failure VARCHAR(40), run_id VARCHAR(64), rights JSON,
    CONSTRAINT pk_snapshots PRIMARY KEY (id)
);
CREATE INDEX ix_snapshots_content_hash ON snapshots (content_hash);
CREATE INDEX ix_snapshots_source_id_fetched_at ON snapshots (source_id, fetched_at);
CREATE UNIQUE INDEX uq_snapshots_url_key_content_hash ON snapshots (url_key, content_hash);

CREATE TABLE source_health (
    source_id VARCHAR(120) NOT NULL, state VARCHAR(12) NOT NULL, since UTC_TIME NOT NULL, reason TEXT NOT NULL,
    changes INTEGER NOT NULL, success_before UTC_TIME,
    CONSTRAINT pk_source_health PRIMARY KEY (source_id)
);

CREATE TABLE observed_health (
    source_id VARCHAR(120) NOT NULL, state VARCHAR(12) NOT NULL, since UTC_TIME NOT NULL,
    CONSTRAINT pk_source_words PRIMARY KEY (source_id)
);

CREATE TABLE freshness_days (
    source_id VARCHAR(120) NOT NULL, day VARCHAR(10) NOT NULL, measured_seconds FLOAT NOT NULL,
    late_seconds FLOAT NOT NULL, measured_until UTC_TIME NOT NULL, fresh_at UTC_TIME NOT NULL,
    is_spent BOOLEAN DEFAULT false NOT NULL,
    CONSTRAINT pk_freshness_days PRIMARY KEY (source_id, day)
);

CREATE TABLE sources (
    id VARCHAR(120) NOT NULL, kind VARCHAR(20) NOT NULL, url TEXT NOT NULL, name TEXT, platform VARCHAR(40),
    config JSON NOT NULL, series_id VARCHAR(120), assigned_series_id VARCHAR(120), company_id VARCHAR(120),
    max_delay_seconds INTEGER, origin TEXT NOT NULL, host TEXT NOT NULL, shard INTEGER NOT NULL, tier VARCHAR(4) NOT NULL,
    tier_pinned BOOLEAN DEFAULT false NOT NULL, status VARCHAR(20) NOT NULL, status_reason TEXT,
    failure_count INTEGER DEFAULT '0' NOT NULL, next_check_at UTC_TIME, last_checked_at UTC_TIME,
    last_success_at UTC_TIME, last_changed_at UTC_TIME, last_new_at UTC_TIME, reported_at UTC_TIME,
    unreported_polls INTEGER DEFAULT '0' NOT NULL, unreported_changes INTEGER DEFAULT '0' NOT NULL,
    unreported_updated INTEGER DEFAULT '0' NOT NULL, unreported_withdrawn INTEGER DEFAULT '0' NOT NULL,
    poll_count INTEGER DEFAULT '0' NOT NULL, change_count INTEGER DEFAULT '0' NOT NULL,
    strike_count INTEGER DEFAULT '0' NOT NULL, synced_at UTC_TIME, synced_version INTEGER, last_outcome TEXT,
    last_error_class VARCHAR(20), content_hash VARCHAR(64), parser_version TEXT, etag TEXT, last_modified TEXT,
    needs_full_read BOOLEAN DEFAULT false NOT NULL, accepts_drop BOOLEAN DEFAULT false NOT NULL,
    record_count INTEGER DEFAULT '0' NOT NULL, change_model JSON, changes_per_day FLOAT, checks_per_day FLOAT,
    tracking_id VARCHAR(36) NOT NULL, config_version INTEGER DEFAULT '1' NOT NULL, created_at UTC_TIME NOT NULL,
    updated_at UTC_TIME NOT NULL, modified_at UTC_TIME,
    CONSTRAINT pk_sources PRIMARY KEY (id)
);
CREATE INDEX ix_sources_counts ON sources (created_at, status);
CREATE INDEX ix_sources_kind ON sources (kind);
CREATE INDEX ix_sources_unreported ON sources (last_changed_at, reported_at);

CREATE TABLE task_totals (
    kind VARCHAR(40) NOT NULL, status VARCHAR(10) NOT NULL, error_class VARCHAR(20) NOT NULL, tasks BIGINT NOT NULL,
    retries BIGINT NOT NULL,
    CONSTRAINT pk_task_totals PRIMARY KEY (kind, status, error_class)
);

CREATE TABLE tasks (
    id SERIAL_ID NOT NULL, kind VARCHAR(40) NOT NULL, dedupe_key TEXT NOT NULL, source_id VARCHAR(120), url TEXT,
    payload JSON NOT NULL, status VARCHAR(10) NOT NULL, priority INTEGER NOT NULL, shard INTEGER NOT NULL,
    stage VARCHAR(40), state JSON, attempts INTEGER DEFAULT '0' NOT NULL, suspicion INTEGER DEFAULT '0' NOT NULL,
    not_before UTC_TIME NOT NULL, lease_owner VARCHAR(36), lease_until UTC_TIME, fence INTEGER DEFAULT '0' NOT NULL,
    tracking_id VARCHAR(36) NOT NULL, parent_id BIG_ID, ancestry JSON NOT NULL,
    spawn_depth INTEGER DEFAULT '0' NOT NULL, error_class VARCHAR(20), error_code VARCHAR(40), error TEXT,
    created_at UTC_TIME NOT NULL, updated_at UTC_TIME NOT NULL,
    ended_at UTC_TIME
        GENERATED ALWAYS AS (CASE WHEN status NOT IN ('PENDING', 'PROCESSING') THEN updated_at END) STORED,
    CONSTRAINT pk_tasks PRIMARY KEY (id),
    CONSTRAINT ck_tasks_leased CHECK (status <> 'PROCESSING' OR lease_until IS NOT NULL)
) HALF_FULL;
CREATE INDEX ix_tasks_due ON tasks (kind, priority, not_before, created_at) WHERE ended_at IS NULL;
CREATE INDEX ix_tasks_ended ON tasks (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX ix_tasks_frontier ON tasks (kind, source_id, priority, not_before, created_at)
    WHERE ended_at IS NULL AND kind <> 'poll';
CREATE INDEX ix_tasks_source ON tasks (source_id, kind) WHERE source_id IS NOT NULL;
CREATE INDEX ix_tasks_spawned ON tasks (tracking_id, url) WHERE parent_id IS NOT NULL;
CREATE UNIQUE INDEX uq_tasks_active ON tasks (kind, dedupe_key) WHERE ended_at IS NULL;

CREATE TABLE measurements (
    name VARCHAR(80) NOT NULL, value FLOAT NOT NULL, updated_at UTC_TIME NOT NULL,
    CONSTRAINT pk_tunings PRIMARY KEY (name)
);

CREATE TABLE chapters (
    id SERIAL_ID NOT NULL, series_id VARCHAR(120) NOT NULL, key TEXT NOT NULL, number NUMERIC, title TEXT,
    published_at UTC_TIME, first_detected_at UTC_TIME NOT NULL, rejected_at UTC_TIME,
    unannounced BOOLEAN DEFAULT false NOT NULL, modified_at UTC_TIME,
    CONSTRAINT pk_chapters PRIMARY KEY (id),
    CONSTRAINT fk_chapters_series_id FOREIGN KEY(series_id) REFERENCES series (id),
    CONSTRAINT uq_chapters_series_id_key UNIQUE (series_id, key)
);

CREATE TABLE extractions (
    id SERIAL_ID NOT NULL, source_id VARCHAR(120) NOT NULL, status VARCHAR(12) NOT NULL, recipe JSON NOT NULL,
    tracking_id VARCHAR(36) NOT NULL, page_count INTEGER DEFAULT '0' NOT NULL, too_deep INTEGER DEFAULT '0' NOT NULL,
    over_budget INTEGER DEFAULT '0' NOT NULL, failure JSON, kind VARCHAR(10) DEFAULT 'crawl' NOT NULL,
    entity_type VARCHAR(60) DEFAULT 'course' NOT NULL, rerun_of BIG_ID, base_dataset_id BIG_ID, dataset_id BIG_ID,
    summary JSON, changed_at UTC_TIME, notified_at UTC_TIME, created_at UTC_TIME NOT NULL,
    updated_at UTC_TIME NOT NULL, finished_at UTC_TIME, config_version INTEGER, modified_at UTC_TIME,
    CONSTRAINT pk_extractions PRIMARY KEY (id),
    CONSTRAINT fk_extractions_source_id FOREIGN KEY(source_id) REFERENCES sources (id)
);
CREATE INDEX ix_extractions_source_id_id ON extractions (source_id, id);
CREATE UNIQUE INDEX uq_extractions_crawling ON extractions (source_id) WHERE status IN ('WAITING', 'IN_PROGRESS');

CREATE TABLE follows (
    recipient_id VARCHAR(120) NOT NULL, series_id VARCHAR(120) NOT NULL, mode VARCHAR(10), language VARCHAR(20),
    origin TEXT NOT NULL, created_at UTC_TIME NOT NULL,
    CONSTRAINT pk_follows PRIMARY KEY (recipient_id, series_id),
    CONSTRAINT fk_follows_recipient_id FOREIGN KEY(recipient_id) REFERENCES recipients (id)
);
CREATE INDEX ix_follows_series_id ON follows (series_id);

CREATE TABLE change_follows (
    id SERIAL_ID NOT NULL, recipient_id VARCHAR(120) NOT NULL, table_name VARCHAR(60) NOT NULL, field TEXT,
    source_id VARCHAR(120), cause VARCHAR(20), notified_until UTC_TIME NOT NULL, created_at UTC_TIME NOT NULL,
    CONSTRAINT pk_change_follows PRIMARY KEY (id),
    CONSTRAINT fk_change_follows_recipient_id FOREIGN KEY(recipient_id) REFERENCES recipients (id)
);
CREATE INDEX ix_change_follows_recipient_id ON change_follows (recipient_id);

CREATE TABLE job_matches (
    id SERIAL_ID NOT NULL, listing_id BIG_ID NOT NULL, source_id VARCHAR(120) NOT NULL, company_id VARCHAR(120),
    status VARCHAR(10) NOT NULL, score INTEGER NOT NULL, base_score INTEGER NOT NULL, rank_score FLOAT,
    priority VARCHAR(10) NOT NULL, method VARCHAR(10) NOT NULL, model TEXT, adjustments JSON NOT NULL,
    skills_matched JSON NOT NULL, skills_missing JSON NOT NULL, reason TEXT NOT NULL, grounding JSON NOT NULL,
    rules_hash VARCHAR(64) NOT NULL, run_id VARCHAR(64), created_at UTC_TIME NOT NULL, updated_at UTC_TIME NOT NULL,
    modified_at UTC_TIME,
    CONSTRAINT pk_job_matches PRIMARY KEY (id),
    CONSTRAINT fk_job_matches_listing_id FOREIGN KEY(listing_id) REFERENCES job_listings (id),
    CONSTRAINT uq_job_matches_listing_id UNIQUE (listing_id)
);
CREATE INDEX ix_job_matches_score ON job_matches (score);
CREATE INDEX ix_job_matches_source_id_status ON job_matches (source_id, status);

CREATE TABLE learned_selectors (
    source_id VARCHAR(120) NOT NULL, entity_type VARCHAR(60) NOT NULL, schema_hash VARCHAR(64) NOT NULL,
    selectors JSON NOT NULL, learned_from INTEGER NOT NULL, confirmed INTEGER DEFAULT '0' NOT NULL,
    failed INTEGER DEFAULT '0' NOT NULL, failed_in_row INTEGER DEFAULT '0' NOT NULL, created_at UTC_TIME NOT NULL,
    updated_at UTC_TIME NOT NULL,
    CONSTRAINT pk_learned_selectors PRIMARY KEY (source_id, entity_type),
    CONSTRAINT fk_learned_selectors_source_id FOREIGN KEY(source_id) REFERENCES sources (id)
);

CREATE TABLE listing_sources (
    id SERIAL_ID NOT NULL, listing_id BIG_ID NOT NULL, source_id VARCHAR(120) NOT NULL, external_key TEXT NOT NULL,
    external_id TEXT, url TEXT, content_hash VARCHAR(64) NOT NULL, stated VARCHAR(8) NOT NULL,
    missing INTEGER DEFAULT '0' NOT NULL, available BOOLEAN DEFAULT true NOT NULL, first_seen_at UTC_TIME NOT NULL,
    last_seen_at UTC_TIME NOT NULL, ingestion_id BIG_ID, modified_at UTC_TIME,
    CONSTRAINT pk_listing_sources PRIMARY KEY (id),
    CONSTRAINT fk_listing_sources_listing_id FOREIGN KEY(listing_id) REFERENCES job_listings (id),
    CONSTRAINT fk_listing_sources_source_id FOREIGN KEY(source_id) REFERENCES sources (id),
    CONSTRAINT uq_listing_sources_source_id_external_key UNIQUE (source_id, external_key)
);
CREATE INDEX ix_listing_sources_listing_id ON listing_sources (listing_id);

CREATE TABLE recipes (
    source_id VARCHAR(120) NOT NULL, status VARCHAR(12) NOT NULL, recipe JSON, message TEXT, evidence JSON,
    detected_for VARCHAR(64), notified_at UTC_TIME, created_at UTC_TIME NOT NULL, updated_at UTC_TIME NOT NULL,
    CONSTRAINT pk_recipes PRIMARY KEY (source_id),
    CONSTRAINT fk_recipes_source_id FOREIGN KEY(source_id) REFERENCES sources (id)
);

CREATE TABLE source_versions (
    source_id VARCHAR(120) NOT NULL, version INTEGER NOT NULL, url TEXT NOT NULL, platform VARCHAR(40),
    config JSON NOT NULL, since UTC_TIME NOT NULL,
    CONSTRAINT pk_source_versions PRIMARY KEY (source_id, version),
    CONSTRAINT fk_source_versions_source_id FOREIGN KEY(source_id) REFERENCES sources (id)
);

CREATE TABLE website_analyses (
    id SERIAL_ID NOT NULL, source_id VARCHAR(120) NOT NULL, business_id BIG_ID, url TEXT NOT NULL,
    status VARCHAR(16) NOT NULL, current_step VARCHAR(16) NOT NULL, priority INTEGER NOT NULL, info JSON, prompts JSON,
    analysis JSON, progress_percent INTEGER DEFAULT '0' NOT NULL, progress_message TEXT,
    is_recurring BOOLEAN DEFAULT false NOT NULL, is_manual BOOLEAN DEFAULT false NOT NULL, failure TEXT,
    tracking_id VARCHAR(36) NOT NULL, phase_times JSON NOT NULL, created_at UTC_TIME NOT NULL,
    updated_at UTC_TIME NOT NULL, started_at UTC_TIME, finished_at UTC_TIME, config_version INTEGER,
    modified_at UTC_TIME,
    CONSTRAINT pk_website_analyses PRIMARY KEY (id),
    CONSTRAINT fk_website_analyses_source_id FOREIGN KEY(source_id) REFERENCES sources (id)
);
CREATE INDEX ix_website_analyses_business_id ON website_analyses (business_id);
CREATE INDEX ix_website_analyses_finished_at ON website_analyses (finished_at);
CREATE INDEX ix_website_analyses_source_id_id ON website_analyses (source_id, id);
CREATE UNIQUE INDEX uq_website_analyses_unfinished ON website_analyses (source_id) WHERE finished_at IS NULL;

CREATE TABLE website_rankings (
    id SERIAL_ID NOT NULL, business_id BIG_ID NOT NULL, day DATE NOT NULL, analysis_id BIG_ID NOT NULL,
    visibility FLOAT NOT NULL, visibility_low FLOAT NOT NULL, visibility_high FLOAT NOT NULL,
    answers INTEGER NOT NULL, score INTEGER NOT NULL, mentions INTEGER NOT NULL, prompts INTEGER NOT NULL,
    by_provider JSON NOT NULL, competitors JSON NOT NULL, cost_usd NUMERIC, created_at UTC_TIME NOT NULL,
    updated_at UTC_TIME NOT NULL, modified_at UTC_TIME,
    CONSTRAINT pk_website_rankings PRIMARY KEY (id),
    CONSTRAINT fk_website_rankings_business_id FOREIGN KEY(business_id) REFERENCES businesses (id),
    CONSTRAINT uq_website_rankings_business_id_day UNIQUE (business_id, day)
);

CREATE TABLE chapter_sources (
    id SERIAL_ID NOT NULL, chapter_id BIG_ID NOT NULL, source_id VARCHAR(120) NOT NULL, url TEXT,
    source_chapter_id TEXT, volume TEXT, language TEXT, scanlation_group TEXT, releases JSON NOT NULL,
    fingerprint VARCHAR(64) NOT NULL, detected_at UTC_TIME NOT NULL, last_seen_at UTC_TIME,
    missed_listings INTEGER DEFAULT '0' NOT NULL, available BOOLEAN DEFAULT true NOT NULL, ingestion_id BIG_ID,
    modified_at UTC_TIME,
    CONSTRAINT pk_chapter_sources PRIMARY KEY (id),
    CONSTRAINT fk_chapter_sources_chapter_id FOREIGN KEY(chapter_id) REFERENCES chapters (id),
    CONSTRAINT fk_chapter_sources_source_id FOREIGN KEY(source_id) REFERENCES sources (id),
    CONSTRAINT uq_chapter_sources_source_id_chapter_id UNIQUE (source_id, chapter_id)
);
CREATE INDEX ix_chapter_sources_chapter_id ON chapter_sources (chapter_id);

CREATE TABLE crawl_steps (
    id SERIAL_ID NOT NULL, extraction_id BIG_ID NOT NULL, parent_id BIG_ID, kind VARCHAR(20) NOT NULL,
    key TEXT NOT NULL, page_type VARCHAR(20) NOT NULL, created_at UTC_TIME NOT NULL,
    CONSTRAINT pk_crawl_steps PRIMARY KEY (id),
    CONSTRAINT fk_crawl_steps_extraction_id FOREIGN KEY(extraction_id) REFERENCES extractions (id),
    CONSTRAINT uq_crawl_steps_extraction_id_key UNIQUE (extraction_id, key)
);

CREATE TABLE datasets (
    id SERIAL_ID NOT NULL, source_id VARCHAR(120) NOT NULL, extraction_id BIG_ID NOT NULL, version INTEGER NOT NULL,
    entity_type VARCHAR(60) NOT NULL, reader_hash VARCHAR(64) NOT NULL, status VARCHAR(12) NOT NULL,
    item_count INTEGER DEFAULT '0' NOT NULL, flagged_count INTEGER DEFAULT '0' NOT NULL, findings JSON,
    created_at UTC_TIME NOT NULL, published_at UTC_TIME, confirmed_at UTC_TIME, modified_at UTC_TIME,
    CONSTRAINT pk_datasets PRIMARY KEY (id),
    CONSTRAINT fk_datasets_extraction_id FOREIGN KEY(extraction_id) REFERENCES extractions (id),
    CONSTRAINT fk_datasets_source_id FOREIGN KEY(source_id) REFERENCES sources (id),
    CONSTRAINT uq_datasets_source_id_version UNIQUE (source_id, version)
);
CREATE INDEX ix_datasets_extraction_id ON datasets (extraction_id);

CREATE TABLE website_answers (
    id SERIAL_ID NOT NULL, analysis_id BIG_ID NOT NULL, prompt_index INTEGER NOT NULL, prompt TEXT NOT NULL,
    provider VARCHAR(60) NOT NULL, model TEXT NOT NULL, model_version TEXT, status VARCHAR(10) NOT NULL, answer TEXT,
    cited_urls JSON, error TEXT, input_tokens INTEGER, output_tokens INTEGER, cost_usd NUMERIC, mentions JSON, run_id VARCHAR(64),
    created_at UTC_TIME NOT NULL, modified_at UTC_TIME,
    CONSTRAINT pk_website_answers PRIMARY KEY (id),
    CONSTRAINT fk_website_answers_analysis_id FOREIGN KEY(analysis_id) REFERENCES website_analyses (id),
    CONSTRAINT uq_website_answers_analysis_id_prompt_index_provider UNIQUE (analysis_id, prompt_index, provider)
);

CREATE TABLE pages (
    id SERIAL_ID NOT NULL, extraction_id BIG_ID NOT NULL, step_id BIG_ID NOT NULL, url TEXT NOT NULL,
    key TEXT NOT NULL, host TEXT NOT NULL, status VARCHAR(20) NOT NULL, page_type VARCHAR(20) NOT NULL,
    position INTEGER, snapshot_id BIG_ID, outcome VARCHAR(10), failure JSON, size_bytes INTEGER, elapsed_ms INTEGER,
    item_count INTEGER, extraction_method VARCHAR(20), reader_hash VARCHAR(64), carried_from BIG_ID,
    read_started_at UTC_TIME, read_at UTC_TIME, created_at UTC_TIME NOT NULL, visited_at UTC_TIME, run_id VARCHAR(64),
    modified_at UTC_TIME,
    CONSTRAINT pk_pages PRIMARY KEY (id),
    CONSTRAINT fk_pages_extraction_id FOREIGN KEY(extraction_id) REFERENCES extractions (id),
    CONSTRAINT fk_pages_step_id FOREIGN KEY(step_id) REFERENCES crawl_steps (id),
    CONSTRAINT uq_pages_extraction_id_key UNIQUE (extraction_id, key)
);
CREATE INDEX ix_pages_extraction_id_status ON pages (extraction_id, status);
CREATE INDEX ix_pages_snapshot_id ON pages (snapshot_id);

CREATE TABLE data_items (
    id SERIAL_ID NOT NULL, dataset_id BIG_ID NOT NULL, page_id BIG_ID NOT NULL, snapshot_id BIG_ID,
    entity_type VARCHAR(60) NOT NULL, item_key TEXT NOT NULL, position INTEGER NOT NULL, data JSON NOT NULL,
    grounding JSON NOT NULL, extraction_method VARCHAR(20) NOT NULL, model TEXT, confidence FLOAT NOT NULL,
    is_flagged BOOLEAN NOT NULL, is_repeat BOOLEAN NOT NULL, created_at UTC_TIME NOT NULL,
    CONSTRAINT pk_data_items PRIMARY KEY (id),
    CONSTRAINT fk_data_items_dataset_id FOREIGN KEY(dataset_id) REFERENCES datasets (id),
    CONSTRAINT fk_data_items_page_id FOREIGN KEY(page_id) REFERENCES pages (id),
    CONSTRAINT uq_data_items_dataset_id_page_id_item_key UNIQUE (dataset_id, page_id, item_key)
);
CREATE INDEX ix_data_items_dataset_id_item_key ON data_items (dataset_id, item_key);
CREATE INDEX ix_data_items_page_id ON data_items (page_id);

-- Only proven values leave the database: `data` of the view holds no others.
CREATE VIEW v_datasets_current AS
SELECT
    i.id AS item_id, d.source_id, d.id AS dataset_id, d.version AS dataset_version, i.entity_type, i.item_key,
    (PROVEN_FIELDS) AS data, p.url AS page_url, i.snapshot_id, i.extraction_method, i.model, i.confidence,
    d.published_at, COALESCE(p.read_at, i.created_at) AS read_at
FROM data_items AS i
JOIN datasets AS d ON d.id = i.dataset_id
JOIN pages AS p ON p.id = i.page_id
WHERE d.status = 'published'
  AND NOT i.is_repeat
  AND NOT i.is_flagged
  AND NOT EXISTS (
    SELECT 1 FROM datasets AS newer
    WHERE newer.source_id = d.source_id
      AND newer.status = 'published'
      AND newer.version > d.version
  );

CREATE VIEW v_chapters_latest AS
SELECT
    s.id AS series_id, s.title AS series_title, c.id AS chapter_id, c.number, c.title, c.published_at,
    c.first_detected_at, l.source_id, l.url, l.language, l.ingestion_id, i.run_id, i.config_version
FROM series AS s
JOIN chapters AS c ON c.series_id = s.id AND c.number = s.latest_chapter
LEFT JOIN chapter_sources AS l ON l.id = (
    SELECT MIN(one.id) FROM chapter_sources AS one
    WHERE one.chapter_id = c.id AND one.available
)
LEFT JOIN ingestions AS i ON i.id = l.ingestion_id
WHERE s.merged_into IS NULL AND c.rejected_at IS NULL;

-- With what the poll read, as long as the poll is kept.
CREATE VIEW v_changes AS
SELECT
    c.id AS change_id, c.occurred_at, c.table_name, c.row_key, c.op, c.source_id, c.cause, c.before, c.after,
    c.ingestion_id, c.run_id, c.snapshot_id, i.snapshots AS snapshot_ids, i.parser_version, i.config_version
FROM changes AS c
LEFT JOIN ingestions AS i ON i.id = c.ingestion_id;

-- When the next record of a source is expected: one interval of its rate after the last one.
CREATE VIEW v_expected AS
SELECT
    s.id AS source_id, s.kind, s.name, s.series_id, s.url, s.last_new_at, s.changes_per_day, EXPECTED_AT AS expected_at
FROM sources AS s
WHERE s.status = 'active' AND s.last_new_at IS NOT NULL AND s.changes_per_day > 0;

CREATE VIEW v_job_matches_open AS
SELECT
    m.id AS match_id, m.listing_id, j.source_id, m.company_id, j.company_name, j.title, j.url, j.location, j.remote,
    m.score, m.priority, m.method, m.reason, j.posted_at, m.created_at AS matched_at, j.snapshot_id, j.ingestion_id,
    m.run_id, i.config_version
FROM job_matches AS m
JOIN job_listings AS j ON j.id = m.listing_id
LEFT JOIN ingestions AS i ON i.id = j.ingestion_id
WHERE m.status = 'new' AND j.status = 'open';

CREATE VIEW v_source_health AS
SELECT
    s.id AS source_id, s.kind, s.platform, s.tier, s.status, s.status_reason, w.state AS health,
    w.since AS health_since, s.failure_count, s.last_error_class, s.last_outcome, s.last_checked_at, s.last_success_at,
    s.last_changed_at, s.next_check_at, s.record_count, s.config_version,
    (
        SELECT COUNT(*) FROM dead_letters AS d
        WHERE d.source_id = s.id AND d.replayed_at IS NULL AND d.discarded_at IS NULL
    ) AS open_dead_letters,
    h.state AS reported_state, h.since AS reported_since, h.reason AS reported_reason
FROM sources AS s
LEFT JOIN observed_health AS w ON w.source_id = s.id
LEFT JOIN source_health AS h ON h.source_id = s.id;
