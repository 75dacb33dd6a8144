"""`episodic_memories`, `semantic_memories` and `procedural_memories`: what agents remember, day by day."""

from datetime import UTC, date, datetime
from typing import Any

import dagster as dg

from rl_pipeline.assets.catalogue import OWNERS, table_columns
from rl_pipeline.assets.pictures import table
from rl_pipeline.assets.trajectory_rewards import trajectory_rewards
from rl_pipeline.memory.consolidating import WINDOW_DAYS, ConsolidatedSet, ConsolidatedType, consolidate
from rl_pipeline.memory.inspection import day_of_memories
from rl_pipeline.memory.remembering import remember_day
from rl_pipeline.partitions import stream_days
from rl_pipeline.resources.memories import MemoriesResource
from rl_pipeline.resources.warehouse import WarehouseResource
from rl_pipeline.stores.topology import TRAJECTORIES

_COLUMNS = table_columns("memories")
_KINDS = {"clickhouse", "sqlite"}
_WINDOW = dg.TimeWindowPartitionMapping(start_offset=1 - WINDOW_DAYS, allow_nonexistent_upstream_partitions=True)


@dg.asset(
    deps=[trajectory_rewards],
    description=(
        "What happened: each stored trajectory of the day with its reward, as one memory with goal, actions, outcome "
        "and the words it is found by; in the table `memories`, and in the store where it is looked up."
    ),
    group_name="memory",
    kinds=_KINDS,
    owners=OWNERS,
    metadata=_COLUMNS,
    partitions_def=stream_days,
    backfill_policy=dg.BackfillPolicy.multi_run(1),
    pool="memory",
    check_specs=[
        dg.AssetCheckSpec(
            "every_rewarded_trajectory_is_remembered",
            asset="episodic_memories",
            description="No stored trajectory of the day that has a reward is missing.",
            partitions_def=stream_days,
        ),
        dg.AssetCheckSpec(
            "nothing_erased_is_remembered",
            asset="episodic_memories",
            blocking=True,
            description="No memory of the day is of a sequence that the ledger says was erased.",
            partitions_def=stream_days,
        ),
    ],
)
def episodic_memories(
    context: dg.AssetExecutionContext, warehouse: WarehouseResource, memories: MemoriesResource
) -> dg.MaterializeResult:  # type: ignore[type-arg]  # Dagster does not know it by its parameter
    """Remember the day's trajectories; done again, it changes what says something else."""
    day = date.fromisoformat(context.partition_key)
    with warehouse.open() as tables, memories.open() as store:
        done = remember_day(
            tables,
            store,
            stream=TRAJECTORIES.name,
            day=day,
            now=datetime.now(UTC),
            retention=memories.retention,
            embed=memories.embed(),
        )
        found = day_of_memories(tables, TRAJECTORIES.name, day)
    return dg.MaterializeResult(
        metadata={"dagster/row_count": done.episodes, "changed_now": done.changed, "gone_now": done.gone},
        data_version=dg.DataVersion(done.generation),
        check_results=[
            dg.AssetCheckResult(
                check_name="every_rewarded_trajectory_is_remembered",
                passed=found.missing == 0,
                severity=dg.AssetCheckSeverity.WARN,
                metadata={"missing": found.missing},
            ),
            dg.AssetCheckResult(
                check_name="nothing_erased_is_remembered", passed=found.erased == 0, metadata={"erased": found.erased}
            ),
        ],
    )


@dg.asset(
    deps=[dg.AssetDep(episodic_memories, partition_mapping=_WINDOW)],
    description=(
        "What is so, as far as the episodes of 30 days tell: those with nearly the same goal merged into a statement, "
        "with how many bear it out and what contradicts it; of each type of task of which something was remembered on "
        "the day. The newest day counts."
    ),
    group_name="memory",
    kinds=_KINDS,
    owners=OWNERS,
    metadata=_COLUMNS,
    partitions_def=stream_days,
    backfill_policy=dg.BackfillPolicy.multi_run(1),
    pool="memory",
)
def semantic_memories(
    context: dg.AssetExecutionContext, warehouse: WarehouseResource, memories: MemoriesResource
) -> dg.MaterializeResult:  # type: ignore[type-arg]  # Dagster does not know it by its parameter
    """Merge what was remembered up to the day into facts, set by set."""
    return _consolidated(context, "semantic", warehouse, memories)


@dg.asset(
    deps=[dg.AssetDep(episodic_memories, partition_mapping=_WINDOW)],
    description=(
        "What to do, as far as the episodes of 30 days tell: the actions that reached a goal, in how many of how many "
        "attempts, with the 95 % interval; of each type of task of which something was remembered on the day. The "
        "newest day counts."
    ),
    group_name="memory",
    kinds=_KINDS,
    owners=OWNERS,
    metadata=_COLUMNS,
    partitions_def=stream_days,
    backfill_policy=dg.BackfillPolicy.multi_run(1),
    pool="memory",
)
def procedural_memories(
    context: dg.AssetExecutionContext, warehouse: WarehouseResource, memories: MemoriesResource
) -> dg.MaterializeResult:  # type: ignore[type-arg]  # Dagster does not know it by its parameter
    """Find what worked up to the day, set by set."""
    return _consolidated(context, "procedural", warehouse, memories)


def _consolidated(
    context: dg.AssetExecutionContext,
    memory_type: ConsolidatedType,
    warehouse: WarehouseResource,
    memories: MemoriesResource,
) -> dg.MaterializeResult[None]:
    with warehouse.open() as tables, memories.open() as store:
        made = consolidate(
            tables,
            store,
            memory_type,
            day=date.fromisoformat(context.partition_key),
            now=datetime.now(UTC),
            window_days=memories.window_days,
            retention=memories.retention,
            wording=memories.wording() if memory_type == "semantic" else None,
            embed=memories.embed(),
        )
    return dg.MaterializeResult(metadata=_told(made), data_version=dg.DataVersion(_version(made)))


def _told(made: list[ConsolidatedSet]) -> dict[str, Any]:
    rows = [(each.task_type or "none given", each.memories, each.sources, each.contradicted) for each in made]
    headers = ("type of task", "memories", "of so many", "contradicted")
    return {
        "dagster/row_count": sum(each.memories for each in made),
        "changed_sets": sum(each.is_new for each in made),
        "sets": dg.MetadataValue.md(table(headers, rows) if rows else "none"),
    }


def _version(made: list[ConsolidatedSet]) -> str:
    return " ".join(each.generation[:12] for each in made) or "nothing"
