"""How Agent Zero calls extensions, in few lines. Nothing is caught: an extension that raises breaks the agent."""

import functools
import inspect
from collections.abc import Awaitable

from helpers import modules, plugins

UNSET = object()


class Extension:
    def __init__(self, agent, **kwargs):
        self.agent = agent
        self.kwargs = kwargs


def _classes(point):
    unique = {}
    for directory in [*plugins.get_enabled_plugin_paths(), plugins.ROOT]:
        folder = directory / "extensions" / "python" / point
        for file in sorted(folder.glob("*.py")) if folder.exists() else []:
            for cls in modules.load_classes_from_file(file, Extension):
                unique.setdefault(file.stem, cls)
    return [unique[name] for name in sorted(unique)]


async def call_extensions_async(point, agent=None, **kwargs):
    for cls in _classes(point):
        result = cls(agent=agent).execute(**kwargs)
        if isinstance(result, Awaitable):
            await result


def call_extensions_sync(point, agent=None, **kwargs):
    for cls in _classes(point):
        if isinstance(cls(agent=agent).execute(**kwargs), Awaitable):
            raise ValueError(f"Extension {cls.__name__} returned awaitable in sync mode")


def extensible(func):
    point = "/".join(["_functions", *func.__module__.split("."), *func.__qualname__.split(".")])

    def prepared(args, kwargs):
        from agent import Agent

        agent = next((value for value in (kwargs.get("agent"), *args) if isinstance(value, Agent)), None)
        agent = agent if getattr(agent, "__dict__", None) else None
        return agent, {"args": args, "kwargs": kwargs, "result": UNSET, "exception": None}

    def outcome(data):
        if isinstance(data["exception"], BaseException):
            raise data["exception"]
        return None if data["result"] is UNSET else data["result"]

    @functools.wraps(func)
    async def asynchronous(*args, **kwargs):
        agent, data = prepared(args, kwargs)
        await call_extensions_async(f"{point}/start", agent=agent, data=data)
        try:
            data["result"] = await func(*data["args"], **data["kwargs"])
        except Exception as error:  # a cancellation is none
            data["exception"] = error
        await call_extensions_async(f"{point}/end", agent=agent, data=data)
        return outcome(data)

    @functools.wraps(func)
    def synchronous(*args, **kwargs):
        agent, data = prepared(args, kwargs)
        call_extensions_sync(f"{point}/start", agent=agent, data=data)
        try:
            data["result"] = func(*data["args"], **data["kwargs"])
        except Exception as error:
            data["exception"] = error
        call_extensions_sync(f"{point}/end", agent=agent, data=data)
        return outcome(data)

    return asynchronous if inspect.iscoroutinefunction(func) else synchronous
