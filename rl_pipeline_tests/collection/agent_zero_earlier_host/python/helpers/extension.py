"""How Agent Zero 0.9.x calls extensions, in few lines. Nothing is caught: an extension that raises breaks the agent."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Extension:
    def __init__(self, agent, **kwargs):
        self.agent = agent
        self.kwargs = kwargs


async def call_extensions(point, agent=None, **kwargs):
    for file in sorted((ROOT / "python" / "extensions" / point).glob("*.py")):
        spec = importlib.util.spec_from_file_location(file.stem, file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for cls in vars(module).values():
            if isinstance(cls, type) and issubclass(cls, Extension) and cls is not Extension:
                await cls(agent=agent).execute(**kwargs)
