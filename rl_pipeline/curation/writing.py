"""From a choice to the rows of its files: documents are read in order of id, and told as messages."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import orjson
import polars as pl

from rl_pipeline.curation.checks import residual_secrets
from rl_pipeline.curation.choosing import Choice
from rl_pipeline.curation.conversations import Unusable, conversation_of, opening_of
from rl_pipeline.curation.files import CONVERSATIONS, PAIRS, PROMPTS, Row, WrittenFile, write_rows
from rl_pipeline.curation.policy import CurationPolicy
from rl_pipeline.curation.preferences import preference_of
from rl_pipeline.curation.spool import Spool, spooling
from rl_pipeline.stores.warehouse import Warehouse

# The ids of a query travel in its address, which has a limit.
_IDS_PER_QUERY = 500
# Documents can be large, and only so many are in memory at a time.
_SMALL_BLOCKS = {"max_block_size": 64}


@dataclass(frozen=True)
class Written:
    """The files, and what was left of the choice when it was written."""

    choice: Choice
    files: Sequence[WrittenFile]
    roles: pl.DataFrame
    """trajectory_id, role: what each was used for."""
    residual: Counter[str]
    """Sensitive values, by kind, in trajectories that were left out for them."""


def write_files(warehouse: Warehouse, choice: Choice, directory: Path, policy: CurationPolicy) -> Written:
    """Write what was chosen; trajectories that teach nothing, or hold what must not flow on, are left out of it."""
    with spooling() as spool:
        reading = _Reading(spool, policy)
        for documents in _documents(warehouse, choice.rows["trajectory_id"]):
            reading.add(documents)
        choice = choice.without(reading.left_out(choice.rows["trajectory_id"]))
        files = []
        if choice.has_pairs:
            usable: list[int] = []
            files.append(write_rows(directory / PAIRS, _pair_rows(choice.pairs, spool, usable)))
            choice = _with_pairs(choice, usable)
        role = "demonstration" if choice.algorithm == "sft" else "scored"
        files.append(write_rows(directory / CONVERSATIONS, _conversation_rows(choice.rows, spool, role)))
        prompts = _prompt_sources(choice)
        if choice.is_online or prompts.height:
            files.append(write_rows(directory / PROMPTS, _prompt_rows(prompts, spool)))
    return Written(choice, sorted(files, key=lambda file: file.name), _roles(choice, prompts, role), reading.residual)


class _Reading:
    """Documents into the spool, except those that cannot be used."""

    def __init__(self, spool: Spool, policy: CurationPolicy) -> None:
        self._spool = spool
        self._policy = policy
        self._reasons: dict[str, str] = {}
        self.residual: Counter[str] = Counter()

    def add(self, documents: pl.DataFrame) -> None:
        """Read some documents."""
        for trajectory_id, task_type, document in documents.iter_rows():
            found = conversation_of(document, self._policy.longest_observation)
            if isinstance(found, Unusable):
                self._reasons[trajectory_id] = found.reason
                continue
            text = orjson.dumps(found.messages).decode()
            residual = residual_secrets([text], self._policy.allowed, self._policy.tolerated)
            if residual:
                self._reasons[trajectory_id] = "sensitive"
                self.residual += residual
                continue
            facts = {
                "task_type": task_type,
                "environment": found.environment,
                "environment_task": found.environment_task,
            }
            self._spool.add(trajectory_id, text, facts)

    def left_out(self, trajectory_ids: Iterable[str]) -> dict[str, str]:
        """Those that are not in the spool, and why; some may be gone from the warehouse since they were chosen."""
        return {one: self._reasons.get(one, "gone") for one in trajectory_ids if one not in self._spool}


def _documents(warehouse: Warehouse, trajectory_ids: pl.Series) -> Iterator[pl.DataFrame]:
    """trajectory_id, task_type, document: in the order of the table, so that each part of it is read once."""
    ids: list[str] = trajectory_ids.sort().to_list()
    for start in range(0, len(ids), _IDS_PER_QUERY):
        yield from warehouse.stream(
            """
            SELECT trajectory_id, task_type, document FROM trajectories FINAL
            PREWHERE trajectory_id IN {ids:Array(String)}
            """,
            {"ids": ids[start : start + _IDS_PER_QUERY]},
            _SMALL_BLOCKS,
        )


def _conversation_rows(rows: pl.DataFrame, spool: Spool, role: str) -> Iterator[Row]:
    columns = rows.select("trajectory_id", "split", "task", pl.col("domain").cast(pl.String), reward="raw_total")
    for row in columns.iter_rows(named=True):
        one = row["trajectory_id"]
        yield {**row, "role": role, "messages": spool.text(one), **spool.facts(one)}


def _pair_rows(pairs: pl.DataFrame, spool: Spool, usable: list[int]) -> Iterator[Row]:
    """The rows of the pairs that can be compared, whose numbers are noted."""
    for number, row in enumerate(pairs.iter_rows(named=True)):
        sides = preference_of(spool.messages(row["chosen_id"]), spool.messages(row["rejected_id"]))
        if sides is None:
            continue
        usable.append(number)
        name = sha256(f"{row['chosen_id']} {row['rejected_id']}".encode()).hexdigest()[:32]
        texts = {side: orjson.dumps(getattr(sides, side)).decode() for side in ("prompt", "chosen", "rejected")}
        yield {**row, "pair_id": name, **texts}


def _with_pairs(choice: Choice, usable: list[int]) -> Choice:
    """The choice with these pairs alone; for DPO, what is in none of them teaches nothing."""
    choice = replace(choice, pairs=choice.pairs[usable])
    if choice.is_online:
        return choice
    members = {*choice.pairs["chosen_id"], *choice.pairs["rejected_id"]}
    return choice.without({one: "no_usable_pair" for one in choice.rows["trajectory_id"] if one not in members})


def _prompt_sources(choice: Choice) -> pl.DataFrame:
    """The tasks, each with the trajectory that shows how it opens: one that can be played, if there is one."""
    by_task = choice.rows.sort(pl.col("environment").cast(pl.String) == "", "trajectory_id")
    firsts = by_task.unique("task", keep="first", maintain_order=True).select("task", "split", "trajectory_id")
    return choice.tasks.join(firsts, on="task").sort("task")


def _prompt_rows(prompts: pl.DataFrame, spool: Spool) -> Iterator[Row]:
    for row in prompts.iter_rows(named=True):
        opening = opening_of(spool.messages(row["trajectory_id"]))
        yield {**row, "messages": orjson.dumps(opening).decode(), **spool.facts(row["trajectory_id"])}


def _roles(choice: Choice, prompts: pl.DataFrame, role: str) -> pl.DataFrame:
    used = {"chosen": choice.pairs["chosen_id"], "rejected": choice.pairs["rejected_id"]}
    if choice.algorithm != "dpo":
        used |= {role: choice.rows["trajectory_id"]}
    used |= {"prompt": prompts["trajectory_id"]}
    parts = [
        pl.DataFrame({"trajectory_id": ids.unique()}).with_columns(role=pl.lit(name)) for name, ids in used.items()
    ]
    return pl.concat(parts).sort("trajectory_id", "role")
