"""When a server of ours has to stop."""

import asyncio
import contextlib
import signal


async def told_to_stop() -> None:
    """Return on SIGTERM or SIGINT."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        # Beside another program's event loop, in a thread, whoever runs it cancels instead.
        with contextlib.suppress(RuntimeError, ValueError):
            loop.add_signal_handler(number, stop.set)
    await stop.wait()
