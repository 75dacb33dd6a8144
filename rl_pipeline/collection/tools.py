"""A decorator that records calls of an agent's tools: arguments, result or error, and how long it took."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar, overload

from rl_pipeline.collection.recording import Place, place

_Arguments = ParamSpec("_Arguments")
_Returned = TypeVar("_Returned")


@overload
def recorded_tool(function: Callable[_Arguments, _Returned], /) -> Callable[_Arguments, _Returned]: ...


@overload
def recorded_tool(*, name: str) -> Callable[[Callable[_Arguments, _Returned]], Callable[_Arguments, _Returned]]: ...


def recorded_tool(function: Callable[..., Any] | None = None, /, *, name: str | None = None) -> Any:
    """Record every call that happens inside a recorder's block; elsewhere, the function is as it was.

    For plain and for async functions. In the block of a turn that has no action yet the call becomes that turn's
    action; otherwise it is a turn of its own. Of tools that call tools the outermost is recorded: it is what the agent
    decided to do.
    """
    if function is None:
        return functools.partial(_decorated, name=name)
    return _decorated(function, name)


def _decorated(function: Callable[..., Any], name: str | None) -> Callable[..., Any]:
    tool_name = str(name or getattr(function, "__name__", type(function).__name__))
    bound = _binding(function)

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            with _recorded(tool_name, bound, args, kwargs) as succeed:
                returned = await function(*args, **kwargs)
                succeed(returned)
            return returned

        return awaited

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        with _recorded(tool_name, bound, args, kwargs) as succeed:
            returned = function(*args, **kwargs)
            succeed(returned)
        return returned

    return called


@contextlib.contextmanager
def _recorded(
    tool_name: str, bound: Callable[..., dict[str, Any]], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[Callable[[Any], None]]:
    """The block of one call; it is given what the tool returned."""
    here = place.get()
    if here is None or here.in_tool:
        yield lambda _: None
        return
    with contextlib.ExitStack() as block:
        turn = here.turn
        if turn is None or not turn.claim():
            # The same answer of the model may call several tools: each is shown what the first was shown.
            turn = block.enter_context(here.trajectory.open_turn(turn.seen if turn else None))
            turn.claim()
        turn.call(tool_name, bound(*args, **kwargs))
        block.enter_context(Place(here.trajectory, turn, in_tool=True).entered())
        try:
            yield turn.succeed
        except BaseException as error:
            turn.fail(error)
            raise


def _binding(function: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """Gives the arguments of a call their names; the object of a method is no argument."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in functions do not tell theirs
        return lambda *args, **kwargs: {"args": list(args), **kwargs} if args else kwargs

    def bound(*args: Any, **kwargs: Any) -> dict[str, Any]:
        try:
            named = dict(signature.bind(*args, **kwargs).arguments)
        except TypeError:  # the call itself is about to say so
            return {"args": list(args), **kwargs}
        first = next(iter(signature.parameters), None)
        if first in ("self", "cls"):
            del named[first]
        return named

    return bound
