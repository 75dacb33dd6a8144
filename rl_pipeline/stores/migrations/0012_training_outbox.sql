-- Requests for training and their cancellations that were made while NATS was away. The sensor of requests publishes
-- them, under the ids that they have here. Read with FINAL.
CREATE TABLE IF NOT EXISTS training_outbox {on_cluster}
(
    message_id   String,
    job_id       String,
    subject      LowCardinality(String),
    data         String COMMENT 'The message, as it is published.',
    kept_at      DateTime64(3, 'UTC'),
    published_at Nullable(DateTime64(3, 'UTC')) COMMENT 'When it was published; null while it waits.',
    version      UInt8 COMMENT '1 once it was published.'
)
ENGINE = {replicated}ReplacingMergeTree(version)
ORDER BY message_id
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;
