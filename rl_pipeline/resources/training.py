"""How this deployment trains, as a Dagster resource: when, with what, where the results go."""

from pathlib import Path

import dagster as dg
from pydantic import Field

from rl_pipeline.contracts.training_request import Algorithm
from rl_pipeline.environments.worlds import WorldDefinitions, read_worlds
from rl_pipeline.stores.object_addresses import ObjectsAddress
from rl_pipeline.stores.tracker import Tracker
from rl_pipeline.training.checkpoints.signing import PublicKeys, SigningKey
from rl_pipeline.training.plans.base_models import BaseModels
from rl_pipeline.training.site import TrainingSite
from rl_pipeline.training.triggers import TriggerPolicy, patience_for


class TrainingResource(dg.ConfigurableResource[None]):
    """The settings of the training; the signing key comes by variable, because the UI shows a resource's values."""

    algorithm: str = Field(description="The algorithm of a request that names none.")
    base_model: str = Field(description="The first model in service; training starts from it, or from its successor.")
    train_from: str = Field("serving", description="Where a training starts that names no model: serving, or base.")
    threshold: int = Field(5000, description="New trajectories that start a training.")
    min_new: int = Field(500, description="With fewer new trajectories the schedule trains nothing.")
    degradation_drop: float = Field(0.10, description="Drop of the raw reward that starts a training.")
    sample_size: int = Field(10_000, description="Trajectories of a training that the pipeline asks for.")
    last_days: int = Field(30, description="Days that such a training looks back.")
    min_reward: float = Field(0.5, description="Smallest reward that such a training imitates.")
    domain_shares: dict[str, float] | None = Field(None, description="Share of each domain in it; else the same.")
    literal_filter: bool = Field(False, description="It learns from nothing below the smallest reward.")
    seed: int = Field(0, description="Of every training: another one gives other luck.")
    ramp_hours: float = Field(4, description="The least time that the rollout of a trained model takes.")
    bake_hours: float = Field(24, description="How long the old model is kept warm after it.")
    work_directory: str = Field(description="Where training runs keep state to resume from.")
    import_directory: str = Field(description="Below which a request may name files of trajectories to learn from.")
    import_prefixes: list[str] = Field([], description="s3:// places below which a request may name files.")
    model_directory: str = Field(description="Where base models are found by name, or kept once fetched.")
    processes: int | None = Field(None, description="Processes of a training; else one per GPU, or per core up to 2.")
    hostfile: str | None = Field(None, description="The nodes of a training, as DeepSpeed reads them.")
    memory_limit_gb: float | None = Field(None, description="Most memory of one training process.")
    stall_seconds: float = Field(600, description="The least time without a step that counts as a hang.")
    gpu_hour_usd: float = Field(2.0, description="Price of an hour of a GPU.")
    cpu_hour_usd: float = Field(0.05, description="Price of an hour of a core, where there is no GPU.")
    worlds_file: str | None = Field(None, description="A TOML file of worlds in which tasks can be played.")
    tracking_uri: str = Field(description="Where trainings are tracked: MLflow.")
    signing_key: str = Field("", description="<key id>:<Ed25519 private key, base64>.")
    public_keys: str = Field("", description="<key id>:<Ed25519 public key, base64>, separated by commas.")
    objects_url: str = Field(description="Where datasets go, beside the trajectories they are made of.")
    objects_endpoint_url: str | None = Field(None, description="An S3 server other than Amazon's.")

    def triggers(self) -> TriggerPolicy:
        """When a training is asked for."""
        return TriggerPolicy(
            threshold=self.threshold,
            min_new=self.min_new,
            degradation_drop=self.degradation_drop,
            sample_size=self.sample_size,
            last_days=self.last_days,
            min_reward=self.min_reward,
            domain_shares=self.domain_shares,  # type: ignore[arg-type]  # the settings have checked them
            literal_filter=self.literal_filter,
            patience=patience_for(self.ramp_hours, self.bake_hours),
        )

    def default_algorithm(self) -> Algorithm:
        """The algorithm of a request that names none."""
        return self.algorithm  # type: ignore[return-value]  # the settings have checked it

    def datasets(self) -> ObjectsAddress:
        """Where datasets lie."""
        return ObjectsAddress(self.objects_url, self.objects_endpoint_url).below("datasets")

    def signing_keys(self) -> tuple[SigningKey | None, PublicKeys]:
        """Who signs checkpoints here, and whose signatures count. Raises `InvalidSigningKey`."""
        return SigningKey.parse(self.signing_key) if self.signing_key else None, PublicKeys.parse(self.public_keys)

    def tracker(self) -> Tracker:
        """Where people follow trainings; it is reached when it is first used."""
        from rl_pipeline.stores.mlflow_tracker import MLflowTracker  # MLflow is paid for by those who use it

        return MLflowTracker(self.tracking_uri)

    def base_models(self) -> BaseModels:
        """Where a training finds the model that it starts from."""
        return BaseModels(
            directory=Path(self.model_directory),
            open_objects=lambda url: ObjectsAddress(url, self.objects_endpoint_url).open(),
            public_keys=self.signing_keys()[1],
        )

    def worlds(self) -> WorldDefinitions:
        """In which tasks can be played, beside crafting. Raises `InvalidWorld`."""
        return read_worlds(Path(self.worlds_file) if self.worlds_file else None)

    def site(self) -> TrainingSite:
        """The machine's side of a training."""
        return TrainingSite(
            work=Path(self.work_directory),
            models=Path(self.model_directory),
            processes=self.processes,
            hostfile=Path(self.hostfile) if self.hostfile else None,
            memory_limit_gb=self.memory_limit_gb,
            stall_seconds=self.stall_seconds,
            gpu_hour_usd=self.gpu_hour_usd,
            cpu_hour_usd=self.cpu_hour_usd,
            worlds=self.worlds(),
            seed=self.seed,
        )
