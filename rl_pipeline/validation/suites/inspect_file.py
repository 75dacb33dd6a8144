"""Tasks of inspect-ai as suites, by a file of the deployment.

python = "/opt/inspect/bin/python"    # of the environment that has inspect-ai; else the pipeline's own

[suites.code_generation]              # in place of the suite of this name
task = "inspect_evals/humaneval"      # as `inspect eval` names it; files are looked for beside this one
samples = 164                         # so many, or a list of their ids
floor = 0.4                           # the least mean score

[suites.our_tickets]                  # one more suite that has to pass
kind = "benchmark"                    # or safety, or regression
task = "tickets.py@tickets"
samples = ["t-1", "t-2", "t-3"]
floor = 0.5
minimum = 3
"""

import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rl_pipeline.errors import PipelineError
from rl_pipeline.validation.inspect_runner import InspectTask, inspect_suite
from rl_pipeline.validation.suite import BENCHMARKS, SAFETY, Kind, Suite


class InspectFileInvalid(PipelineError):
    """A file of tasks that cannot be used."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class _Task(_Strict):
    task: Annotated[str, Field(min_length=1)]
    samples: Annotated[int, Field(ge=1)] | Annotated[list[str], Field(min_length=1)]
    floor: Annotated[float, Field(ge=0, le=1, strict=False)]
    kind: Kind | None = None
    minimum: Annotated[int, Field(ge=1)] = 20
    scorer: str | None = None
    arguments: dict[str, str] = {}
    timeout_seconds: Annotated[float, Field(gt=0, strict=False)] = 3600.0
    max_retries: Annotated[int, Field(ge=0)] = 3

    @property
    def sample_ids(self) -> list[str]:
        """As inspect-ai has them: it counts from 1 where the task gives none."""
        return self.samples if isinstance(self.samples, list) else [str(1 + place) for place in range(self.samples)]


class _File(_Strict):
    python: str = sys.executable
    suites: Annotated[Mapping[Annotated[str, Field(pattern="^[a-z][a-z0-9_]*$")], _Task], Field(min_length=1)]


def inspect_suites(path: Path) -> list[Suite]:
    """The suites of a file. Raises `InspectFileInvalid`."""
    try:
        given = _File.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InspectFileInvalid(f"{path} cannot be read ({error.strerror}): correct VALIDATION_INSPECT") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InspectFileInvalid(f"{path} is no TOML: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise InspectFileInvalid(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    return [
        inspect_suite(
            name,
            _kind(path, name, one.kind),
            InspectTask(
                one.task,
                one.scorer,
                one.arguments,
                given.python,
                one.timeout_seconds,
                one.max_retries,
                path.absolute().parent,
            ),
            one.sample_ids,
            minimum=one.minimum,
            floor=one.floor,
        )
        for name, one in given.suites.items()
    ]


def _kind(path: Path, name: str, given: Kind | None) -> Kind:
    """Of a suite; the pipeline's own names have theirs."""
    own: Kind | None = "benchmark" if name in BENCHMARKS else "safety" if name in SAFETY else None
    if own and given not in (None, own):
        raise InspectFileInvalid(f"{path}: {name} is a {own} suite and no {given}: leave its kind out")
    kind = own or given
    if kind is None:
        raise InspectFileInvalid(f"{path}: {name} has no kind: give benchmark, safety or regression")
    return kind
