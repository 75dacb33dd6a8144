-- What arrived: one row per stream sequence, never the content, which stays in the stream.
-- A newer revision (of redaction rules and enrichment) replaces the row; the same one changes nothing. Read with FINAL.
-- The ledger row is written last, so it must not outlive a power failure that its content does not: hence the fsync,
-- 2 ms per insert where it was measured.
CREATE TABLE IF NOT EXISTS trajectory_ledger {on_cluster}
(
    stream        LowCardinality(String),
    sequence      UInt64 CODEC(Delta, ZSTD),
    stream_time   DateTime64(3, 'UTC') COMMENT 'When the stream stored the message; its UTC day is the partition of the assets.',
    message_id    String COMMENT 'Nats-Msg-Id.',
    trajectory_id String COMMENT 'Empty where the message could not be read.',
    publisher     LowCardinality(String),
    size          UInt64 COMMENT 'Bytes of the message.',
    sha256        String COMMENT 'Of the message, in hexadecimal digits.',
    verdict       LowCardinality(String),
    reason        LowCardinality(String) COMMENT 'Why it was not accepted: a code, never an excerpt.',
    revision      UInt32,
    ingested_at   DateTime64(3, 'UTC') DEFAULT now64(3),
    CONSTRAINT verdict_is_known CHECK verdict IN ('accepted', 'duplicate', 'refused', 'opted_out', 'erased')
)
ENGINE = {replicated}ReplacingMergeTree(revision)
ORDER BY (stream, sequence)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;
