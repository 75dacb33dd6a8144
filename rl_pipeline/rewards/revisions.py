"""The rewards that a trajectory has had: which facts and which feedback were in force for each of them.

What happens to a trajectory, in order of time: its first signals (revision 0, with the feedback that the stream stamped
no later than the trajectory's own message); each later feedback message; each restatement (signals of a newer ingest
revision whose content differs). Each is a revision, with the newest signals and all feedback up to it. Feedback that
was erased remains an event without an opinion, so that what came after it keeps its number. A trajectory that was late
has no revision 0: it begins at 1, and is never history for others.
"""

import polars as pl

FEEDBACK = {
    "trajectory_id": pl.String,
    "sequence": pl.UInt64,
    "stream_time": pl.Datetime("ms", "UTC"),
    "feedback_id": pl.String,
    "kind": pl.String,
    "rating": pl.UInt8,
    "user": pl.String,
}
"""The columns of feedback messages that count here, as their stream has them; `rating` is 0 where there is none.

What was erased has an empty `kind`."""

_READING = {"stream", "sequence", "stream_time", "ingest_revision", "is_late", "user", "measured_at"}
"""Columns that say how a trajectory was read, or whose it was (under the key of the day), not what it was."""

_LISTS = {"feedback_kinds": "kind", "feedback_ratings": "rating", "feedback_users": "user"}


def revisions(signals: pl.DataFrame, feedback: pl.DataFrame) -> pl.DataFrame:
    """A row for each revision of each trajectory: the signals in force, `revision`, and the feedback in force.

    `signals` has the columns of `SIGNALS` and `measured_at` (when signals of this ingest revision were first stored,
    which is when a restatement happened), with all ingest revisions of the trajectories. `feedback` has the columns
    `FEEDBACK`; the same feedback_id again is the same feedback, if it is not empty, and feedback whose trajectory is
    not among the signals waits for it. A trajectory keeps the place in the stream that it had first. The rows are
    sorted by sequence and revision, and have no `measured_at`.
    """
    statements = _statements(signals)
    first = statements.filter(pl.col("statement") == 0).select("trajectory_id", began="stream_time", late="is_late")
    messages = (
        feedback.select(*FEEDBACK)
        .sort("stream_time", "sequence")
        .filter(pl.col("feedback_id").is_first_distinct() | (pl.col("feedback_id") == ""))
        .join(first, on="trajectory_id", maintain_order="left")
    )
    events = _events(statements, messages)
    given = messages.group_by("trajectory_id", maintain_order=True).agg(
        pl.col(column).alias(f"given_{name}") for name, column in _LISTS.items()
    )
    in_force = events.join(statements, on=["trajectory_id", "statement"]).join(given, on="trajectory_id", how="left")
    return (
        in_force.with_columns(
            pl.concat_list(
                pl.col(name), pl.col(f"given_{name}").list.head("messages").fill_null(pl.lit([], pl.List(pl.Null)))
            ).alias(name)
            for name in _LISTS
        )
        .sort("sequence", "trajectory_id", "revision")
        .select(*(column for column in signals.columns if column != "measured_at"), "revision")
    )


def _statements(signals: pl.DataFrame) -> pl.DataFrame:
    """The signals that say something new, numbered by `statement`, each at the trajectory's first place."""
    content = [column for column in signals.columns if column not in _READING]
    ordered = signals.sort("trajectory_id", "ingest_revision")
    new = pl.any_horizontal(pl.col(column).ne_missing(pl.col(column).shift()) for column in content)
    place = ("stream", "sequence", "stream_time", "is_late")
    return ordered.filter(new).with_columns(
        pl.int_range(pl.len(), dtype=pl.Int64).over("trajectory_id").alias("statement"),
        *(pl.col(column).first().over("trajectory_id") for column in place),
    )


def _events(statements: pl.DataFrame, messages: pl.DataFrame) -> pl.DataFrame:
    """What happened to each trajectory, numbered: `revision`, the `statement` in force, and how many `messages` are."""
    stated = statements.select(
        "trajectory_id",
        pl.when(pl.col("statement") == 0).then("stream_time").otherwise("measured_at").alias("at"),
        pl.lit(0, pl.UInt64).alias("order"),
        "statement",
        late="is_late",
    )
    told = messages.filter(pl.col("stream_time") > pl.col("began")).select(
        "trajectory_id", at="stream_time", order=pl.col("sequence") + 1, late="late"
    )
    early = messages.filter(pl.col("stream_time") <= pl.col("began")).group_by("trajectory_id").len("early")
    number = pl.int_range(pl.len()).over("trajectory_id") + pl.col("late").cast(pl.Int64)
    later = pl.col("statement").is_null().cast(pl.Int64).cum_sum().over("trajectory_id")
    return (
        pl.concat([stated, told], how="diagonal")
        .sort("trajectory_id", "at", "order")
        .join(early, on="trajectory_id", how="left", maintain_order="left")
        .select(
            "trajectory_id",
            number.cast(pl.UInt32).alias("revision"),
            (later + pl.col("early").fill_null(0)).alias("messages"),
            pl.col("statement").forward_fill().over("trajectory_id"),
        )
    )
