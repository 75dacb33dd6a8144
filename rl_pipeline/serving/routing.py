"""Which model answers which session: weighted, and for the same session always the same.

A session has a place in [0, 1) that depends on nothing but its id and the split. Each split of a rollout draws these
places anew: callers with fixed names who always fail, and by chance mostly with the candidate, would else speak against
it at every split, as if they were so many of them. What a slice's model may not or cannot serve stays with the model in
service, and moves no other slice.
"""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from rl_pipeline.deployment.state import DesiredState


def place_of(session_id: str, salt: str) -> float:
    """Where a session stands in [0, 1): at every gateway the same, and anew for every split."""
    digest = hashlib.blake2b(f"{salt}\0{session_id}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest) >> 11) / 2**53


@dataclass(frozen=True, slots=True)
class Routing:
    """How requests are routed until something changes. Reading it needs no lock: it is replaced as a whole."""

    generation: int
    serving: str
    """To whom everything falls back."""
    weights: Mapping[str, float]
    """Share of the new sessions, after fences and for models that are ready."""
    keeps: frozenset[str]
    """Models whose running sessions stay with them."""
    slices: tuple[tuple[float, str], ...] = ()
    """The upper end of each slice, and whose it is; what is above the last is the serving model's."""
    salt: str = ""
    """By which places are drawn: of the split that goes on, or that the candidate's bake follows."""
    deployment_id: str | None = None
    """The rollout that new sessions are evidence for; none while one of its models is not ready, or fenced."""
    step: int | None = None
    candidate_share: float = 0.0

    def choose(self, session_id: str) -> str:
        """The model for a new session."""
        if self.slices:
            place = place_of(session_id, self.salt)
            for end, model_id in self.slices:
                if place < end:
                    return model_id
        return self.serving


def weights_without(state: DesiredState, serving: str, shut_out: Collection[str]) -> dict[str, float]:
    """The state's weights where the share of those shut out goes to the serving model."""
    kept = {model: weight for model, weight in state.weights.items() if weight > 0 and model not in shut_out}
    rest = 1.0 - sum(weight for model, weight in kept.items() if model != serving)
    kept.pop(serving, None)
    return {**kept, serving: rest} if rest > 1e-9 else kept


def routing_of(state: DesiredState, serving: str, fenced: Collection[str], not_ready: Collection[str]) -> Routing:
    """The routing that a state asks for, as far as fences and readiness allow it."""
    rollout = state.rollout
    shut_out = {*fenced, *not_ready}
    candidate = rollout.candidate if rollout else None
    others = sorted(state.weights.keys() - {serving}, key=lambda model: (model != candidate, model))
    slices, end = [], 0.0
    for model in others:
        end += state.weights[model]
        slices.append((end, serving if model in shut_out else model))
    weights = weights_without(state, serving, shut_out)
    # What comes while either of the two cannot answer is no comparison of them.
    compares = rollout if rollout and not shut_out & {rollout.candidate, rollout.control, serving} else None
    return Routing(
        generation=state.generation,
        serving=serving,
        weights=weights,
        keeps=frozenset(state.models.keys() - shut_out - set(state.retired)) | {serving},
        slices=tuple(slices),
        salt=f"{rollout.deployment_id}/{rollout.split}" if rollout else "",
        deployment_id=compares.deployment_id if compares else None,
        step=compares.step if compares else None,
        candidate_share=weights.get(candidate, 0.0) if candidate else 0.0,
    )
