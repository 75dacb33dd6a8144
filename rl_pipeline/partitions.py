"""The only two ways in which assets are cut: by the UTC day of a message, and by training job."""

import dagster as dg

# Today is a partition from its first second, so that what arrives now can be ingested now.
stream_days = dg.DailyPartitionsDefinition(start_date="2025-01-01", end_offset=1)

training_jobs = dg.DynamicPartitionsDefinition(name="training_jobs")
