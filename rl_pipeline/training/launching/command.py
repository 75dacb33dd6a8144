"""How the training program is started: the command line and the variables, for one process, one node and many."""

import base64
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rl_pipeline.training.plans.plan import DistributionPlan

# A launcher or a scheduler around us has set these for itself.
_OF_ANOTHER_LAUNCH = {
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "LOCAL_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
}


def program_command(
    distribution: DistributionPlan, program: Sequence[str], *, port: int, visible_devices: str | None = None
) -> list[str]:
    """The command that starts `program` (a script, or `-m` and a module, with its arguments) as the plan says.

    On one node this is DeepSpeed's launcher of a node; its runner in front of it would find out what is known already,
    and pay for importing DeepSpeed once more. Several nodes need the runner, which goes to each by ssh.
    """
    if not distribution.deepspeed:
        return [sys.executable, "-u", *program]
    what = ["--no_local_rank", *(["--module", *program[1:]] if program[0] == "-m" else program)]
    if distribution.nodes == 1:
        world = {"localhost": list(_device_ids(distribution, visible_devices))}
        encoded = base64.urlsafe_b64encode(json.dumps(world).encode()).decode()
        launcher = ["deepspeed.launcher.launch", f"--world_info={encoded}", "--master_addr=127.0.0.1"]
    else:
        per_node = distribution.processes // distribution.nodes
        nodes = [f"--num_nodes={distribution.nodes}", f"--num_gpus={per_node}"]
        launcher = ["deepspeed.launcher.runner", f"--hostfile={distribution.hostfile}", *nodes]
    return [sys.executable, "-u", "-m", *launcher, f"--master_port={port}", *what]


def program_variables(
    distribution: DistributionPlan, environment: Mapping[str, str], operators: Path
) -> dict[str, str]:
    """What the program's environment has beyond ours."""
    on_cpu = distribution.device == "cpu"
    variables = {
        "DS_ACCELERATOR": distribution.device,
        "TORCH_EXTENSIONS_DIR": str(operators),
        # Compiling finds ninja beside the interpreter, whether or not the virtual environment was activated.
        "PATH": f"{Path(sys.executable).parent}:{environment.get('PATH', '')}",
        "OMP_NUM_THREADS": str(distribution.threads),
        # The base model is on the disk by now; no look at the hub can change it.
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONFAULTHANDLER": "1",
    }
    if on_cpu:
        variables["CUDA_VISIBLE_DEVICES"] = ""
    if on_cpu and distribution.nodes == 1:
        # Processes of one machine talk to each other over the loopback, whatever its host name resolves to.
        variables["GLOO_SOCKET_IFNAME"] = "lo"
    return variables


def program_environment(
    distribution: DistributionPlan, environment: Mapping[str, str], operators: Path
) -> dict[str, str]:
    """The whole environment of the program, or of its launcher."""
    ours = {name: value for name, value in environment.items() if name not in _OF_ANOTHER_LAUNCH}
    return {**ours, **program_variables(distribution, environment, operators)}


def without_addresses(variables: Mapping[str, str]) -> dict[str, str]:
    """For DeepSpeed's runner, which would put MLflow's, with its password, on the command lines of all nodes."""
    return {name: value for name, value in variables.items() if not name.startswith("MLFLOW_")}


def variables_for_other_nodes(variables: Mapping[str, str]) -> str:
    """The file that DS_ENV_FILE names: DeepSpeed's runner puts these on the command line of every node's shell.
    Secrets have no place in it."""
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items() if name != "PATH")


def _device_ids(distribution: DistributionPlan, visible_devices: str | None) -> Sequence[int | str]:
    if distribution.device == "cpu":
        # The launcher shows each process the devices with these ids, even on a CPU: there is none with this one.
        return [-1] * distribution.processes
    # Numbers, or UUIDs: the launcher shows them to the processes as they are.
    if visible_devices:
        return [name.strip() for name in visible_devices.split(",")][: distribution.processes]
    return range(distribution.processes)
