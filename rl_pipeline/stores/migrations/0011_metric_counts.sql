-- What the metrics have counted, part by part: a part is some thousand sequences of a stream, or one event. A part may be
-- counted again and by anybody at any time: of each of its figures the largest ever found is kept. So a counter goes on
-- when rows expire or are erased, counts what is accepted late, and nothing twice. Read with max(value) by the key.
CREATE TABLE IF NOT EXISTS metric_counts {on_cluster}
(
    family     LowCardinality(String),
    part       String,
    labels     Array(String) COMMENT 'Values of the labels of the metric, or the bucket; never anything that a user wrote.',
    value      SimpleAggregateFunction(max, Float64),
    counted_at SimpleAggregateFunction(max, DateTime64(3, 'UTC')) DEFAULT now64(3)
)
ENGINE = {replicated}AggregatingMergeTree
ORDER BY (family, part, labels)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;
