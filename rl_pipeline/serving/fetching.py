"""From a model that is to be served to the directory with its files: a signed checkpoint, or a base model."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rl_pipeline.deployment.state import ServedModel
from rl_pipeline.errors import PipelineError
from rl_pipeline.stores.objects import Objects
from rl_pipeline.training.checkpoints.releasing import download_checkpoint, prefix_of
from rl_pipeline.training.plans.base_models import BaseModels


class ModelElsewhere(PipelineError):
    """A checkpoint that does not lie where this deployment keeps its own."""


@dataclass(frozen=True)
class ModelFetcher:
    """Fetches each model once; a checkpoint only if it is signed, and the one that was recorded."""

    base_models: BaseModels
    open_released: Callable[[], Objects]
    """Opens the store of checkpoints."""
    directory: Path
    """Below which checkpoints are kept."""

    def fetch(self, model: ServedModel) -> Path:
        """The directory of the model. Raises `PipelineError`."""
        if model.checkpoint_path is None or model.manifest_sha256 is None:
            return self.base_models.find(model.checkpoint_path or model.base_model)
        objects = self.open_released()
        prefix = prefix_of(objects, model.checkpoint_path.rstrip("/"))
        if prefix is None:
            raise ModelElsewhere(
                f"{model.model_id} lies at {model.checkpoint_path}, which is not in the store of this deployment: set "
                "MODEL_STORAGE_PATH to where it is"
            )
        place = self.directory / f"{model.model_id}-{model.manifest_sha256[:16]}"
        download_checkpoint(objects, prefix, place, self.base_models.public_keys, model.manifest_sha256)
        return place
