"""OpenTelemetry's way in: whoever exports spans by OTLP needs no recorder.

`OtlpReceiver` takes requests and makes trajectories of their traces; `serving` puts it behind HTTP.
"""

from rl_pipeline.collection.otlp.receiver import OtlpReceiver, ReceiverLimits
from rl_pipeline.collection.otlp.server import answer, serving

__all__ = ["OtlpReceiver", "ReceiverLimits", "answer", "serving"]
