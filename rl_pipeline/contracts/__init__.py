"""The messages of the loop: what they contain, how they are read strictly, and their schemas.

Needs nothing beyond pydantic, so that it can run inside an agent.
"""

from rl_pipeline.contracts.alert import Alert, AlertKind
from rl_pipeline.contracts.claim_check import ClaimCheck, TrajectoryReference
from rl_pipeline.contracts.envelope import Envelope
from rl_pipeline.contracts.errors import ContractError, UnknownSubject
from rl_pipeline.contracts.feedback import Feedback, FeedbackKind, FeedbackSignal
from rl_pipeline.contracts.model_deployed import DeploymentEvent, ModelDeployed
from rl_pipeline.contracts.registry import (
    ALL_TOPICS,
    EXTENSION_TOPICS,
    TOPICS,
    Message,
    Topic,
    parse_message,
    serialize,
    subject_of,
)
from rl_pipeline.contracts.report import Report, ReportedIssue, ReportKind, Severity
from rl_pipeline.contracts.reward import Normalization, Reward, RewardComponent, RewardMetadata
from rl_pipeline.contracts.schemas import schema_drift, write_schemas
from rl_pipeline.contracts.serving_outcome import ServingOutcome
from rl_pipeline.contracts.strict_json import DEFAULT_LIMITS, ParseLimits, parse_strict_json
from rl_pipeline.contracts.training_cancel import TrainingCancel
from rl_pipeline.contracts.training_request import Algorithm, Priority, TrainingConfig, TrainingRequest, TriggerReason
from rl_pipeline.contracts.training_status import FailureCode, JobStatus, TrainingStatus
from rl_pipeline.contracts.trajectory import (
    Action,
    Domain,
    Observation,
    Result,
    SubordinateProfile,
    TaskContext,
    TaskStatus,
    Trajectory,
    TrajectoryMetadata,
    Turn,
    wrap_parts,
)
from rl_pipeline.contracts.validation import CLAIMED_LIMITS, read_claimed_trajectory, validate_trajectory

__all__ = [
    "ALL_TOPICS",
    "CLAIMED_LIMITS",
    "DEFAULT_LIMITS",
    "EXTENSION_TOPICS",
    "TOPICS",
    "Action",
    "Alert",
    "AlertKind",
    "Algorithm",
    "ClaimCheck",
    "ContractError",
    "DeploymentEvent",
    "Domain",
    "Envelope",
    "FailureCode",
    "Feedback",
    "FeedbackKind",
    "FeedbackSignal",
    "JobStatus",
    "Message",
    "ModelDeployed",
    "Normalization",
    "Observation",
    "ParseLimits",
    "Priority",
    "Report",
    "ReportKind",
    "ReportedIssue",
    "Result",
    "Reward",
    "RewardComponent",
    "RewardMetadata",
    "ServingOutcome",
    "Severity",
    "SubordinateProfile",
    "TaskContext",
    "TaskStatus",
    "Topic",
    "TrainingCancel",
    "TrainingConfig",
    "TrainingRequest",
    "TrainingStatus",
    "Trajectory",
    "TrajectoryMetadata",
    "TrajectoryReference",
    "TriggerReason",
    "Turn",
    "UnknownSubject",
    "parse_message",
    "parse_strict_json",
    "read_claimed_trajectory",
    "schema_drift",
    "serialize",
    "subject_of",
    "validate_trajectory",
    "wrap_parts",
    "write_schemas",
]
