"""What this machine offers to a training: GPUs, cores, memory, a compiler. Found without loading what trains."""

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

_GPU_QUERY = ("--query-gpu=index,name,memory.total,compute_cap,uuid", "--format=csv,noheader,nounits")
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
# NVIDIA's GPUs compute in bf16 from this capability on.
_BF16_CAPABILITY = 8.0


@dataclass(frozen=True)
class Gpu:
    """One GPU, as its driver knows it."""

    index: int
    name: str
    memory_gb: float
    capability: float
    uuid: str = ""

    @property
    def computes_bf16(self) -> bool:
        """Whether bf16 is a format of its own here, not an emulation."""
        return self.capability >= _BF16_CAPABILITY


@dataclass(frozen=True)
class Machine:
    """One node; a training on several takes them all to be like this one."""

    cores: int
    memory_gb: float
    gpus: tuple[Gpu, ...] = ()
    has_compiler: bool = True
    """Whether DeepSpeed can compile its operators here."""


def inspect_machine(environment: Mapping[str, str]) -> Machine:
    """This machine as a process with `environment` would see it."""
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        memory_gb=_memory_bytes() / 1e9,
        gpus=_gpus(environment),
        has_compiler=_has_compiler(environment),
    )


def parse_gpus(listing: str, visible: str | None = None) -> tuple[Gpu, ...]:
    """The GPUs in the answer of nvidia-smi, those alone that `visible` (CUDA_VISIBLE_DEVICES) shows, in its order."""
    rows = [[cell.strip() for cell in line.split(",")] for line in listing.splitlines() if line.strip()]
    gpus = [Gpu(int(row[0]), row[1], float(row[2]) * 2**20 / 1e9, float(row[3]), row[4]) for row in rows]
    if visible is None:
        return tuple(gpus)
    named = [[gpu for gpu in gpus if _is_named(gpu, name.strip())] for name in visible.split(",")]
    return tuple(found[0] for found in named if found)


def _is_named(gpu: Gpu, name: str) -> bool:
    """By its number, or by as much of its UUID as tells it from others."""
    return name == str(gpu.index) or (name.startswith("GPU-") and gpu.uuid.startswith(name))


def _gpus(environment: Mapping[str, str]) -> tuple[Gpu, ...]:
    program = shutil.which("nvidia-smi", path=environment.get("PATH"))
    if program is None:
        return ()
    answer = subprocess.run([program, *_GPU_QUERY], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - an absolute path
    # The program without its driver, as in a container, answers with an error: there is no GPU to be had.
    return parse_gpus(answer.stdout, environment.get("CUDA_VISIBLE_DEVICES")) if answer.returncode == 0 else ()


def _has_compiler(environment: Mapping[str, str]) -> bool:
    compiler = environment.get("CXX") or "c++"
    headers = Path(sysconfig.get_paths()["include"], "Python.h")
    return shutil.which(compiler, path=environment.get("PATH")) is not None and headers.is_file()


def _memory_bytes() -> int:
    """The memory of the machine, or of the container where that is less."""
    limits = [path.read_text().strip() for path in _CGROUP_LIMITS if path.is_file()]
    total: int = psutil.virtual_memory().total
    return min([total, *(int(limit) for limit in limits if limit.isdigit())])
