-- What agents do and how it goes, for people, reports and dashboards.
CREATE VIEW IF NOT EXISTS trajectory_statistics {on_cluster} AS
SELECT
    toDate(stream_time) AS day, agent_id, subordinate_profile, domain, task_type, model, model_version,
    count() AS trajectories,
    avg(turns) AS mean_turns,
    sum(failed_turns) / sum(turns) AS failed_turns_share,
    avg(complexity) AS mean_complexity,
    if(countIf(task_status != '') = 0, NULL, countIf(task_status = 'success') / countIf(task_status != '')) AS success_share,
    avg(total_tokens) AS mean_tokens,
    sum(total_cost_usd) AS cost_usd,
    avg(dateDiff('millisecond', started_at, ended_at)) / 1000 AS mean_seconds
FROM trajectories FINAL
GROUP BY day, agent_id, subordinate_profile, domain, task_type, model, model_version;

-- Which tool is called after which, and how trajectories end in which that happened: the patterns of behaviour.
-- The empty name stands for the start and the end of a trajectory.
CREATE VIEW IF NOT EXISTS tool_transitions {on_cluster} AS
SELECT
    toDate(stream_time) AS day, agent_id, domain, step.1 AS tool, step.2 AS next_tool,
    count() AS calls,
    uniqExact(trajectory_id) AS trajectories,
    uniqExactIf(trajectory_id, task_status = 'success') AS successful_trajectories
FROM trajectories FINAL
ARRAY JOIN arrayZip(arrayPushFront(tools, ''), arrayPushBack(tools, '')) AS step
GROUP BY day, agent_id, domain, tool, next_tool;

-- What redaction replaced, by rule; never what it was.
CREATE VIEW IF NOT EXISTS redaction_audit {on_cluster} AS
SELECT
    toDate(stream_time) AS day, agent_id, revision, redaction.1 AS rule,
    sum(redaction.2) AS redactions,
    count() AS trajectories
FROM trajectories FINAL
ARRAY JOIN arrayZip(redaction_rules, redaction_counts) AS redaction
GROUP BY day, agent_id, revision, rule;
