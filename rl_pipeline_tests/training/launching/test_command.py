"""The command lines, and what DeepSpeed's own launcher makes of them."""

import base64
import json
import sys
from pathlib import Path

from rl_pipeline.training.launching.command import (
    program_command,
    program_environment,
    program_variables,
    variables_for_other_nodes,
)
from rl_pipeline.training.plans.plan import DistributionPlan

PROGRAM = ["-m", "rl_pipeline.training_program", "--work", "/work/job 1", "--attempt", "2"]
OPERATORS = Path("/cache/operators")


def world_of(command: list[str]) -> dict[str, list[int | str]]:
    (argument,) = [word for word in command if word.startswith("--world_info=")]
    content: dict[str, list[int | str]] = json.loads(base64.urlsafe_b64decode(argument.partition("=")[2]))
    return content


def test_one_process_without_deepspeed_is_plain_python() -> None:
    command = program_command(DistributionPlan(deepspeed=False), PROGRAM, port=1)
    assert command == [sys.executable, "-u", *PROGRAM]


def test_processes_of_one_node_start_under_deepspeeds_launcher_and_see_no_gpu_on_a_cpu() -> None:
    command = program_command(DistributionPlan(processes=2), PROGRAM, port=4711)
    assert command[1:4] == ["-u", "-m", "deepspeed.launcher.launch"]
    assert world_of(command) == {"localhost": [-1, -1]}
    assert command[-8:] == ["--master_port=4711", "--no_local_rank", "--module", *PROGRAM[1:]]


def test_each_gpu_has_a_process_and_only_those_that_are_shown() -> None:
    gpus = DistributionPlan(processes=2, device="cuda")
    assert world_of(program_command(gpus, PROGRAM, port=1)) == {"localhost": [0, 1]}
    assert world_of(program_command(gpus, PROGRAM, port=1, visible_devices="3, 5,7")) == {"localhost": ["3", "5"]}
    by_uuid = program_command(gpus, PROGRAM, port=1, visible_devices="GPU-0a1b,GPU-2c3d")
    assert world_of(by_uuid) == {"localhost": ["GPU-0a1b", "GPU-2c3d"]}


def test_deepspeeds_runner_reads_the_hostfile_and_starts_the_program_on_every_node(tmp_path: Path) -> None:
    from deepspeed.launcher.multinode_runner import PDSHRunner
    from deepspeed.launcher.runner import (
        apply_num_nodes_and_gpus,
        encode_world_info,
        fetch_hostfile,
        parse_args,
        parse_inclusion_exclusion,
    )

    hostfile = tmp_path / "hosts"
    hostfile.write_text("# three nodes\nworker-1 slots=8\nworker-2 slots=8\nworker-3 slots=8\n")
    nodes = DistributionPlan(processes=8, nodes=2, hostfile=str(hostfile), device="cuda")
    command = program_command(nodes, PROGRAM, port=4711)
    assert command[1:4] == ["-u", "-m", "deepspeed.launcher.runner"]
    read = parse_args(command[4:])
    assert (read.user_script, read.user_args, read.module, read.master_port) == (PROGRAM[1], PROGRAM[2:], True, 4711)
    hosts = parse_inclusion_exclusion(fetch_hostfile(read.hostfile), read.include, read.exclude)
    active = apply_num_nodes_and_gpus(hosts, read.num_nodes, read.num_gpus)
    assert active == {"worker-1": [0, 1, 2, 3], "worker-2": [0, 1, 2, 3]}
    read.master_addr = "10.0.0.1"
    started, _, _ = PDSHRunner(read, encode_world_info(active)).get_cmd({}, active)
    assert started[started.index("-w") + 1] == "worker-1,worker-2"
    assert started[-5:] == [PROGRAM[1], "--work", '"/work/job 1"', "--attempt", "2"]


def test_the_program_sees_what_it_needs_and_nothing_of_another_launch() -> None:
    ours = {"PATH": "/usr/bin", "NATS_URL": "nats://n", "RANK": "3", "MASTER_PORT": "1", "CUDA_VISIBLE_DEVICES": "0"}
    environment = program_environment(DistributionPlan(threads=3), ours, OPERATORS)
    assert environment["NATS_URL"] == "nats://n"
    assert not {"RANK", "MASTER_PORT"} & environment.keys()
    assert (environment["DS_ACCELERATOR"], environment["CUDA_VISIBLE_DEVICES"]) == ("cpu", "")
    assert (environment["OMP_NUM_THREADS"], environment["HF_HUB_OFFLINE"]) == ("3", "1")
    assert environment["TORCH_EXTENSIONS_DIR"] == str(OPERATORS)
    assert environment["PATH"] == f"{Path(sys.executable).parent}:/usr/bin"


def test_on_gpus_the_devices_stay_as_they_are() -> None:
    environment = program_environment(DistributionPlan(device="cuda"), {"CUDA_VISIBLE_DEVICES": "2,3"}, OPERATORS)
    assert (environment["DS_ACCELERATOR"], environment["CUDA_VISIBLE_DEVICES"]) == ("cuda", "2,3")


def test_other_nodes_are_told_what_the_program_needs_and_no_secrets() -> None:
    variables = program_variables(DistributionPlan(device="cuda"), {"CLICKHOUSE_PASSWORD": "secret"}, OPERATORS)
    told = dict(line.split("=", 1) for line in variables_for_other_nodes(variables).splitlines())
    assert told["DS_ACCELERATOR"] == "cuda"
    assert "secret" not in told.values()
    assert "PATH" not in told, "each node has its own"
