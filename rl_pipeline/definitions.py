"""The lineage, top to bottom: from the trajectory stream to deployed models."""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from rl_pipeline.assets.curated_datasets import curated_datasets
from rl_pipeline.assets.deployed_models import deployed_models
from rl_pipeline.assets.memories import episodic_memories, procedural_memories, semantic_memories
from rl_pipeline.assets.policy_checkpoints import policy_checkpoints
from rl_pipeline.assets.redacted_trajectories import raw_and_redacted_trajectories, trajectories_are_ingested_in_time
from rl_pipeline.assets.summaries import daily_summaries, weekly_reports
from rl_pipeline.assets.training_job_reports import training_job_reports
from rl_pipeline.assets.trajectory_rewards import known_tricks_do_not_pay, trajectory_rewards
from rl_pipeline.assets.trajectory_stream import trajectory_stream
from rl_pipeline.assets.validation_reports import validation_reports
from rl_pipeline.automation.alerts import notices_waiting, runs_failed, something_is_wrong
from rl_pipeline.automation.archiving import archive_at_night, archive_trajectories
from rl_pipeline.automation.checkpoint_retention import prune_at_night, prune_checkpoints
from rl_pipeline.automation.checkpoints_to_validate import checkpoints_to_validate, release_policy
from rl_pipeline.automation.imports import import_trajectories
from rl_pipeline.automation.memories_due import forget_at_night, forget_memories, memories_due, remember_trajectories
from rl_pipeline.automation.reporting import report_every_monday, report_week, summarize_day, summarize_every_morning
from rl_pipeline.automation.rewards_due import rewards_due, score_trajectories
from rl_pipeline.automation.rollout_under_way import rollout_under_way
from rl_pipeline.automation.run_retention import prune_runs, prune_runs_at_night
from rl_pipeline.automation.training_due import training_due, training_schedule
from rl_pipeline.automation.training_requested import train_policy, training_requested
from rl_pipeline.automation.trainings_over import report_training_job, trainings_over
from rl_pipeline.automation.trajectories_waiting import ingest_trajectories, trajectories_waiting
from rl_pipeline.opening import memory_store, traffic_directory, training_directory
from rl_pipeline.resources.alerts import AlertsResource
from rl_pipeline.resources.deployment import DeploymentResource
from rl_pipeline.resources.ingest import IngestResource
from rl_pipeline.resources.memories import MemoriesResource
from rl_pipeline.resources.objects import ObjectsResource
from rl_pipeline.resources.reports import ReportsResource
from rl_pipeline.resources.rewards import RewardsResource
from rl_pipeline.resources.stream import StreamResource
from rl_pipeline.resources.training import TrainingResource
from rl_pipeline.resources.warehouse import WarehouseResource
from rl_pipeline.settings import Settings, load_settings


def build_definitions(overrides: Mapping[str, Any] | None = None) -> dg.Definitions:
    """The code location; `overrides` replaces resources by name, as tests do."""
    settings = load_settings()
    return dg.Definitions(
        assets=[
            trajectory_stream,
            raw_and_redacted_trajectories,
            trajectory_rewards,
            episodic_memories,
            semantic_memories,
            procedural_memories,
            curated_datasets,
            policy_checkpoints,
            validation_reports,
            deployed_models,
            training_job_reports,
            daily_summaries,
            weekly_reports,
        ],
        asset_checks=[trajectories_are_ingested_in_time, known_tricks_do_not_pay],
        jobs=[
            ingest_trajectories,
            score_trajectories,
            remember_trajectories,
            forget_memories,
            archive_trajectories,
            import_trajectories,
            train_policy,
            prune_checkpoints,
            release_policy,
            report_training_job,
            summarize_day,
            report_week,
            prune_runs,
        ],
        sensors=[
            trajectories_waiting,
            rewards_due,
            memories_due,
            training_due,
            training_requested,
            checkpoints_to_validate,
            rollout_under_way,
            trainings_over,
            something_is_wrong,
            runs_failed,
            notices_waiting,
        ],
        schedules=[
            archive_at_night,
            training_schedule(settings.rl_schedule_cron),
            prune_at_night,
            forget_at_night,
            prune_runs_at_night(settings.run_retention_days),
            summarize_every_morning,
            report_every_monday,
        ],
        resources={**resources_from(settings), **(overrides or {})},
        # A step in a process of its own costs seconds of start-up and gains nothing here.
        executor=dg.in_process_executor,
    )


def resources_from(settings: Settings) -> dict[str, Any]:
    """The stores that the settings name. Secrets are passed by variable: the UI shows a resource's values."""
    return {
        "stream": StreamResource(
            url=settings.nats_url,
            user=settings.nats_user,
            password=dg.EnvVar("NATS_PASSWORD") if settings.nats_password else None,
            credentials_file=str(settings.nats_credentials_file) if settings.nats_credentials_file else None,
        ),
        "warehouse": WarehouseResource(
            url=settings.clickhouse_url,
            database=settings.clickhouse_database,
            user=settings.clickhouse_user,
            password=dg.EnvVar("CLICKHOUSE_PASSWORD") if settings.clickhouse_password.get_secret_value() else "",
        ),
        "ingest": IngestResource(
            redaction_key=dg.EnvVar("REDACTION_KEY") if settings.redaction_key else "",
            redaction_previous_keys=dg.EnvVar("REDACTION_PREVIOUS_KEYS") if settings.redaction_previous_keys else "",
            redaction_policy_file=str(settings.redaction_policy_file) if settings.redaction_policy_file else None,
            objects_url=settings.trajectory_storage_path,
            objects_endpoint_url=settings.s3_endpoint_url,
            pending=settings.ingest_pending,
            wait_seconds=settings.ingest_wait_seconds,
            stale_seconds=settings.ingest_stale_seconds,
            workers=settings.ingest_processes,
        ),
        "rewards": RewardsResource(
            weights=settings.reward_weights,
            configuration_file=str(settings.reward_configuration_file) if settings.reward_configuration_file else None,
        ),
        "memories": MemoriesResource(
            store=dg.EnvVar("MEMORY_STORE") if settings.memory_store else memory_store(settings),
            budget=settings.memory_budget,
            half_life_days=settings.memory_half_life_days,
            retention_days=settings.memory_retention_days,
            window_days=settings.memory_window_days,
            dense_weight=settings.memory_dense_weight,
            model_url=settings.memory_model_url,
            model=settings.memory_model,
            model_key=dg.EnvVar("MEMORY_MODEL_KEY") if settings.memory_model_key else "",
        ),
        "training": _training(settings),
        "deployment": _deployment(settings),
        "model_objects": ObjectsResource(url=settings.model_storage_path, endpoint_url=settings.s3_endpoint_url),
        "reports": ReportsResource(
            base_period=settings.report_base_period,
            degradation_drop=settings.rl_degradation_drop,
            error_rate=settings.rollback_error_threshold,
            failures_in_a_row=settings.alert_after_failures,
        ),
        "alerts": AlertsResource(
            file=str(settings.alert_file or settings.rl_pipeline_home.absolute() / "alerts.jsonl"),
            webhook_url=dg.EnvVar("ALERT_WEBHOOK_URL") if settings.alert_webhook_url else "",
            after_failures=settings.alert_after_failures,
            service_url=settings.agentgym_rl_url,
        ),
    }


def _training(settings: Settings) -> TrainingResource:
    home = settings.rl_pipeline_home.absolute()
    return TrainingResource(
        algorithm=settings.rl_algorithm,
        base_model=settings.rl_base_model,
        train_from=settings.rl_train_from,
        threshold=settings.rl_training_threshold,
        min_new=settings.rl_training_min_new,
        degradation_drop=settings.rl_degradation_drop,
        sample_size=settings.rl_training_sample_size,
        last_days=settings.rl_training_last_days,
        min_reward=settings.rl_training_min_reward,
        domain_shares=settings.domain_shares,
        literal_filter=settings.rl_training_literal_filter,
        seed=settings.rl_training_seed,
        ramp_hours=settings.canary_ramp_hours,
        bake_hours=settings.canary_bake_hours,
        work_directory=str(training_directory(settings)),
        import_directory=str(settings.training_import_directory or home / "imports"),
        import_prefixes=settings.import_prefixes,
        model_directory=str(settings.model_directory or home / "models"),
        processes=settings.training_processes,
        hostfile=str(settings.training_hostfile) if settings.training_hostfile else None,
        memory_limit_gb=settings.training_memory_limit_gb,
        stall_seconds=settings.training_stall_seconds,
        gpu_hour_usd=settings.training_gpu_hour_usd,
        cpu_hour_usd=settings.training_cpu_hour_usd,
        worlds_file=str(settings.worlds_file) if settings.worlds_file else None,
        tracking_uri=settings.mlflow_tracking_uri,
        signing_key=dg.EnvVar("CHECKPOINT_SIGNING_KEY") if settings.checkpoint_signing_key else "",
        public_keys=settings.checkpoint_public_keys or "",
        objects_url=settings.trajectory_storage_path,
        objects_endpoint_url=settings.s3_endpoint_url,
    )


def _deployment(settings: Settings) -> DeploymentResource:
    return DeploymentResource(
        gateways=settings.gateway_addresses,
        admin_token=dg.EnvVar("TENSORZERO_ADMIN_TOKEN") if settings.tensorzero_admin_token else "",
        session_key=dg.EnvVar("GATEWAY_SESSION_KEY") if settings.gateway_session_key else "",
        session_idle_seconds=settings.gateway_session_idle_seconds,
        traffic_controller=settings.traffic_controller,
        traffic_command=settings.traffic_command,
        traffic_directory=str(traffic_directory(settings)),
        initial_traffic=settings.canary_initial_traffic,
        cautious_traffic=settings.canary_cautious_traffic,
        ramp_hours=settings.canary_ramp_hours,
        step_samples=list(settings.step_samples),
        bake_hours=settings.canary_bake_hours,
        reward_maturity_minutes=settings.canary_reward_maturity_minutes,
        settling_seconds=settings.canary_settling_seconds,
        rule=settings.rollout_rule,
        strategy=settings.rollout_strategy,
        needs_approval=settings.rollout_approval,
        error_rate=settings.rollback_error_threshold,
        reward_drop=-settings.rollback_reward_threshold,
        endpoint=settings.serving_endpoint,
        suites=str(settings.validation_suites) if settings.validation_suites else None,
        items=settings.validation_items,
        inspect_file=str(settings.validation_inspect) if settings.validation_inspect else None,
        unprobed=settings.validation_unprobed,
        work_directory=str(settings.rl_pipeline_home.absolute() / "validation"),
    )


defs = build_definitions()
