"""The curves of a training as a small picture: for the model card's neighbours and for the UI."""

import io
from collections.abc import Mapping, Sequence

_TITLES = {
    "loss": "loss",
    "reward_mean": "mean reward",
    "policy_entropy": "entropy of the policy",
    "kl_divergence": "divergence from the base",
    "learning_rate": "learning rate",
}

Curve = Sequence[tuple[float, float]]


def draw_curves(curves: Mapping[str, Curve]) -> bytes:
    """A PNG with a panel for each known curve that has points; the same curves give the same picture."""
    from matplotlib.figure import Figure

    shown = [(title, curves[name]) for name, title in _TITLES.items() if curves.get(name)]
    figure = Figure(figsize=(3.0 * max(len(shown), 1), 2.2), layout="constrained")
    for axes, (title, points) in zip(figure.subplots(1, max(len(shown), 1), squeeze=False)[0], shown, strict=False):
        steps, values = zip(*points, strict=True)
        axes.plot(steps, values, linewidth=1.2)
        axes.set_title(title, fontsize=9)
        axes.tick_params(labelsize=7)
        axes.grid(alpha=0.3)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=80, metadata={"Software": None})
    return picture.getvalue()
