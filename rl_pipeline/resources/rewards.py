"""How this deployment scores, as a Dagster resource."""

from pathlib import Path

import dagster as dg
from pydantic import Field

from rl_pipeline.rewards.configuration import RewardConfiguration, read_configuration
from rl_pipeline.rewards.linting import CodeChecker


class RewardsResource(dg.ConfigurableResource[None]):
    """The settings of the rewards."""

    weights: dict[str, float] = Field(description="Of each term, where the file gives none; they sum to 1.")
    configuration_file: str | None = Field(None, description="A TOML file: method, window, weights, options.")

    def configuration(self) -> RewardConfiguration:
        """The reward configuration. Raises `InvalidConfiguration`, `InvalidOptions` and `TermError`."""
        return read_configuration(Path(self.configuration_file) if self.configuration_file else None, self.weights)

    def checker(self) -> CodeChecker:
        """Who judges code. Raises `LinterMissing`."""
        return CodeChecker(self.configuration().options.security_scanner)
