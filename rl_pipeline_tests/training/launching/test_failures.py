"""What each end of the program means."""

import os
import signal
from pathlib import Path

import pytest

from rl_pipeline.contracts.training_status import FailureCode
from rl_pipeline.training.launching.exits import (
    EXIT_OF_FAILURE,
    Exit,
    FailureRecord,
    has_result,
    read_failures,
    write_failure,
)
from rl_pipeline.training.launching.failures import classify, signal_of
from rl_pipeline.training.launching.launch import LaunchOutcome

LOST_PEER = FailureRecord(code="INFRA", message="Connection closed by peer", rank=0)
POISONED = FailureRecord(code="DATA", message="A row is poisoned.", traceback="tb", trajectory_ids=("t-1",), rank=1)


def code_of(outcome: LaunchOutcome) -> FailureCode | None:
    failure = classify(outcome)
    return failure.code if failure else None


def test_a_program_that_is_done_with_a_result_has_not_failed() -> None:
    assert classify(LaunchOutcome(Exit.DONE, has_result=True)) is None


def test_a_program_that_was_stopped_has_not_failed() -> None:
    assert classify(LaunchOutcome(Exit.SAVED, stopped=True)) is None
    assert classify(LaunchOutcome(137, stopped=True)) is None


def test_a_good_exit_code_without_a_result_is_not_believed() -> None:
    assert code_of(LaunchOutcome(Exit.DONE)) == "UNKNOWN"


@pytest.mark.parametrize("code", ["DATA", "CONVERGENCE", "OOM", "INFRA", "UNKNOWN"])
def test_each_exit_code_of_the_program_is_its_class(code: FailureCode) -> None:
    assert code_of(LaunchOutcome(EXIT_OF_FAILURE[code])) == code


def test_the_record_of_the_rank_that_failed_counts_and_not_the_exit_code_of_one_that_lost_it() -> None:
    failure = classify(LaunchOutcome(Exit.INFRA, records=(LOST_PEER, POISONED)))
    assert failure is not None
    assert (failure.code, failure.message, failure.traceback) == ("DATA", "A row is poisoned.", "tb")
    assert failure.trajectory_ids == ("t-1",)


def test_of_other_records_the_first_counts() -> None:
    unknown = FailureRecord(code="UNKNOWN", message="KeyError", rank=1)
    assert code_of(LaunchOutcome(Exit.INFRA, records=(unknown, LOST_PEER))) == "UNKNOWN"
    assert code_of(LaunchOutcome(Exit.INFRA, records=(LOST_PEER, unknown))) == "INFRA"


def test_a_hang_is_a_timeout_unless_a_rank_had_failed_before() -> None:
    assert code_of(LaunchOutcome(137, hung=True)) == "TIMEOUT"
    assert code_of(LaunchOutcome(137, hung=True, records=(LOST_PEER,))) == "TIMEOUT"
    assert code_of(LaunchOutcome(137, hung=True, records=(POISONED,))) == "DATA"


def test_a_process_that_the_kernel_killed_for_memory_is_out_of_memory() -> None:
    assert code_of(LaunchOutcome(247, memory_kills=1)) == "OOM"
    assert code_of(LaunchOutcome(Exit.INFRA, records=(LOST_PEER,), memory_kills=1)) == "OOM"


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (
            LaunchOutcome(Exit.UNKNOWN, (FailureRecord(code="UNKNOWN", message="KeyError: 'x'"),), memory_kills=1),
            "UNKNOWN",
        ),
        (LaunchOutcome(Exit.INFRA, (FailureRecord(code="INFRA", message="No space left"),), memory_kills=1), "INFRA"),
        (LaunchOutcome(137, (FailureRecord(code="INFRA", message="No space left"),), memory_kills=1), "INFRA"),
        (LaunchOutcome(Exit.CONVERGENCE, memory_kills=1), "CONVERGENCE"),
        (LaunchOutcome(1, memory_kills=1), "UNKNOWN"),
    ],
)
def test_a_process_of_somebody_else_that_was_killed_for_memory_is_not_why_we_failed(
    outcome: LaunchOutcome, code: FailureCode
) -> None:
    assert code_of(outcome) == code


@pytest.mark.parametrize(
    ("exit_code", "number"),
    [
        (-9, signal.SIGKILL),
        (137, signal.SIGKILL),
        (247, signal.SIGKILL),
        (143, signal.SIGTERM),
        (241, signal.SIGTERM),
        (245, signal.SIGSEGV),
        (0, None),
        (1, None),
        (Exit.SAVED, None),
    ],
)
def test_the_signal_is_read_from_any_form_of_the_exit_code(exit_code: int, number: signal.Signals | None) -> None:
    assert signal_of(exit_code) == number


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (LaunchOutcome(137), "INFRA"),
        (LaunchOutcome(Exit.SAVED), "INFRA"),
        (LaunchOutcome(139), "UNKNOWN"),
        (LaunchOutcome(1), "UNKNOWN"),
        (LaunchOutcome(1, log_tail="RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried"), "OOM"),
        (LaunchOutcome(1, log_tail="torch.OutOfMemoryError: CUDA out of memory."), "OOM"),
        (LaunchOutcome(134, log_tail="terminate called after throwing 'std::bad_alloc'"), "OOM"),
        (LaunchOutcome(1, log_tail="OSError: [Errno 28] No space left on device"), "INFRA"),
        (LaunchOutcome(1, log_tail="RuntimeError: Address already in use (errno: 98)"), "INFRA"),
    ],
)
def test_an_end_without_a_record_is_read_from_signal_and_log(outcome: LaunchOutcome, code: FailureCode) -> None:
    assert code_of(outcome) == code


def test_the_last_traceback_of_the_log_is_kept() -> None:
    log = (
        "noise\nTraceback (most recent call last)\n  first\nTraceback (most recent call last)\n  second\nKeyError: 1\n"
    )
    failure = classify(LaunchOutcome(1, log_tail=log))
    assert failure is not None
    assert failure.traceback == "Traceback (most recent call last)\n  second\nKeyError: 1\n"


def test_records_come_in_the_order_in_which_they_were_written(tmp_path: Path) -> None:
    write_failure(tmp_path, LOST_PEER)
    write_failure(tmp_path, POISONED)
    os.utime(tmp_path / "failure-rank1.json", ns=(1, 1))
    assert read_failures(tmp_path) == (POISONED, LOST_PEER)


def test_a_record_that_cannot_be_read_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "failure-rank0.json").write_text('{"code": "OO')
    assert [record.code for record in read_failures(tmp_path)] == ["UNKNOWN"]


def test_half_a_result_is_none(tmp_path: Path) -> None:
    assert not has_result(tmp_path)
    (tmp_path / "result.json").write_text('{"steps": ')
    assert not has_result(tmp_path)
    (tmp_path / "result.json").write_text('{"steps": 3}')
    assert has_result(tmp_path)
