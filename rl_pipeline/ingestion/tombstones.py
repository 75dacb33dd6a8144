"""Tombstones: who was erased, up to when, and which redaction keys it takes to recognize them.

A tombstone holds a placeholder, and placeholders are only equal under one key. Whoever lacks that key would see nothing
and store again what was erased; so tombstones name their keys, and so does each revision of the ingest.
"""

import hmac
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from rl_pipeline.errors import PipelineError
from rl_pipeline.redaction.policy import RedactionKey
from rl_pipeline.stores.warehouse import Warehouse


class RedactionKeyLost(PipelineError):
    """A key is not set any more without which erased users are not recognized; nothing was changed."""


def key_name(key: RedactionKey) -> str:
    """The version of a key, and digits by which another secret of the same version is told from it."""
    return f"{key.version}/{hmac.new(key.secret, b'name of the key', 'sha256').hexdigest()[:12]}"


def write_tombstones(
    warehouse: Warehouse, users: Sequence[str], keys: Sequence[RedactionKey], now: datetime, until: datetime
) -> None:
    """Write a user's tombstones, one for each placeholder: whichever of the keys somebody has, they find one.

    A user's sessions have tombstones too. Those name no keys: whoever has the key of a session has its outcome.
    """
    import polars as pl

    rows = pl.DataFrame({"user": users}).with_columns(
        keys=pl.lit([key_name(key) for key in keys], pl.List(pl.String)),
        erased_at=pl.lit(now),
        covers_until=pl.lit(until),
    )
    warehouse.insert("erasures", rows)


def read_erasures(warehouse: Warehouse) -> Mapping[str, datetime]:
    """Everybody who was erased, by placeholder, and up to when."""
    found = warehouse.query("SELECT user, max(covers_until) AS covers_until FROM erasures GROUP BY user")
    return dict(found.iter_rows())


def refuse_unrecognizable(warehouse: Warehouse, keys: Sequence[RedactionKey]) -> None:
    """Raise `RedactionKeyLost` when somebody was erased whom nobody recognizes under any of these keys."""
    found = warehouse.query(
        """
        SELECT DISTINCT keys[1] AS key FROM erasures
        WHERE notEmpty(keys) AND NOT hasAny(keys, {held:Array(String)}) ORDER BY key
        """,
        {"held": [key_name(key) for key in keys]},
    )
    if found.height:
        raise RedactionKeyLost(
            f"users were erased or opted out under the redaction key {_version(found['key'][0])}, which is not set, "
            "and would be stored again: put that key, version and secret, into REDACTION_PREVIOUS_KEYS"
        )


def refuse_unfindable(warehouse: Warehouse, keys: Sequence[RedactionKey], archived_since: datetime) -> None:
    """Raise `RedactionKeyLost` when rows are stored under none of the keys, in the archive or the warehouse."""
    found = warehouse.query(
        """
        SELECT DISTINCT key FROM ingest_revisions FINAL
        WHERE key != '' AND NOT has({held:Array(String)}, key) AND revision IN (
            SELECT DISTINCT revision FROM trajectories
            UNION DISTINCT
            SELECT DISTINCT ingest_revision FROM trajectory_signals
            UNION DISTINCT
            SELECT DISTINCT revision FROM trajectory_feedback
            UNION DISTINCT
            SELECT DISTINCT revision FROM trajectory_ledger FINAL
            WHERE verdict = 'accepted' AND stream_time >= {since:DateTime64(3, 'UTC')}
        )
        ORDER BY key
        """,
        {"held": [key_name(key) for key in keys], "since": archived_since - timedelta(days=1)},
    )
    if found.height:
        raise RedactionKeyLost(
            f"rows are stored under the redaction key {_version(found['key'][0])}, which is not set, and could not be "
            "found: put that key, version and secret, into REDACTION_PREVIOUS_KEYS; nothing was changed"
        )


def _version(name: str) -> str:
    return name.rpartition("/")[0]
