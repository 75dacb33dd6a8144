-- The stream as the sensor saw it, beside how far the ledger was. The same observation twice is one. Read with FINAL.
CREATE TABLE IF NOT EXISTS stream_observations {on_cluster}
(
    stream         LowCardinality(String),
    observed_at    DateTime64(6, 'UTC'),
    first_sequence UInt64,
    last_sequence  UInt64,
    messages       UInt64,
    bytes          UInt64,
    ingested_up_to UInt64 COMMENT 'The ledger has everything up to this sequence.',
    lag            UInt64 COMMENT 'Messages that wait to be ingested.',
    erased         UInt64 COMMENT 'Sequences taken out one by one.',
    overrun        UInt64 COMMENT 'Sequences that retention took before they were ingested: lost.'
)
ENGINE = {replicated}ReplacingMergeTree
ORDER BY (stream, observed_at);
