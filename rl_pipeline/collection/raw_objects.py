"""Where the trajectories lie that are too large for a message.

Beside `publishing.py` and not in it: who only publishes needs to know no kind of store.
"""

from rl_pipeline.stores.object_addresses import ObjectsAddress, parse_objects_url


def raw_objects(trajectory_storage_path: str, s3_endpoint_url: str | None = None) -> ObjectsAddress:
    """Their store, in where the pipeline keeps trajectories. Raises `InvalidObjectsUrl`."""
    parse_objects_url(trajectory_storage_path)
    return ObjectsAddress(trajectory_storage_path, s3_endpoint_url).below("raw")
