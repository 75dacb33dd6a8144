-- What validation said of each checkpoint, once for each time that it was asked. Read with FINAL.
CREATE TABLE IF NOT EXISTS validation_reports {on_cluster}
(
    job_id          String,
    control         String COMMENT 'The model in service that it was compared with; empty where there was none.',
    manifest_sha256 String COMMENT 'Of the checkpoint that was validated.',
    shadow          Bool COMMENT 'It is never deployed, whatever the decision.',
    decision        LowCardinality(String) COMMENT 'deploy, refuse or ask_a_person.',
    reasons         Array(String),
    improvement     Nullable(Float64) COMMENT 'Of the mean of the benchmarks, in absolute points.',
    seconds         Float64,
    report          String CODEC(ZSTD(3)) COMMENT 'As JSON: every suite with its figures.',
    report_url      String,
    validated_at    DateTime64(3, 'UTC')
)
ENGINE = {replicated}ReplacingMergeTree(validated_at)
ORDER BY job_id
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;
