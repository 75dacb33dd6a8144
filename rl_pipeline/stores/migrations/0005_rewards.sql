-- Facts measured in each stored trajectory, once per ingest revision: what terms score. Every restatement is kept.
-- Of two rows of one ingest revision the first wins, so that it stays known when it was measured. Read with FINAL.
-- `content_hash` is of the facts alone: what it is equal in restates nothing.
CREATE TABLE IF NOT EXISTS trajectory_signals {on_cluster}
(
    trajectory_id     String,
    stream            LowCardinality(String),
    sequence          UInt64 CODEC(Delta, ZSTD),
    stream_time       DateTime64(3, 'UTC'),
    ingest_revision   UInt32 COMMENT 'Revision of the ingest whose document was measured.',
    is_late           Bool COMMENT 'It was accepted after later sequences had been measured: it enters no window.',
    session_id        String,
    agent_id          LowCardinality(String),
    framework         LowCardinality(String),
    model             LowCardinality(String),
    model_version     LowCardinality(String),
    task_id           String,
    task_type         LowCardinality(String),
    domain            LowCardinality(String),
    user              String COMMENT 'The placeholder of the user id, by which the row is erased.',
    status            LowCardinality(String) COMMENT 'Empty where the agent did not know.',
    completion        Nullable(Float64) COMMENT 'From 0 to 1.',
    subtasks          UInt32,
    subtasks_done     Float64,
    turns             UInt32,
    calls             UInt32,
    distinct_calls    UInt32,
    failed_calls      UInt32,
    redundant_calls   UInt32,
    empty_results     UInt32,
    seconds           Float64,
    tokens            Nullable(UInt64),
    code_snippets     UInt32,
    code_unparsable   UInt32,
    lint_score        Nullable(Float64),
    lint_from         LowCardinality(String),
    tests_passed      Nullable(UInt32),
    tests_total       Nullable(UInt32),
    tests_from        LowCardinality(String),
    tests_doubt       LowCardinality(String) COMMENT 'Why the tests prove nothing; empty where they may.',
    security_critical Nullable(UInt32),
    feedback_kinds    Array(LowCardinality(String)) COMMENT 'Of the feedback inside the trajectory.',
    feedback_ratings  Array(UInt8) COMMENT '0 where there is none.',
    feedback_users    Array(String),
    corrections_shown UInt32,
    answer_structure  Nullable(Float64),
    answer_depth      Nullable(Float64),
    answer_similarity Nullable(Float64),
    rounds            Nullable(UInt32),
    consensus         Nullable(Bool),
    votes             Nullable(UInt32),
    votes_right       Nullable(UInt32),
    restarts          Nullable(UInt32),
    agents            Array(String) COMMENT 'In the order of their first turns.',
    credit_shares     Array(Float64) COMMENT 'Of each agent; they sum to 1.',
    sole_shares       Array(Float64) COMMENT 'Of each agent: the share of the steps that nobody else achieved.',
    turn_agents       Array(String),
    turn_potentials   Array(Float64),
    measured_at       DateTime64(3, 'UTC'),
    earliness         UInt64 MATERIALIZED 9223372036854775807 - toUnixTimestamp64Milli(measured_at),
    content_hash      String MATERIALIZED lower(hex(sipHash128(toString((
        session_id, agent_id, framework, model, model_version, task_id, task_type, domain, status, completion,
        subtasks, subtasks_done, turns, calls, distinct_calls, failed_calls, redundant_calls, empty_results, seconds,
        tokens, code_snippets, code_unparsable, lint_score, lint_from, tests_passed, tests_total, tests_from,
        tests_doubt, security_critical, feedback_kinds, feedback_ratings, feedback_users, corrections_shown,
        answer_structure, answer_depth, answer_similarity, rounds, consensus, votes, votes_right, restarts, agents,
        credit_shares, sole_shares, turn_agents, turn_potentials
    )))))
)
ENGINE = {replicated}ReplacingMergeTree(earliness)
ORDER BY (stream, sequence, ingest_revision)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- The scores that make up the windows of later trajectories: of revision 0, of nothing late. Read with FINAL.
CREATE TABLE IF NOT EXISTS reward_scores {on_cluster}
(
    scores_hash   LowCardinality(String) COMMENT 'Of the terms, their versions and options.',
    stream        LowCardinality(String),
    task_type     LowCardinality(String),
    sequence      UInt64,
    trajectory_id String,
    terms         Array(LowCardinality(String)) COMMENT 'Those that apply.',
    units         Array(Int32) COMMENT 'Their scores on [0, 1], in parts of 2^20.'
)
ENGINE = {replicated}ReplacingMergeTree
ORDER BY (scores_hash, stream, task_type, sequence)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- What came of each sequence of the feedback stream. The row is the content, so one insert is the whole deed.
-- An erased row has the highest revision: nothing replaces it. It has no content, but where it was accepted before, it
-- still tells of which trajectory and from when, and counts as an event without an opinion. Read with FINAL.
CREATE TABLE IF NOT EXISTS trajectory_feedback {on_cluster}
(
    stream        LowCardinality(String),
    sequence      UInt64 CODEC(Delta, ZSTD),
    stream_time   DateTime64(3, 'UTC') COMMENT 'When the stream stored it.',
    heard_at      DateTime64(3, 'UTC') DEFAULT stream_time COMMENT 'From when it counts: later than that where a replay accepted it. By this it comes before or after its trajectory.',
    verdict       LowCardinality(String),
    reason        LowCardinality(String) COMMENT 'Why it was not accepted: a code, never an excerpt.',
    feedback_id   String,
    trajectory_id String COMMENT 'Which may not have arrived yet.',
    given_at      Nullable(DateTime64(3, 'UTC')) COMMENT 'As published.',
    kind          LowCardinality(String),
    rating        UInt8 COMMENT 'Stars from 1 to 5; 0 where the kind is another.',
    text          String CODEC(ZSTD(3)) COMMENT 'Redacted.',
    user          String COMMENT 'The placeholder of the user id; empty where none was given.',
    turn_id       UInt64 COMMENT '0 where it is about the whole trajectory.',
    channel       LowCardinality(String) COMMENT 'Redacted.',
    sha256        String COMMENT 'Of the message, in hexadecimal digits.',
    revision      UInt32 COMMENT 'Of the redaction rules.',
    drained_at    DateTime64(3, 'UTC') DEFAULT now64(3) COMMENT 'When the row was written; of an erased one, when it was erased.',
    CONSTRAINT verdict_is_known CHECK verdict IN ('accepted', 'duplicate', 'refused', 'opted_out', 'erased', 'lost')
)
ENGINE = {replicated}ReplacingMergeTree(revision)
ORDER BY (stream, sequence)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- Every reward that was ever computed: all revisions under all configurations. Read with FINAL.
-- A row that is published replaces the same one that was not, and computing it again does not undo that.
CREATE TABLE IF NOT EXISTS rewards {on_cluster}
(
    trajectory_id      String,
    stream             LowCardinality(String),
    sequence           UInt64,
    stream_time        DateTime64(3, 'UTC') COMMENT 'Of the trajectory; its UTC day is the partition of the assets.',
    session_id         String,
    task_id            String,
    task_type          LowCardinality(String),
    model_version      LowCardinality(String),
    revision           UInt32 COMMENT '0 for the first; later feedback and restatements add more.',
    terms              Array(LowCardinality(String)) COMMENT 'Those that apply, in order; the following lists are by term.',
    scores             Array(Float64),
    units              Array(Int32) COMMENT 'Scores on [0, 1], in parts of 2^20.',
    weights            Array(Float64) COMMENT 'Effective: they sum to 1 over the terms that apply.',
    normalised         Array(Float64),
    means              Array(Float64),
    stds               Array(Float64),
    counts             Array(UInt32) COMMENT 'How many earlier values the term was compared with.',
    evidences          Array(String) COMMENT 'Why, for people.',
    raw_total          Float64 COMMENT 'What trends, canaries and curation read.',
    total              Float64 COMMENT 'Of the normalised scores.',
    method             LowCardinality(String),
    confidence         Float64,
    cold_start         Bool COMMENT 'Some term had too few earlier values to be compared with.',
    configuration      LowCardinality(String) COMMENT 'Hash of the reward configuration.',
    reward_id          String,
    agents             Array(String),
    credits            Array(Float64) COMMENT 'Of each agent; Shapley values sum to the raw total.',
    turn_agents        Array(String) COMMENT 'Who acted in each turn, by the facts of this revision.',
    turn_rewards       Array(Float64) COMMENT 'Shaped, of each turn.',
    scored_at          DateTime64(3, 'UTC'),
    published_sequence UInt64 DEFAULT 0 COMMENT 'Of its message in the stream of rewards; 0 while there is none.'
)
ENGINE = {replicated}ReplacingMergeTree(published_sequence)
ORDER BY (stream, configuration, sequence, trajectory_id, revision)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- Under which configurations rewards were computed. The one that became current last is in force. Read with FINAL.
CREATE TABLE IF NOT EXISTS reward_configurations {on_cluster}
(
    hash          String,
    scores_hash   String,
    configuration String COMMENT 'As canonical JSON.',
    first_used_at DateTime64(3, 'UTC'),
    current_since DateTime64(3, 'UTC') COMMENT 'When it was last chosen: a configuration may return.'
)
ENGINE = {replicated}ReplacingMergeTree(current_since)
ORDER BY hash
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- The reward of each trajectory as it stands: the newest revision under the configuration that was chosen last of those
-- under which it was scored. So a new configuration hides nothing until its backfill comes to a day.
CREATE VIEW IF NOT EXISTS trajectory_rewards {on_cluster} AS
WITH (
    SELECT mapFromArrays(groupArray(hash), groupArray(toUnixTimestamp64Milli(current_since)))
    FROM reward_configurations FINAL
) AS since
SELECT * FROM rewards FINAL
WHERE (trajectory_id, configuration, revision) IN (
    SELECT trajectory_id, newest.1, newest.2 FROM (
        SELECT trajectory_id, argMax((configuration, revision), (since[configuration], configuration, revision)) AS newest
        FROM rewards GROUP BY trajectory_id
    )
);

-- How rewards move. The raw mean is the one to watch: a trailing normalisation forgets what good was.
CREATE VIEW IF NOT EXISTS reward_trend {on_cluster} AS
SELECT
    toDate(stream_time) AS day, task_type, model_version,
    count() AS trajectories,
    avg(raw_total) AS mean_raw,
    avg(total) AS mean_normalised,
    if(count() < 2, NULL, stddevSamp(raw_total)) AS raw_stddev
FROM trajectory_rewards
GROUP BY day, task_type, model_version;

-- What agents earned by tasks that were reported when they ended, without a trajectory. Read with FINAL.
CREATE TABLE IF NOT EXISTS reported_rewards {on_cluster}
(
    id              String,
    task_id         String,
    agent_id        String,
    raw_reward      Float64,
    shaped_reward   Float64,
    credit_assigned Float64,
    user            String COMMENT 'The placeholder of the user id, by which the row is erased; empty where none was given.',
    metadata        String COMMENT 'As JSON, redacted.',
    created_at      DateTime64(3, 'UTC')
)
ENGINE = {replicated}ReplacingMergeTree
ORDER BY (task_id, agent_id, id)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- Every reward of every agent that took part, revision by revision, and what was reported without a trajectory.
-- `shaped_reward` is what the agent's own turns earned; where a task has no id, its trajectory's stands for it.
CREATE VIEW IF NOT EXISTS reward_history {on_cluster} AS
SELECT
    toString(reinterpretAsUUID(sipHash128(reward_id, agent))) AS id,
    if(scored.task_id = '', trajectory_id, scored.task_id) AS task_id,
    agent AS agent_id,
    raw_total AS raw_reward,
    arraySum(
        (reward, turn_agent) -> if(turn_agent = agent, reward, 0),
        turn_rewards,
        arrayResize(turn_agents, length(turn_rewards))
    ) AS shaped_reward,
    credit AS credit_assigned,
    toJSONString(map(
        'trajectory_id', trajectory_id, 'reward_id', reward_id, 'revision', toString(revision),
        'configuration', configuration, 'total', toString(total), 'confidence', toString(confidence)
    )) AS metadata,
    scored_at AS created_at
FROM (
    SELECT *, agent, credit FROM rewards FINAL ARRAY JOIN agents AS agent, credits AS credit
) AS scored
UNION ALL
SELECT id, task_id, agent_id, raw_reward, shaped_reward, credit_assigned, metadata, created_at
FROM reported_rewards FINAL;

-- The steps of every stored trajectory with what each earned: the observation, the action, and the next observation,
-- or the result of the last action. `batch_id` is the dataset that holds the trajectory, a row for each; else empty.
CREATE VIEW IF NOT EXISTS training_transitions {on_cluster} AS
SELECT
    toString(reinterpretAsUUID(sipHash128(reward_id, place, dataset_id))) AS id,
    if(JSONExtractString(turn, 'agent_id') = '', main_agent, JSONExtractString(turn, 'agent_id')) AS agent_id,
    JSONExtractRaw(turn, 'observation') AS state,
    JSONExtractRaw(turn, 'action') AS action,
    earned AS reward,
    if(following = '', JSONExtractRaw(turn, 'result'), JSONExtractRaw(following, 'observation')) AS next_state,
    toBool(following = '') AS done,
    scored_at AS created_at,
    dataset_id AS batch_id
FROM (
    SELECT rewarded.trajectory_id AS trajectory_id, reward_id, scored_at, turn_rewards, main_agent, turns
    FROM trajectory_rewards AS rewarded
    INNER JOIN (
        SELECT trajectory_id, agent_id AS main_agent, JSONExtractArrayRaw(document, 'turns') AS turns
        FROM trajectories FINAL
    ) AS documents ON rewarded.trajectory_id = documents.trajectory_id
) AS stored
LEFT JOIN (
    SELECT DISTINCT trajectory_id, dataset_id FROM dataset_trajectories
) AS held ON stored.trajectory_id = held.trajectory_id
ARRAY JOIN
    turns AS turn,
    arrayPushBack(arrayPopFront(turns), '') AS following,
    arrayResize(turn_rewards, length(turns)) AS earned,
    arrayEnumerate(turns) AS place;
