"""Results of tests are read from what tools returned, and doubted where they prove nothing."""

from typing import Any

import pytest

from rl_pipeline.rewards.code import Snippet, find_code
from rl_pipeline.rewards.tests_found import (
    ASSERT_NOTHING,
    CHANGED_AFTER_FAILING,
    NO_TESTS_RAN,
    Run,
    TestsFound,
    find_tests,
    read_run,
    writes_tests,
)
from rl_pipeline_tests.rewards.documents import call, read_turns, says, turn

FAILING = "FAILED test_a.py::test_x\n=========== 2 failed, 3 passed, 1 skipped in 0.12s ==========="
PASSING = "....\n\x1b[32m=========== \x1b[1m5 passed\x1b[0m\x1b[32m, 2 warnings in 1.02s (0:00:01) ===========\x1b[0m"
GO = "=== RUN   TestA\n--- PASS: TestA (0.00s)\n    --- PASS: TestA/sub (0.00s)\n--- FAIL: TestB (0.00s)\nFAIL"
CARGO = "test result: ok. 5 passed; 0 failed; 1 ignored\n\ntest result: FAILED. 1 passed; 2 failed; 0 ignored"


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (FAILING, Run(3, 5)),
        (PASSING, Run(5, 5)),
        ("3 passed in 0.01s", Run(3, 3)),
        ("1 failed, 1 error in 2.50 seconds", Run(0, 2)),
        ("4 xfailed, 1 xpassed in 0.1s", Run(1, 1)),
        ("===== no tests ran in 0.01s =====", Run(0, 0)),
        ("Ran 5 tests in 0.003s\n\nOK", Run(5, 5)),
        ("Ran 6 tests in 0.003s\r\n\r\nFAILED (failures=1, errors=2, skipped=1)", Run(2, 5)),
        ("Ran 0 tests in 0.000s\n\nNO TESTS RAN", Run(0, 0)),
        ("Tests:       1 failed, 2 skipped, 4 passed, 7 total\nTime: 1 s", Run(4, 5)),
        (" Test Files  1 passed (1)\n      Tests  1 failed | 4 passed (5)", Run(4, 5)),
        (CARGO, Run(6, 8)),
        (GO, Run(1, 2)),
        ("ok  \tx/y\t0.01s\nFAIL\tx/z\t0.02s\n?   \tx/w\t[no test files]", Run(1, 2)),
        ("ok  \tx/y\t0.01s [no tests to run]", Run(0, 0)),
        ({"stdout": FAILING, "parts": [{"text": PASSING}]}, Run(5, 5)),
        ("The committee passed 3 motions and failed 2 in 5s.", None),
        ("3 passed the exam", None),
        (None, None),
        ({"passed": 5}, None),
    ],
)  # fmt: skip
def test_summaries_are_read(output: Any, expected: Run | None) -> None:
    assert read_run(output) == expected


def found(*turns: dict[str, Any]) -> TestsFound:
    read = read_turns(turns)
    return find_tests(read, find_code(read))


def run(output: str, **rest: Any) -> dict[str, Any]:
    return call("bash", {"command": "pytest -q"}, output=output, **rest)


WRITE_TEST = call("write_file", {"path": "tests/test_a.py", "content": "def test_x():\n    assert f(1) == 2\n"})
WRITE_CODE = call("write_file", {"path": "a.py", "content": "def f(x):\n    return x + 1\n"})


def test_the_last_run_counts_wherever_its_output_is() -> None:
    assert found(run(FAILING), WRITE_CODE, run(PASSING)) == TestsFound(Run(5, 5), "")
    assert found(run(PASSING), run("", success=False, error=FAILING)).last == Run(3, 5)
    assert found(run(""), says("ok", content=FAILING)).last == Run(3, 5)
    assert found(WRITE_CODE) == TestsFound(None, "")


def test_what_an_agent_says_is_no_run() -> None:
    said = [
        says(PASSING),
        turn({"type": "subordinate_call"}, output=PASSING),
        says("ok", observed="subordinate_response", content=PASSING),
        call("bash", {"command": "echo '5 passed in 0.10s'"}, output="5 passed in 0.10s"),
        call("write_file", {"path": "fake.py", "content": "print('7 passed in 0.10s')"}),
        call("bash", {"command": "python fake.py"}, output="7 passed in 0.10s"),
    ]
    assert found(*said).last is None


@pytest.mark.parametrize(
    ("summary", "written"),
    [
        (summary, f"{before}{summary}{after}")
        for summary in (
            "1 failed, 5 passed, 2 warnings in 0.10s",
            "Ran 5 tests in 0.003s\n\nOK",
            "Tests:       1 failed, 4 passed, 5 total",
            "Tests  1 failed | 4 passed (5)",
            "test result: ok. 5 passed; 0 failed; 1 ignored",
            "--- PASS: TestA",
            "ok  \tx/y\t0.01s",
        )
        for before, after in (("", ""), ("print('", "')"), ("x = 1\necho Tests: 7 passed in ", '"; ls'))
    ],
)
def test_a_summary_is_recognised_wherever_the_agent_wrote_it(summary: str, written: str) -> None:
    assert read_run(summary) is not None
    assert found(call("write_file", {"lines": [{"text": written}]}), run(f"start\n{summary}\nend")).last is None


def test_who_writes_summaries_without_end_is_not_believed_any() -> None:
    flood = "".join(f"{count} passed in {count}s\n" for count in range(10_001))
    assert found(call("write_file", {"content": flood}), run(PASSING)).last is None


def test_long_trajectories_full_of_summaries_are_read_once() -> None:
    """Comparing each summary with everything written before it would take hours."""
    command = "".join(f"{count} passed, " for count in range(3_000))
    outputs = ["\n".join(f"{turn} passed in {count}s" for count in range(2_000)) for turn in range(100)]
    turns = [call("bash", {"command": f"{command}{place}"}, output=output) for place, output in enumerate(outputs)]
    assert found(*turns).last == Run(99, 99)


def test_an_empty_run_proves_nothing() -> None:
    assert found(run("===== no tests ran in 0.01s =====")) == TestsFound(Run(0, 0), NO_TESTS_RAN)
    assert found(run("===== 3 skipped in 0.01s =====")).doubt == NO_TESTS_RAN


def test_tests_that_were_changed_after_they_failed_prove_nothing() -> None:
    assert found(WRITE_TEST, run(FAILING), WRITE_TEST, run(PASSING)).doubt == CHANGED_AFTER_FAILING
    assert found(WRITE_TEST, run(FAILING), WRITE_TEST, run(FAILING), WRITE_CODE, run(PASSING)).doubt != ""


def test_tests_written_before_or_after_they_passed_are_not_doubted() -> None:
    assert found(WRITE_TEST, run(FAILING), WRITE_CODE, run(PASSING)).doubt == ""
    assert found(WRITE_TEST, run(FAILING), WRITE_CODE, run(PASSING), WRITE_TEST, run(PASSING)).doubt == ""


def test_failures_are_not_got_rid_of_by_touching_the_tests() -> None:
    assert found(run(FAILING), WRITE_TEST, run(FAILING)) == TestsFound(Run(3, 5), "")


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("write_file", {"path": "tests/unit/adding.py", "content": ""}),
        ("str_replace_editor", {"command": "str_replace", "path": "/repo/test_a.py", "old_str": "a", "new_str": "b"}),
        ("delete_file", {"path": "src/a_test.go"}),
        ("save", {"file_path": "web/a.spec.ts", "content": ""}),
        ("bash", {"command": "cd repo && sed -i 's/2/3/' tests/test_a.py"}),
        ("bash", {"command": "cat > test_a.py <<EOF\nEOF"}),
        ("bash", {"command": "rm -f ./tests/test_a.py"}),
        ("bash", {"command": "git checkout HEAD~1 -- tests/test_a.py"}),
        ("python", {"code": "open('test_a.py', 'w').write('')"}),
        ("python", {"code": "Path('tests/test_a.py').write_text('')"}),
        ("apply_patch", {"input": "*** Begin Patch\n*** Update File: tests/test_a.py\n"}),
        ("git_apply", {"patch": "--- a/tests/test_a.py\n+++ b/tests/test_a.py\n"}),
        ("editor", {"command": ["str_replace"], "path": "tests/test_a.py", "new_str": "x"}),
    ],
)
def test_writing_to_tests_is_recognised(tool: str, arguments: dict[str, Any]) -> None:
    assert writes_tests(tool, arguments)


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("read_file", {"path": "tests/test_a.py"}),
        ("str_replace_editor", {"command": "view", "path": "tests/test_a.py"}),
        ("bash", {"command": "pytest tests/test_a.py > out.txt"}),
        ("bash", {"command": "cat tests/test_a.py; rm out.txt"}),
        ("write_file", {"path": "src/latest/adding.py", "content": ""}),
        ("write_file", {"path": "contest.py", "content": ""}),
        ("python", {"code": "open('test_a.py').read()"}),
        ("write_file", {"path": 7, "content": "tests/test_a.py"}),
    ],
)
def test_reading_and_running_tests_changes_nothing(tool: str, arguments: dict[str, Any]) -> None:
    assert not writes_tests(tool, arguments)


@pytest.mark.parametrize(
    "body",
    [
        "pass",
        "...",
        "assert True",
        "assert 1 == 1",
        "x = f()\n    assert x == x",
        "assert f(a)[1:] == f(a)[1:]",
        "assert " + "+".join(["a"] * 700) + " == " + "+".join(["a"] * 700),
        "self.assertTrue(True)",
        "print(f())",
    ],
)
def test_tests_that_cannot_fail_prove_nothing(body: str) -> None:
    test = call("write_file", {"path": "test_a.py", "content": f"def test_x(self):\n    {body}\n"})
    assert found(test, run(PASSING)).doubt == ASSERT_NOTHING


@pytest.mark.parametrize(
    "body",
    [
        "assert f(1) == 2",
        "self.assertEqual(f(1), 2)",
        "with pytest.raises(ValueError):\n        f(1)",
        "mock.assert_called_once()",
        "if f(1) != 2:\n        raise ValueError",
        "self.fail('never')",
        "assert total == " + "+".join(["a"] * 1_500),
        "assert total == 0x" + "f" * 6_000,
        "assert a[0] == a[1]",
        "assert {**a, 1: 2} == {1: 2, **a}",
    ],
)
def test_tests_that_can_fail_are_believed(body: str) -> None:
    test = call("write_file", {"path": "test_a.py", "content": f"def test_x(self):\n    {body}\n"})
    assert found(test, run(PASSING)) == TestsFound(Run(5, 5), "")


def test_code_that_no_parser_reads_asserts_neither() -> None:
    assert find_tests(read_turns([run(PASSING)]), [Snippet("def test_x(:"), Snippet("x = 1")]).doubt == ""


def test_failures_stand_against_the_trajectory_when_its_tests_were_changed() -> None:
    edited = found(WRITE_TEST, run(FAILING), WRITE_TEST, run(PASSING))
    assert edited == TestsFound(Run(3, 5), CHANGED_AFTER_FAILING)


@pytest.mark.parametrize("output", ["===== 3 passed in 0.02s =====", "===== no tests ran in 0.01s ====="])
def test_failures_are_not_got_rid_of_by_running_fewer_tests(output: str) -> None:
    assert found(run(FAILING), run(output)) == TestsFound(Run(3, 5), "")
    assert found(run(PASSING), run("===== 1 failed in 0.02s =====")).last == Run(0, 1)


def test_tests_that_check_nothing_are_taken_off_the_run() -> None:
    real = "".join(f"def test_{n}():\n    assert f({n}) == 2\n" for n in range(3))
    test = call("write_file", {"path": "test_a.py", "content": f"{real}def test_e():\n    pass\n"})
    assert found(test, run("===== 2 failed, 2 passed in 0.1s =====")) == TestsFound(Run(1, 3), "")


def test_outputs_made_to_be_slow_are_read() -> None:
    hostile = [
        "=" * 500_000,
        "1 passed, " * 50_000,
        "ok  \t" * 100_000,
        "Tests:  1" + " 1" * 200_000,
        "Ran 1 tests in " * 9_000,
    ]
    assert all(read_run(text) is None for text in hostile)
    command = ">" + ",a/" * 30_000 + ">,a" * 30_000 + "test"
    assert not writes_tests("bash", {"command": command, "path": "a/" * 200_000 + "b"})
