"""The defaults of a stack on one machine, in place of those of a deployed system."""

from pathlib import Path


def embedded_profile(
    home: Path,
    *,
    nats_url: str,
    clickhouse_url: str,
    mlflow_url: str,
    gateway_url: str,
    ui_url: str,
    service_url: str,
) -> dict[str, object]:
    """The defaults of one machine: local servers, files in place of S3, and the small model."""
    objects = home.resolve() / "objects"
    return {
        "nats_url": nats_url,
        "clickhouse_url": clickhouse_url,
        "model_storage_path": str(objects / "rl-checkpoints"),
        "trajectory_storage_path": str(objects / "trajectories"),
        "rl_base_model": "embedded-small",
        "mlflow_tracking_uri": mlflow_url,
        "tensorzero_base_url": gateway_url,
        "dagster_url": ui_url,
        "agentgym_rl_url": service_url,
        "ingest_wait_seconds": 5,
        "rl_pipeline_home": home.resolve(),
    }
