"""Tasks of inspect-ai: what its logs say, and what is done where it is not there.

`inspect_logs` holds what inspect-ai 0.3.285 wrote of the embedded model server with an untrained small model, and of a
server that was not there: without the events and the tracebacks, else as it was.
"""

import json
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rl_pipeline.validation.answers import ChatEndpoint
from rl_pipeline.validation.inspect_runner import InspectFailed, InspectTask, inspect_suite, read_log
from rl_pipeline.validation.suite import Item
from rl_pipeline.validation.validating import Budget, validate
from rl_pipeline_tests.validation.scripted import always

LOGS = Path(__file__).parent / "inspect_logs"
ENDPOINT = ChatEndpoint("http://127.0.0.1:9/v1", "small", token="word")


def sample(name: str, value: Any, **more: Any) -> dict[str, Any]:
    score = {"value": value, "answer": "2", "explanation": "2", "history": []}
    return {"id": name, "epoch": 1, "input": "What is 1+1?", "target": "2", "scores": {"match": score}, **more}


def log(*samples: dict[str, Any], status: str = "success") -> bytes:
    return json.dumps({"version": 2, "status": status, "eval": {"task": "sums"}, "samples": samples}).encode()


def test_scores_are_read_as_letters_and_numbers() -> None:
    content = log(
        sample("a", "C"), sample("b", "I"), sample("c", "P"), sample("d", 0.3), sample("e", True), sample("f", "N")
    )
    assert read_log(content) == {"a": 1.0, "b": 0.0, "c": 0.5, "d": 0.3, "e": 1.0, "f": 0.0}


def test_what_inspect_ai_wrote_of_a_real_model_is_read() -> None:
    assert read_log((LOGS / "scored.json").read_bytes()) == {"1": 1.0, "2": 1.0, "3": 0.0}


def test_of_a_model_that_was_not_there_it_says_so() -> None:
    with pytest.raises(InspectFailed, match=r"ended with 'error': RetryError.*APIConnectionError"):
        read_log((LOGS / "unreachable.json").read_bytes())


def test_the_epochs_of_a_sample_are_averaged() -> None:
    assert read_log(log(sample("a", "C"), sample("a", "I", epoch=2))) == {"a": 0.5}


def test_one_of_several_scores_is_named() -> None:
    two = sample("a", "C")
    two["scores"]["other"] = {"value": "I"}
    assert read_log(log(two), "other") == {"a": 0.0}
    with pytest.raises(InspectFailed, match="match, other: name one"):
        read_log(log(two))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (log(sample("a", "C"), status="error"), "ended with 'error'"),
        (log(sample("a", "C", error={"message": "x"})), "ended with an error"),
        (log(sample("a", 7)), "not within 0 and 1"),
        (log(sample("a", "maybe")), "not within 0 and 1"),
        (b"{}", "not in the format"),
        (b"no json", "not in the format"),
    ],
)
def test_a_log_without_scores_is_none(content: bytes, complaint: str) -> None:
    with pytest.raises(InspectFailed, match=complaint):
        read_log(content)


def stand_in(directory: Path, body: str) -> str:
    """A program in place of Python with inspect-ai: it gets the same command line."""
    path = directory / "python"
    path.write_text(f"#!{sys.executable}\nimport json, os, sys\narguments = sys.argv[1:]\n{body}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_the_task_is_run_on_exactly_the_drawn_samples(tmp_path: Path) -> None:
    body = f"""
option = lambda name: arguments[arguments.index(name) + 1]
assert arguments[:4] == ['-m', 'inspect_ai', 'eval', 'task.py@sums']
assert option('--model') == 'openai-api/validated/small' and option('--model-base-url') == 'http://127.0.0.1:9/v1'
assert option('-T') == 'hard=yes' and os.environ['VALIDATED_API_KEY'] == 'word'
scored = lambda name: {{'match': {{'value': 'C' if name == 's1' else 'I'}}}}
samples = [{{'id': name, 'scores': scored(name)}} for name in option('--sample-id').split(',')]
open({str(tmp_path / "asked")!r}, 'a').write(option('--sample-id') + chr(10))
with open(os.path.join(option('--log-dir'), 'log.json'), 'w') as file:
    json.dump({{'status': 'success', 'samples': samples}}, file)
"""
    task = InspectTask("task.py@sums", arguments={"hard": "yes"}, python=stand_in(tmp_path, body))
    suite = inspect_suite("sums", "benchmark", task, ["s1", "s2", "s3"], minimum=1, floor=0.0)
    answers = suite.ask(ENDPOINT, suite.items[:2], [1, 2])
    assert [suite.scorer(item, answer) for item, answer in zip(suite.items, answers, strict=False)] == [1.0, 0.0]
    assert (tmp_path / "asked").read_text() == "s1,s2\n"


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("sys.exit('Error: boom')", "task failed: Error: boom"),
        ("", "left 0 logs"),
        ("import time; time.sleep(60)", "took longer than 1 s"),
    ],
)
def test_a_run_without_a_log_is_no_score(body: str, complaint: str, tmp_path: Path) -> None:
    task = InspectTask("task", python=stand_in(tmp_path, body), timeout_seconds=1.0)
    suite = inspect_suite("sums", "benchmark", task, ["1"], minimum=1, floor=0.0)
    with pytest.raises(InspectFailed, match=complaint):
        suite.ask(ENDPOINT, suite.items, [1])


def test_where_it_is_not_installed_the_model_is_refused_and_the_report_says_what_to_do(tmp_path: Path) -> None:
    # A real Python without any package, wherever these tests run.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    task = InspectTask("task", python=str(tmp_path / "bare" / "bin" / "python"))
    suite = inspect_suite("sums", "benchmark", task, ["1", "2"], minimum=1, floor=0.0)
    report = validate(ENDPOINT, None, [suite], budget=Budget((2,)), seed=0, required=["sums"])
    assert report.decision == "refuse"
    assert "inspect-ai is not installed for " in report.reasons[0]
    assert "run `pip install 'rl-pipeline[inspect]'` in an environment of its own" in report.reasons[0]
    pyproject = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert re.search(r"^inspect = \[\n    \"inspect-ai>=", pyproject, re.MULTILINE), "that extra is there"


def test_a_python_that_is_not_there_is_told(tmp_path: Path) -> None:
    task = InspectTask("task", python=str(tmp_path / "nowhere"))
    with pytest.raises(InspectFailed, match=r"cannot be run \(No such file or directory\): name a Python"):
        task(ENDPOINT, [Item("1", "1")], [1])


def test_it_can_only_reach_servers() -> None:
    suite = inspect_suite("sums", "benchmark", InspectTask("task"), ["1", "2"], minimum=1, floor=0.0)
    report = validate(always("x"), None, [suite], budget=Budget((2,)), seed=0, required=["sums"])
    assert "give the model as a ChatEndpoint" in report.reasons[0]
