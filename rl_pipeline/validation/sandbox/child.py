"""The process in which one program runs: `python -I -S child.py <reading> <writing> <paths …>`, the task on stdin.

It says that the walls stand and that the program came to its end, and then calls the program's functions as the judge
asks. All of it can be forged by the program, which gains nothing: it has no more to say than what its functions
return, and whether that is right is found out in the judge's process, of which it has only this pipe.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any


def main(reading: int, writing: int, paths: list[str]) -> None:
    """Put up the walls, run the program, and answer the judge's calls until nobody asks any more."""
    sys.path += paths
    from rl_pipeline.validation.sandbox.plain_values import from_line, to_line
    from rl_pipeline.validation.sandbox.walls import put_up, silence

    task = json.load(sys.stdin)
    silence()
    with os.fdopen(reading, "rb") as asked, os.fdopen(writing, "wb", buffering=0) as told:
        try:
            put_up(**task.pop("walls"))
        except OSError as error:
            told.write(to_line(("unavailable", error.strerror)))
            return
        told.write(to_line(("walled", "")))
        names: dict[str, object] = {"__name__": "program"}
        try:
            exec(compile(task["program"], "program", "exec"), names)  # noqa: S102 - this is what the walls are for
            told.write(to_line(("returned", None)))
            for line in asked:
                name, positional, named = from_line(line)
                told.write(_called(names[name], positional, named, to_line))
        except BaseException as error:  # noqa: BLE001 - whatever it raises, it has failed
            told.write(to_line(("raised", type(error).__name__)))
    os._exit(0)


def _called(function: Any, positional: Any, named: Any, to_line: Callable[[object], bytes]) -> bytes:
    """What a call came to; an error of it is a test's to judge."""
    try:
        return to_line(("returned", function(*positional, **named)))
    except Exception as error:  # noqa: BLE001 - as above
        return to_line(("raised", type(error).__name__))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
