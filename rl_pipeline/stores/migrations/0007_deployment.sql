-- What was ever to be served: one row for each generation of the desired state, derived from it alone. Read with FINAL.
-- A generation that was lost with its bucket before anybody could restore it may have a second one: by the hashes it is
-- told which of them the chain goes through. A row that tells of its announcement replaces the one that does not.
CREATE TABLE IF NOT EXISTS deployment_audit {on_cluster}
(
    generation    UInt64,
    hash          String COMMENT 'Of the state as it was stored.',
    previous_hash String COMMENT 'Of the generation before; empty for the first.',
    state         String CODEC(ZSTD(3)) COMMENT 'As JSON, byte for byte as it was stored.',
    event         LowCardinality(String) COMMENT 'What made this generation out of the one before.',
    phase         LowCardinality(String),
    model_id      String COMMENT 'The model that the event is about.',
    deployment_id String COMMENT 'Empty where it belongs to no rollout.',
    reason        String,
    by            LowCardinality(String),
    at            DateTime64(3, 'UTC'),
    evidence      String CODEC(ZSTD(3)) COMMENT 'As JSON.',
    announced_at  Nullable(DateTime64(3, 'UTC')) COMMENT 'When agent.rl.model.deployed.v1 told of it.',
    version       UInt8 COMMENT '1 once it was announced.'
)
ENGINE = {replicated}ReplacingMergeTree(version)
ORDER BY (generation, hash)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- Models that passed validation and may be rolled out, one for each training job. Read with FINAL.
CREATE TABLE IF NOT EXISTS model_releases {on_cluster}
(
    training_job_id  String,
    number           UInt32 COMMENT 'From 1; the model is agent-zero-rl-v<number>.',
    model_id         String,
    deployment_id    String COMMENT 'Of its rollout.',
    model            String COMMENT 'As JSON: what a gateway needs to serve it.',
    plan             String COMMENT 'As JSON: strategy, steps, rule and bake.',
    validation       String COMMENT 'As JSON: validation_results of agent.rl.model.deployed.v1.',
    needs_approval   Bool,
    state            LowCardinality(String),
    explanation      String COMMENT 'Why it is in this state, for people.',
    released_at      DateTime64(3, 'UTC'),
    changed_at       DateTime64(3, 'UTC'),
    version          UInt8 COMMENT '0 while it waits; the first end counts.',
    CONSTRAINT state_is_known CHECK state IN ('waiting', 'started', 'superseded', 'refused')
)
ENGINE = {replicated}ReplacingMergeTree(version)
ORDER BY training_job_id
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- What came of each session that a gateway served. A session that goes on after a pause is told again, with the time at
-- which it went on; what was told twice counts as it was first. Read with FINAL.
CREATE TABLE IF NOT EXISTS serving_outcomes {on_cluster}
(
    deployment_id     String COMMENT 'Empty where no rollout was going on.',
    session_id        String,
    generation        UInt64 COMMENT 'Of the desired state under which it was routed.',
    started_at        DateTime64(3, 'UTC'),
    stream_time       DateTime64(3, 'UTC') COMMENT 'When the stream stored it: by this it belongs to its window.',
    sequence          UInt64,
    model_id          LowCardinality(String),
    step              UInt32 COMMENT 'Of the rollout; 0 without one.',
    gateway           LowCardinality(String),
    ended_at          DateTime64(3, 'UTC'),
    requests          UInt64,
    failed_requests   UInt64,
    failed            Bool,
    failure           LowCardinality(String) COMMENT 'How the first request failed; empty where none did.',
    feedback          LowCardinality(String) COMMENT 'positive or negative; empty where its user said nothing.',
    latency_ms        Nullable(Float64),
    prompt_tokens     Nullable(UInt64),
    completion_tokens Nullable(UInt64),
    earliness         UInt64 MATERIALIZED 9223372036854775807 - sequence
)
ENGINE = {replicated}ReplacingMergeTree(earliness)
ORDER BY (deployment_id, session_id, generation, started_at)
TTL toDateTime(stream_time) + INTERVAL 90 DAY
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- What was found out about each rollback. Read with FINAL.
CREATE TABLE IF NOT EXISTS post_mortems {on_cluster}
(
    deployment_id String,
    model_id      String,
    report        String CODEC(ZSTD(3)) COMMENT 'As JSON.',
    report_url    String COMMENT 'Of the same for people.',
    held_at       DateTime64(3, 'UTC')
)
ENGINE = {replicated}ReplacingMergeTree(held_at)
ORDER BY deployment_id
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;
