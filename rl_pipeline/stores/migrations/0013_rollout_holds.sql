-- When a rollout waited for a person: from its first look to the last. What waits again for the same reason at the same
-- step is the same hold. Read with FINAL.
CREATE TABLE IF NOT EXISTS rollout_holds {on_cluster}
(
    deployment_id String,
    step          UInt32 COMMENT 'Of the rollout, from 0.',
    reason        LowCardinality(String) COMMENT 'As judgements have it.',
    model_id      String COMMENT 'The candidate.',
    explanation   String COMMENT 'For people, as it was when it began.',
    since         DateTime64(3, 'UTC'),
    ended_at      Nullable(DateTime64(3, 'UTC')) COMMENT 'Null while it goes on.',
    noted_at      DateTime64(3, 'UTC')
)
ENGINE = {replicated}ReplacingMergeTree(noted_at)
ORDER BY (deployment_id, step, reason)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;
