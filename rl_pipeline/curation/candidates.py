"""The trajectories that a dataset may choose from, and why others may not be chosen: asked of ClickHouse, in one pass.

Documents stay in the warehouse. What has to be known of them, to tell trajectories apart and to find those that are
alike, is computed there and comes as numbers:

- `task`: the group that an attempt says it belongs to, else the task's id, else its request; `called`: a hash of the
  task's id, 0 where there is none: groups from other starting points are still attempts at one task;
- `opening`: a hash of the request and the first observation; `opening_likeness`: a simhash of the same;
- `actions`: a hash of everything the agents did, in order; `likeness`: a simhash of it; `kernel`: the smallest of the
  hashes of the single actions, which near copies mostly share; `tools`: a hash of the tools, in order;
- `setup`: a hash of what a world that exists is to be set up with, 0 where there is none: a trajectory may name any;
- `asked` and `written`: how much text that is. ClickHouse's simhashes have 32 bits, and of a short text they say
  nothing: there they are 0.
"""

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import polars as pl

from rl_pipeline.curation.policy import Criteria, CurationPolicy
from rl_pipeline.ingestion.ledger import ERASED_REVISION
from rl_pipeline.stores.warehouse import Warehouse

LONG_TEXT: Final = 400
"""Characters from which the likeness of what was written means something."""
LONG_OPENING: Final = 100
"""The same for what was asked."""

CANDIDATES: Final = pl.Schema(
    {
        "trajectory_id": pl.String(),
        "at": pl.Int64(),
        "source": pl.Categorical(),
        "user": pl.UInt64(),
        "task": pl.String(),
        "called": pl.UInt64(),
        "domain": pl.Categorical(),
        "status": pl.Categorical(),
        "environment": pl.Categorical(),
        "setup": pl.UInt64(),
        "reward": pl.Float64(),
        "raw_total": pl.Float64(),
        "reward_revision": pl.UInt32(),
        "configuration": pl.Categorical(),
        "tools": pl.UInt64(),
        "opening": pl.UInt64(),
        "opening_likeness": pl.UInt64(),
        "asked": pl.UInt64(),
        "actions": pl.UInt64(),
        "kernel": pl.UInt64(),
        "likeness": pl.UInt64(),
        "written": pl.UInt64(),
        "draw": pl.UInt64(),
    }
)
"""`at` is the stream's time in milliseconds, `user` 0 for nobody, `draw` a lot that depends on id and seed alone."""

# ClickHouse's own bounds.
_EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = datetime(2199, 12, 31, tzinfo=UTC)

# Every stored trajectory of the stream, with its newest reward, and the first reason why it may not be chosen. What
# files bring again of an erased user is stored later than the erasure, and ended before.
_JUDGED = """
    SELECT
        trajectory_id, version, stream_time, source, user, task_id, group_id, domain, task_status, tools, raw_total,
        if({normalised:Bool}, normalised_total, raw_total) AS reward, reward_revision, configuration,
        trajectory_id IN (SELECT trajectory_id FROM imported_trajectories) AS is_brought,
        if(is_brought, ended_at, stream_time) AS moment,
        multiIf(
            (user != '' AND erased_until >= if(is_brought, least(stream_time, ended_at), stream_time)) OR position IN (
                SELECT sequence FROM trajectory_ledger
                WHERE stream = {stream:String} AND verdict = 'erased' AND revision = {erased:UInt32}
            ), 'erased',
            trajectory_id IN (SELECT trajectory_id FROM quarantined_trajectories WHERE job_id = {job:String}),
            'quarantined',
            (trajectory_id, version) IN (SELECT trajectory_id, version FROM suspicious_trajectories), 'suspicious',
            moment < {start:DateTime64(3, 'UTC')} OR moment > {end:DateTime64(3, 'UTC')}, 'outside_window',
            turns > {longest:UInt32}, 'too_long',
            has({profiles:Array(String)}, subordinate_profile), 'excluded_profile',
            notEmpty({domains:Array(String)}) AND NOT has({domains:Array(String)}, domain), 'other_domain',
            configuration = '' OR NOT isFinite(reward) OR NOT isFinite(raw_total), 'unrewarded',
            {bounded:Bool} AND reward < {least:Float64}, 'below_reward',
            ''
        ) AS reason
    FROM (
        SELECT
            trajectory_id, version, sequence AS position, stream_time, ended_at, user, task_id, group_id, domain,
            task_status, turns, subordinate_profile, if(publisher = '', agent_id, publisher) AS source,
            sipHash64(tools) AS tools
        FROM trajectories FINAL
        WHERE stream = {stream:String} AND sequence <= {watermark:UInt64} AND (NOT {imported:Bool} OR trajectory_id IN (
            SELECT trajectory_id FROM imported_trajectories WHERE job_id = {job:String}
        ))
    ) AS stored
    LEFT JOIN (
        SELECT trajectory_id, revision AS reward_revision, configuration, raw_total, total AS normalised_total
        FROM trajectory_rewards
    ) AS rewarded USING (trajectory_id)
    LEFT JOIN (SELECT user, max(covers_until) AS erased_until FROM erasures GROUP BY user) AS erasing USING (user)
"""

# What is read of a document. Anything of another type than expected is read as absent.
_SHAPE = """
    Tuple(
        agent_id String,
        turns Array(Tuple(
            agent_id String,
            observation Tuple(content String),
            action Tuple(type String, tool_name String, tool_args String, raw_response String),
            result Tuple(output String)
        )),
        task_context Tuple(instructions String, environment String, environment_task String)
    )
"""

# A document is read only where its trajectory may be chosen. An answer may be told by its result alone.
_READ = f"""
    SELECT
        * EXCEPT (document),
        JSONExtract(if(reason = '', document, ''), $${_SHAPE}$$) AS told,
        told.task_context.instructions AS instructions, told.turns[1].observation.content AS shown,
        concat(instructions, '\\n', shown) AS asked_text,
        arrayMap(
            turn -> concat(
                turn.action.type, '\\x1f', turn.action.tool_name, '\\x1f', turn.action.tool_args, '\\x1f',
                turn.action.raw_response,
                if(turn.action.type = 'response' AND turn.action.raw_response = '', turn.result.output, '')
            ),
            told.turns
        ) AS deeds,
        arrayStringConcat(deeds, '\\x1e') AS written_text,
        arrayExists(
            turn -> turn.agent_id IN ('', told.agent_id) AND (
                turn.action.type != 'response' OR turn.action.raw_response != '' OR turn.result.output != ''
            ),
            told.turns
        ) AS is_written
    FROM (SELECT trajectory_id, version, document FROM trajectories) AS documents
    INNER ANY JOIN ({_JUDGED}) AS judged USING (trajectory_id, version)
"""  # noqa: S608 - all of it is ours

_CANDIDATES = f"""
    SELECT
        if(reason = '' AND NOT is_written, 'nothing_written', reason) AS reason,
        trajectory_id, toUnixTimestamp64Milli(stream_time) AS at, source, if(user = '', 0, sipHash64(user)) AS user,
        multiIf(
            group_id != '', group_id, task_id != '', task_id,
            concat('request-', lower(hex(sipHash128(replaceRegexpAll(
                lowerUTF8(trim(if(instructions = '', shown, instructions))), '\\\\s+', ' '
            )))))
        ) AS task, if(task_id = '', 0, sipHash64(task_id)) AS called,
        domain, task_status AS status,
        told.task_context.environment AS named, has({{worlds:Array(String)}}, named) AS is_known,
        if(is_known, named, '') AS environment,
        if(is_known, sipHash64(named, told.task_context.environment_task), 0) AS setup,
        reward, raw_total, reward_revision, configuration, tools,
        sipHash64(asked_text) AS opening, length(asked_text) AS asked,
        if(asked < {LONG_OPENING}, 0, wordShingleSimHash(asked_text)) AS opening_likeness,
        sipHash64(written_text) AS actions, length(written_text) AS written,
        arrayMin(arrayMap(deed -> sipHash64(deed), deeds)) AS kernel,
        if(written < {LONG_TEXT}, 0, wordShingleSimHash(written_text)) AS likeness,
        sipHash64({{seed:Int64}}, trajectory_id) AS draw
    FROM ({_READ})
"""  # noqa: S608 - all of it is ours


@dataclass(frozen=True)
class Offer:
    """What may be chosen from, and what was left out before."""

    candidates: pl.DataFrame
    """As `CANDIDATES`, in no order."""
    left_out: Counter[str]
    """How many trajectories were left out, by reason."""


def offered(warehouse: Warehouse, criteria: Criteria, policy: CurationPolicy) -> Offer:
    """The trajectories that the warehouse has up to the watermark, judged by the criteria."""
    left_out: Counter[str] = Counter()
    frames = [pl.DataFrame(schema=CANDIDATES)]
    for frame in warehouse.stream(_CANDIDATES, _parameters(criteria, policy)):
        out = frame.filter(pl.col("reason") != "").group_by("reason").len()
        left_out.update(dict(out.iter_rows()))
        chosen = frame.filter(pl.col("reason") == "")
        frames.append(chosen.select(pl.col(name).cast(kind) for name, kind in CANDIDATES.items()))
    return Offer(pl.concat(frames), left_out)


def _parameters(criteria: Criteria, policy: CurationPolicy) -> dict[str, object]:
    return {
        "stream": criteria.stream,
        "watermark": criteria.watermark,
        "imported": criteria.is_imported,
        "job": criteria.job_id,
        "erased": ERASED_REVISION,
        "worlds": policy.worlds.names,
        "start": criteria.start or _EARLIEST,
        "end": criteria.end or _LATEST,
        "longest": criteria.longest,
        "profiles": list(criteria.excluded_profiles),
        "domains": list(criteria.domains),
        "normalised": criteria.normalised,
        "bounded": criteria.least_reward is not None,
        "least": criteria.least_reward or 0.0,
        "seed": policy.seed,
    }
