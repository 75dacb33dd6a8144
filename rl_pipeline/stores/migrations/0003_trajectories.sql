-- Sequences that retention took before they were ingested get a row too: the ledger has no holes.
ALTER TABLE trajectory_ledger {on_cluster} DROP CONSTRAINT IF EXISTS verdict_is_known;
ALTER TABLE trajectory_ledger {on_cluster} ADD CONSTRAINT IF NOT EXISTS verdict_is_known
    CHECK verdict IN ('accepted', 'duplicate', 'refused', 'opted_out', 'erased', 'lost');

-- Which rules and which key made the rows: a change of either is a new revision, and the newest is the current one.
CREATE TABLE IF NOT EXISTS ingest_revisions {on_cluster}
(
    revision    UInt32,
    fingerprint String COMMENT 'Of the redaction rules, their policy and key version, and of the enrichment.',
    key         String COMMENT 'The redaction key of its rows: its version, and digits that tell secrets apart.',
    created_at  DateTime64(3, 'UTC') DEFAULT now64(3)
)
ENGINE = {replicated}ReplacingMergeTree
ORDER BY revision
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- The trajectories, validated, redacted and enriched, each once. Read with FINAL.
-- Of two rows of one trajectory the newer revision wins, and within it the lower sequence: both are in `version`.
-- Rows live 30 days, longer where a dataset holds them.
CREATE TABLE IF NOT EXISTS trajectories {on_cluster}
(
    trajectory_id        String,
    stream               LowCardinality(String),
    sequence             UInt64,
    stream_time          DateTime64(3, 'UTC') COMMENT 'When the stream stored the message; its UTC day is the partition of the assets.',
    revision             UInt32,
    version              UInt64 COMMENT 'revision * 2^40 + (2^40 - 1 - sequence)',
    publisher            LowCardinality(String),
    session_id           String,
    agent_id             LowCardinality(String),
    subordinate_profile  LowCardinality(String) COMMENT 'Empty for the main agent.',
    parent_trajectory_id String COMMENT 'Of the superior agent that delegated this one; empty for a main agent.',
    user                 String COMMENT 'The placeholder of the user id; empty where none was given.',
    framework            LowCardinality(String),
    model                LowCardinality(String),
    model_version        LowCardinality(String) COMMENT 'Empty where the publisher did not say.',
    task_id              String,
    task_type            LowCardinality(String) COMMENT 'As published, else the domain.',
    group_id             String,
    domain               LowCardinality(String),
    domain_is_inferred   Bool,
    complexity           Float64,
    complexity_is_inferred Bool,
    task_status          LowCardinality(String) COMMENT 'Empty where the agent did not know.',
    started_at           DateTime64(3, 'UTC'),
    ended_at             DateTime64(3, 'UTC'),
    turns                UInt32,
    failed_turns         UInt32,
    agents               UInt32 COMMENT 'Distinct agents that acted.',
    tools                Array(String) COMMENT 'The tools called, in order.',
    total_tokens         Nullable(UInt64),
    total_cost_usd       Nullable(Float64),
    document             String CODEC(ZSTD(3)) COMMENT 'The redacted message, as agent.rl.trajectory.v1 has it.',
    redaction_rules      Array(String) COMMENT 'The rules that fired; never what they found.',
    redaction_counts     Array(UInt32) COMMENT 'How often each of them did.',
    held                 Bool DEFAULT false COMMENT 'A dataset has it: it does not expire.',
    expires_at           DateTime64(3, 'UTC') DEFAULT stream_time + INTERVAL 30 DAY,
    ingested_at          DateTime64(3, 'UTC') DEFAULT now64(3)
)
ENGINE = {replicated}ReplacingMergeTree(version)
PARTITION BY toYYYYMMDD(stream_time)
ORDER BY trajectory_id
TTL toDateTime(expires_at) DELETE WHERE NOT held
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- Rows in which a check found what must not flow on. A row that is redacted again has another version, and is no longer
-- meant: so a day stays suspicious until all of its rows are in order, whatever else was ingested since.
CREATE TABLE IF NOT EXISTS suspicious_trajectories {on_cluster}
(
    trajectory_id String,
    version       UInt64,
    problem       LowCardinality(String) COMMENT 'The kind of value that was left, or invalid; never the value.',
    found_at      DateTime64(3, 'UTC') DEFAULT now64(3)
)
ENGINE = {replicated}ReplacingMergeTree
ORDER BY (trajectory_id, version, problem)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- Whose data was erased, and up to when it stays away: ingest honours this on every replay.
CREATE TABLE IF NOT EXISTS erasures {on_cluster}
(
    user         String COMMENT 'The placeholder of the user id under one of the keys.',
    keys         Array(String) COMMENT 'The redaction keys under which this user has tombstones, the current one first: ingest must have one of them.',
    erased_at    DateTime64(3, 'UTC'),
    covers_until DateTime64(3, 'UTC') COMMENT 'Messages stored by the stream up to then are never ingested; the year 2199 for an opt-out.'
)
ENGINE = {replicated}ReplacingMergeTree
ORDER BY (user, erased_at)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- Which datasets hold which trajectories, and which checkpoints learnt from which datasets.
CREATE TABLE IF NOT EXISTS dataset_trajectories {on_cluster}
(
    dataset_id    String,
    trajectory_id String,
    added_at      DateTime64(3, 'UTC') DEFAULT now64(3)
)
ENGINE = {replicated}ReplacingMergeTree
ORDER BY (dataset_id, trajectory_id);
CREATE TABLE IF NOT EXISTS checkpoint_datasets {on_cluster}
(
    checkpoint_id String,
    dataset_id    String,
    added_at      DateTime64(3, 'UTC') DEFAULT now64(3)
)
ENGINE = {replicated}ReplacingMergeTree
ORDER BY (checkpoint_id, dataset_id);
