-- What agents remember, as it is. A row never changes: one that is made again and says something else replaces it.
-- Episodes are of one trajectory each; what was told came by the service; the others are made of memories, whole sets at
-- a time, of which `memory_generations` says which one counts. Read with FINAL.
CREATE TABLE IF NOT EXISTS memories {on_cluster}
(
    id          String COMMENT 'A UUID: the same for what is remembered of the same thing.',
    memory_type LowCardinality(String),
    origin      LowCardinality(String) COMMENT 'lineage: made of trajectories or of memories. told: by the service.',
    generation  String COMMENT 'Of the set that a consolidated memory belongs to; empty for others.',
    agent_id    LowCardinality(String) COMMENT 'Whose memory it is; empty where all agents share it.',
    task_type   LowCardinality(String),
    domain      LowCardinality(String),
    day         Date COMMENT 'Partition of the assets: of the message, or the last day that was consolidated.',
    stream      LowCardinality(String) COMMENT 'Of the trajectory; empty for what has none.',
    sequence    UInt64 COMMENT 'Of the trajectory in the stream; 0 for what has none.',
    stream_time DateTime64(3, 'UTC') COMMENT 'When it was stored by the stream, told, or the last of its sources was.',
    user        String COMMENT 'The placeholder of the user, by which the row is erased; empty where there is none.',
    content     String CODEC(ZSTD(3)) COMMENT 'What the memory says, as JSON.',
    searched    Array(String) CODEC(ZSTD(3)) COMMENT 'The turns in which words are looked for.',
    importance  Float64 COMMENT 'From 0 to 1, when it was made.',
    sources     Array(String) COMMENT 'The memories that it was made of.',
    hash        String COMMENT 'Of what the row says.',
    expires_at  DateTime64(3, 'UTC'),
    stored_at   DateTime64(3, 'UTC') DEFAULT now64(3),
    CONSTRAINT memory_type_is_known CHECK memory_type IN ('episodic', 'semantic', 'procedural')
)
ENGINE = {replicated}ReplacingMergeTree(stored_at)
ORDER BY (memory_type, origin, generation, id)
TTL toDateTime(expires_at) DELETE
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- Which set of consolidated memories of a type of task counts, and which days' episodes were remembered. The row is
-- written when the whole set is. Read with FINAL.
CREATE TABLE IF NOT EXISTS memory_generations {on_cluster}
(
    memory_type LowCardinality(String),
    task_type   LowCardinality(String) COMMENT 'Empty for episodes, of which a set is a day.',
    day         Date COMMENT 'The last day that was consolidated; the set of the newest day counts.',
    generation  String COMMENT 'The hash of the whole set.',
    memories    UInt32,
    sources     UInt32 COMMENT 'Memories that it was made of.',
    made_at     DateTime64(3, 'UTC')
)
ENGINE = {replicated}ReplacingMergeTree(made_at)
ORDER BY (memory_type, task_type, day)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- The memories that count.
CREATE VIEW IF NOT EXISTS current_memories {on_cluster} AS
SELECT * FROM memories FINAL
WHERE expires_at > now64(3) AND (generation = '' OR (memory_type, task_type, generation) IN (
    SELECT memory_type, task_type, argMax(generation, day) FROM memory_generations FINAL
    WHERE memory_type != 'episodic' GROUP BY memory_type, task_type
));

-- The same with the names of the learning architecture. Counts of looks are in the store of memories, which changes
-- with every look: here they are what they are when a memory is made.
CREATE VIEW IF NOT EXISTS agent_memories {on_cluster} AS
SELECT
    id, agent_id, memory_type, content,
    CAST([], 'Array(Float32)') AS embedding,
    importance,
    toInt32(0) AS access_count,
    CAST(NULL, 'Nullable(DateTime64(3, \'UTC\'))') AS last_accessed,
    stream_time AS created_at
FROM current_memories;
