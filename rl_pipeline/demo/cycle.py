"""One turn of the loop: agents play, the threshold is reached, a policy is trained, judged, and let into service."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import Any

from rl_pipeline.contracts import TrainingStatus, parse_message
from rl_pipeline.demo.population import Population
from rl_pipeline.demo.profile import DemoFailed
from rl_pipeline.demo.scene import Scene
from rl_pipeline.deployment.commands import Commands
from rl_pipeline.deployment.judging import judge
from rl_pipeline.deployment.outcomes import windows_of
from rl_pipeline.deployment.state import DesiredState
from rl_pipeline.opening import open_desk, rollout_clock, rollout_limits, session_keys
from rl_pipeline.stores.topology import TRAINING

_TRAINING_SECONDS = 900.0
_RELEASE_SECONDS = 600.0
_JOBS = "SELECT job_id, trigger_reason, watermark FROM training_jobs FINAL ORDER BY accepted_at"
_STORED = "SELECT count() AS n FROM trajectories FINAL WHERE sequence > {from:UInt64}"
_SCORED = "SELECT count() AS n FROM trajectory_rewards WHERE sequence > {from:UInt64}"
_REPORT = "SELECT * FROM validation_reports FINAL WHERE job_id = {job:String}"
_RELEASE = "SELECT model_id, plan FROM model_releases FINAL WHERE training_job_id = {job:String}"


@dataclass(frozen=True, slots=True)
class Promotion:
    """A model that a turn of the loop brought into service."""

    number: int
    job_id: str
    model: str
    recorded: int
    """Trajectories so far."""
    turns: int
    """Of all of them."""
    seconds: float


def run_cycle(number: int, agents: Population, known_jobs: set[str]) -> Promotion:
    """Raises `DemoFailed` where the loop does not close."""
    scene, started = agents.scene, monotonic()
    job_id = _play_until_asked(agents, known_jobs)
    known_jobs.add(job_id)
    _follow(scene, job_id)
    model = _await_release(scene, job_id)
    _roll_out(agents, model)
    agents.tell_opinions()
    turns = sum(one.turns for one in agents.attempts)
    return Promotion(number, job_id, model, len(agents.attempts), turns, monotonic() - started)


def _play_until_asked(agents: Population, known: set[str]) -> str:
    """The job that the sensor asks for, once enough was played.

    What a canary has played counts as well: the sensor may have asked while it baked.
    """
    scene, wanted = agents.scene, agents.profile.episodes
    jobs = scene.rows(_JOBS)
    job_id = _asked(jobs, known)
    since = max((job["watermark"] for job in jobs if job["job_id"] != job_id), default=0)
    if job_id is None:
        missing = wanted - scene.rows(_STORED, **{"from": since})[0]["n"]
        while missing > 0:
            made = agents.play(missing)
            missing -= sum(one.error is None for one in made)  # what was cut off is not recorded
            agents.tell_opinions()
            won = sum(one.success for one in made) / len(made)
            scene.say(f"{len(made)} attempts by {agents.profile.agents} agents at once, {won:.0%} of them successful.")
        late = f"no training was asked for after {wanted} trajectories"
        job_id = str(scene.until(lambda: _asked(scene.rows(_JOBS), known), late))
    scored = scene.rows(_SCORED, **{"from": since})[0]["n"]
    scene.say(
        f"Ingested, redacted and scored: {scored} new rewards reach the threshold of {wanted}; {job_id} is asked for."
    )
    return job_id


def _asked(jobs: Sequence[Mapping[str, Any]], known: set[str]) -> str | None:
    """The first job by the threshold that is not known yet."""
    due = (str(job["job_id"]) for job in jobs if job["trigger_reason"] == "threshold_reached")
    return next((job_id for job_id in due if job_id not in known), None)


def _follow(scene: Scene, job_id: str) -> None:
    """Tell what the training says of itself, until it has ended."""
    follower = _Follower(scene, job_id)
    ended = scene.until(follower.ended, f"{job_id} did not end", _TRAINING_SECONDS)
    if ended.status != "completed":
        why = ended.error.message if ended.error else ended.status
        raise DemoFailed(f"the training did not complete ({why}): see `rl-pipeline jobs {job_id}`")
    [row] = scene.rows(
        "SELECT performance_metrics AS found FROM model_checkpoints FINAL WHERE job_id = {job:String}", job=job_id
    )
    found = json.loads(row["found"])
    before, after = (found[when]["success_sampled"] for when in ("base", "final"))
    scene.say(f"Trained under DeepSpeed: {before:.0%} → {after:.0%} of its held-out tasks; the checkpoint is signed.")


class _Follower:
    """Tells of a job's progress, each quarter once."""

    def __init__(self, scene: Scene, job_id: str) -> None:
        self._scene, self._job_id, self._quarter = scene, job_id, 0
        self._next = 1

    def ended(self) -> TrainingStatus | None:
        """The last status of a job that is over."""
        last = self._scene.stream.state(TRAINING.name).last_sequence
        found = None
        for batch in self._scene.stream.read(TRAINING.name, self._next, last, 100):
            for message in batch:
                said = parse_message(message.subject, message.data)
                if isinstance(said, TrainingStatus) and said.training_job_id == self._job_id:
                    self._tell(said)
                    found = said if said.status in ("completed", "failed", "cancelled") else found
        self._next = max(self._next, last + 1)
        return found

    def _tell(self, said: TrainingStatus) -> None:
        percent = said.progress.percent_complete if said.progress else None
        if percent is None or int(percent // 25) <= self._quarter or said.status != "running":
            return
        self._quarter = int(percent // 25)
        figures = said.metrics.current if said.metrics else None
        reward = f", mean reward {figures.reward_mean:.2f}" if figures and figures.reward_mean is not None else ""
        seconds = said.progress.eta_seconds if said.progress else None
        left = f", about {seconds:.0f} s left" if seconds else ""
        self._scene.say(f"  training {percent:3.0f} %{reward}{left}")


def _await_release(scene: Scene, job_id: str) -> str:
    """The model that validation lets in."""
    [report] = scene.until(lambda: scene.rows(_REPORT, job=job_id), f"{job_id} was not validated", _RELEASE_SECONDS)
    better = "" if report["improvement"] is None else f", {report['improvement']:+.3f} on the benchmarks"
    scene.say(f"Validated in {report['seconds']:.0f} s against {report['control']}: {report['decision']}{better}.")
    if report["decision"] == "refuse":
        raise DemoFailed(f"{job_id} was not let into service: {'; '.join(report['reasons'])}")
    [release] = scene.until(lambda: scene.rows(_RELEASE, job=job_id), f"{job_id} was not released")
    if report["decision"] == "ask_a_person":
        _approve(scene, report["reasons"])
    return str(release["model_id"])


def _approve(scene: Scene, reasons: Sequence[str]) -> None:
    """As a user would who has seen that nothing speaks against the model, only too few items for it."""
    scene.until(lambda: _phase(scene) == "awaiting_approval", "nobody was asked")
    with open_desk(scene.settings) as desk:
        Commands(desk, "demo", datetime.now(UTC)).approve("nothing speaks against it, and a canary will tell")
    scene.say(f"A person is asked, because {'; '.join(reasons)}. The demo approves: a canary will tell.")


def _phase(scene: Scene) -> str:
    state = scene.state()
    return state.phase if state else ""


def _roll_out(agents: Population, model: str) -> None:
    """Agents play on while the canary grows, until it serves alone."""
    scene, seen = agents.scene, ""

    def look() -> DesiredState:
        nonlocal seen
        state: DesiredState = scene.until(scene.state, "nothing is deployed")
        now = standing(state)
        if now != seen:
            scene.say(f"  {now}")
            seen = now
        if model in state.retired:
            raise DemoFailed(f"{model} was taken back: {state.change.reason}")
        return state

    scene.until(lambda: model in look().models, f"{model} was not rolled out")
    deadline = monotonic() + _RELEASE_SECONDS
    while not ((state := look()).serving == model and state.phase == "steady"):
        agents.play_on(_to_go(scene, state))
        if monotonic() > deadline:
            raise DemoFailed(f"{model} was not promoted in {_RELEASE_SECONDS:.0f} s: see `rl-pipeline deployment`")


def _to_go(scene: Scene, state: DesiredState) -> str:
    """How long the rollout takes, by the evidence so far; nothing before there is any."""
    rollout, settings, now = state.rollout, scene.settings, datetime.now(UTC)
    if rollout is None:
        return ""
    windows = windows_of(scene.tables, rollout, now, clock=rollout_clock(settings), session_keys=session_keys(settings))
    found = judge(rollout, state.phase, windows, now, mode="full", limits=rollout_limits(settings)).evidence
    return time_to_go(state.phase, found["expected_finish"], now)


def time_to_go(phase: str, finish: str | None, now: datetime) -> str:
    """Until a rollout is where it will be next, in words."""
    if finish is None:
        return ""
    seconds = max(0.0, (datetime.fromisoformat(finish) - now).total_seconds())
    until = "the bake is over" if phase == "baking" else "the new model can have all of the traffic"
    return f"about {seconds:.0f} s until {until}"


def standing(state: DesiredState) -> str:
    """Who has what share, in a line."""
    shares: Any = sorted(state.weights.items(), key=lambda share: share[1])
    return f"{state.phase}: " + ", ".join(f"{name} {share:.0%}" for name, share in shares if share)
