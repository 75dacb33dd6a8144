"""The model that serves before any was trained."""

import re
from pathlib import PurePosixPath

from rl_pipeline.deployment.state import ServedModel

_NO_NAME = re.compile(r"[^A-Za-z0-9._:-]+")


def first_model(base_model: str, endpoint: str | None) -> ServedModel:
    """The base model as it is served: under its own name, at `endpoint` or from its files."""
    is_a_place = base_model.startswith(("/", ".", "file://", "s3://"))
    name = PurePosixPath(base_model.rstrip("/")).name if is_a_place else base_model
    return ServedModel(
        model_id=_NO_NAME.sub("-", name).strip("-._:")[:128] or "base-model",
        base_model=base_model,
        checkpoint_path=None if endpoint else base_model,
        endpoint=endpoint,
        upstream_name=base_model if endpoint else None,
    )
