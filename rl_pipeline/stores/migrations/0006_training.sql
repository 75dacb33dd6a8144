-- Requests for training that were accepted, one row per job, with where each stands. Read with FINAL.
CREATE TABLE IF NOT EXISTS training_jobs {on_cluster}
(
    job_id           String,
    request          String COMMENT 'The request as agent.rl.training.request.v1 has it.',
    requester        LowCardinality(String),
    trigger_reason   LowCardinality(String),
    priority         LowCardinality(String),
    shadow           Bool COMMENT 'Trains and is validated, and is never deployed.',
    source           LowCardinality(String) COMMENT 'clickhouse, nats_stream, s3 or local.',
    through_sequence UInt64 COMMENT 'The dataset waits until trajectories up to here are ingested and scored; 0 for none.',
    state            LowCardinality(String),
    explanation      String COMMENT 'Why it is in this state, for people.',
    requested_at     DateTime64(3, 'UTC') COMMENT 'As the request says.',
    accepted_at      DateTime64(3, 'UTC'),
    changed_at       DateTime64(3, 'UTC'),
    watermark        UInt64 DEFAULT 0 COMMENT 'The last sequence that the dataset could have used; 0 before curation.',
    version          UInt64 COMMENT 'Number of the change; the highest counts.',
    CONSTRAINT state_is_known CHECK state IN
        ('accepted', 'importing', 'waiting', 'ready', 'running', 'preempting', 'cancelling', 'completed', 'failed',
         'cancelled')
)
ENGINE = {replicated}ReplacingMergeTree(version)
ORDER BY job_id
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- What was tried for each job, and how it ended. An attempt that has no end is planned or runs. Read with FINAL.
CREATE TABLE IF NOT EXISTS training_attempts {on_cluster}
(
    job_id       String,
    attempt      UInt32 COMMENT 'From 1.',
    starts_from  LowCardinality(String) COMMENT 'dataset or checkpoint.',
    plan         String COMMENT 'As JSON; empty until the run has made it.',
    changes      String COMMENT 'As JSON: what this attempt does otherwise than the one before.',
    not_before   DateTime64(3, 'UTC'),
    run_id       String COMMENT 'The Dagster run; empty before it started.',
    started_at   Nullable(DateTime64(3, 'UTC')),
    ended_at     Nullable(DateTime64(3, 'UTC')),
    outcome      LowCardinality(String) COMMENT 'completed, failed, cancelled or preempted; empty while it is open.',
    failure_code LowCardinality(String),
    message      String,
    traceback    String CODEC(ZSTD(3)),
    result       String COMMENT 'As JSON: measures, steps, seconds, cost.',
    version      UInt64
)
ENGINE = {replicated}ReplacingMergeTree(version)
ORDER BY (job_id, attempt)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- Trajectories that files brought in for a job: its dataset is made of these alone.
CREATE TABLE IF NOT EXISTS imported_trajectories {on_cluster}
(
    job_id        String,
    trajectory_id String,
    imported_at   DateTime64(3, 'UTC') DEFAULT now64(3)
)
ENGINE = {replicated}ReplacingMergeTree
ORDER BY (job_id, trajectory_id);

-- Rows that broke a training: no later revision of the job's dataset has them.
CREATE TABLE IF NOT EXISTS quarantined_trajectories {on_cluster}
(
    job_id        String,
    trajectory_id String,
    reason        String,
    found_at      DateTime64(3, 'UTC') DEFAULT now64(3)
)
ENGINE = {replicated}ReplacingMergeTree
ORDER BY (job_id, trajectory_id);

-- The datasets, one row per revision. Read with FINAL.
CREATE TABLE IF NOT EXISTS datasets {on_cluster}
(
    dataset_id    String COMMENT '<job>.r<revision>',
    job_id        String,
    revision      UInt32 COMMENT 'From 1; rows that were quarantined make a new one.',
    algorithm     LowCardinality(String),
    manifest_url  String,
    manifest_hash String COMMENT 'Of the content: the same inputs give the same hash.',
    trajectories  UInt64,
    holdout       UInt64,
    summary       String COMMENT 'As JSON: what was offered, kept and left out, and why.',
    created_at    DateTime64(3, 'UTC')
)
ENGINE = {replicated}ReplacingMergeTree(created_at)
ORDER BY dataset_id;

-- Why each trajectory is in a dataset: a row for each of its roles. Read with FINAL.
CREATE TABLE IF NOT EXISTS dataset_provenance {on_cluster}
(
    dataset_id      String,
    trajectory_id   String,
    role            LowCardinality(String) COMMENT 'demonstration, chosen, rejected, prompt or scored.',
    split           LowCardinality(String) COMMENT 'train or holdout.',
    task            String COMMENT 'By which the splits are kept apart.',
    domain          LowCardinality(String),
    raw_total       Float64,
    reward_id       String,
    reward_revision UInt32,
    configuration   LowCardinality(String)
)
ENGINE = {replicated}ReplacingMergeTree
ORDER BY (dataset_id, trajectory_id, role);

-- Checkpoints that were verified, signed and stored. Read with FINAL.
CREATE TABLE IF NOT EXISTS model_checkpoints {on_cluster}
(
    id                  String,
    agent_id            LowCardinality(String) COMMENT 'The kind of policy that was trained.',
    checkpoint_path     String COMMENT 'Its address in the object store.',
    performance_metrics String COMMENT 'As JSON.',
    training_iteration  UInt64 COMMENT 'Steps of the optimiser.',
    created_at          DateTime64(3, 'UTC'),
    job_id              String,
    attempt             UInt32,
    dataset_id          String,
    base_model          String,
    algorithm           LowCardinality(String),
    manifest_sha256     String,
    key_id              LowCardinality(String) COMMENT 'Of the key that signed the manifest.',
    is_best             Bool,
    deployed            Bool,
    shadow              Bool,
    pruned_at           Nullable(DateTime64(3, 'UTC')) COMMENT 'When its files were removed.',
    version             UInt64
)
ENGINE = {replicated}ReplacingMergeTree(version)
ORDER BY id
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;
