"""How often do the ten best memories hold the answer, on conversations in the shape of LoCoMo?

    python benchmarks/memory_quality.py path/to/locomo10.json [--dense]

The file is a list of samples (or one of them): `conversation` with `session_1`, `session_2` … of turns with `speaker`,
`dia_id` and `text` (and `blip_caption` where a picture was shown), and `qa` with `question` and `evidence`, a list of
`dia_id`s. Each question is asked of its own conversation. Questions whose evidence names no turn are left out, and so
are those of category 5, which have no answer.

Recall is the mean, over questions, of the share of evidence that is among the best 5 or 10: by turn, and by session,
where a session is as good as its best turn. Rankers: `bm25_turns`, single turns; `bm25_windows`, each turn with the one
before and after it, which is what the product does; with `--dense` also `minilm` and `fusion`, whose share of MiniLM is
chosen on the conversations with even places and told for those with odd ones alone (`*_held_out`). A fusion is worth
having only where it beats the best single ranker there.

Without a file, conversations are invented: they show that it runs, and nothing about quality.
"""

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent.parent))  # for its neighbours, when started as a script

from rl_pipeline.memory.bm25 import Bm25
from rl_pipeline.memory.words import windows_around, words_of

NO_ANSWER = 5
SHARES = tuple(share / 10 for share in range(1, 10))

Scores = NDArray[np.float32]


@dataclass
class Conversation:
    """Turns in order, each with its session, and what is asked about them."""

    turns: list[str] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)
    questions: list[tuple[str, list[int]]] = field(default_factory=list)


def conversations(found: Any) -> list[Conversation]:
    """The samples of a file. Raises `SystemExit` where it has another shape."""
    samples = found if isinstance(found, list) else [found]
    if not all(isinstance(sample, dict) and "conversation" in sample and "qa" in sample for sample in samples):
        raise SystemExit("this file has another shape: a list of objects with `conversation` and `qa` is needed")
    return [_conversation(sample) for sample in samples]


def _conversation(sample: dict[str, Any]) -> Conversation:
    made, said = Conversation(), sample["conversation"]
    names = [name for name in said if re.fullmatch(r"session_\d+", name) and isinstance(said[name], list)]
    for name in sorted(names, key=lambda name: int(name.partition("_")[2])):
        for turn in said[name]:
            made.places[str(turn.get("dia_id"))] = len(made.turns)
            shown = f" {turn['blip_caption']}" if turn.get("blip_caption") else ""
            made.turns.append(f"{turn.get('speaker', '')}: {turn.get('text', '')}{shown}")
            made.sessions.append(name)
    for asked in sample["qa"]:
        evidence = asked.get("evidence") or []
        named = re.findall(r"D\d+:\d+", " ".join(evidence if isinstance(evidence, list) else [str(evidence)]))
        places = sorted({made.places[name] for name in named if name in made.places})
        if places and asked.get("category") != NO_ANSWER:
            made.questions.append((str(asked["question"]), places))
    return made


def bm25(texts: Sequence[Sequence[str]], questions: Sequence[str]) -> list[Scores]:
    index = Bm25()
    for text in texts:
        index.add(text)
    made = []
    for question in questions:
        scores = np.zeros(len(texts), np.float32)
        found, those = index.find(words_of(question))
        scores[found] = those
        made.append(scores)
    return made


def minilm(conversation: Conversation, embedder: Any) -> list[Scores]:
    turns = np.stack(embedder.embed(conversation.turns))
    return [turns @ vector for vector in embedder.embed([question for question, _ in conversation.questions])]


def fused(lexical: Scores, dense: Scores, share: float) -> Scores:
    """As the product does: shares of the best match, and cosines from 0."""
    best = float(lexical.max()) or 1.0
    return ((1 - share) * lexical / best + share * np.maximum(dense, 0)).astype(np.float32)


def recalls(conversation: Conversation, scores: Sequence[Scores]) -> dict[str, list[float]]:
    """By figure, the recall of each question."""
    found: dict[str, list[float]] = defaultdict(list)
    for (_, evidence), of_turns in zip(conversation.questions, scores, strict=True):
        order = np.lexsort((np.arange(len(of_turns)), -of_turns))
        for most in (5, 10):
            best = set(order[:most].tolist())
            found[f"turn_r{most}"].append(sum(place in best for place in evidence) / len(evidence))
            sessions = list(dict.fromkeys(conversation.sessions[place] for place in order))[:most]
            wanted = {conversation.sessions[place] for place in evidence}
            found[f"session_r{most}"].append(len(wanted & set(sessions)) / len(wanted))
    return found


def means(parts: Sequence[dict[str, list[float]]]) -> dict[str, float]:
    names = ("turn_r5", "turn_r10", "session_r5", "session_r10")
    joined = {name: [value for part in parts for value in part.get(name, [])] for name in names}
    return {name: round(float(np.mean(values)), 4) if values else float("nan") for name, values in joined.items()}


def invented(count: int) -> list[Any]:
    """Conversations about things that people own, with questions that a turn answers."""
    luck = Random(0)
    things = [f"{kind} {name}" for kind in ("violin", "kayak", "garden", "motorbike") for name in "abcdefgh"]
    samples = []
    for _ in range(count):
        said: dict[str, Any] = {"speaker_a": "Ada", "speaker_b": "Bob"}
        asked = []
        for session in range(1, 16):
            turns = []
            for number in range(1, 13):
                thing, place = luck.choice(things), luck.choice(["Lisbon", "Oslo", "Kyoto", "Quito", "Cairo"])
                name, text = (
                    f"D{session}:{number}",
                    f"I took the {thing} to {place} in year {luck.randrange(1990, 2030)}.",
                )
                turns.append({"speaker": luck.choice(["Ada", "Bob"]), "dia_id": name, "text": text})
                if luck.random() < 0.1:
                    asked.append(
                        {"question": f"When did the {thing} go to {place}?", "evidence": [name], "category": 1}
                    )
            said[f"session_{session}"] = turns
        samples.append({"conversation": said, "qa": asked})
    return samples


def rankers(chosen: Sequence[Conversation], embedder: Any) -> Iterator[tuple[str, dict[str, float]]]:
    """The recall of each ranker."""
    by_turns, by_windows, by_vectors = [], [], []
    for each in chosen:
        questions = [question for question, _ in each.questions]
        by_turns.append(bm25([words_of(turn) for turn in each.turns], questions))
        by_windows.append(bm25(windows_around(each.turns), questions))
        by_vectors.append(minilm(each, embedder) if embedder else [])

    def recall_of(scores: Sequence[Sequence[Scores]], those: Sequence[int] | None = None) -> dict[str, float]:
        places = range(len(chosen)) if those is None else those
        return means([recalls(chosen[place], scores[place]) for place in places])

    yield "bm25_turns", recall_of(by_turns)
    yield "bm25_windows", recall_of(by_windows)
    if embedder is None:
        return
    yield "minilm", recall_of(by_vectors)

    def fusion(share: float) -> list[list[Scores]]:
        return [
            [fused(one, other, share) for one, other in zip(lexical, dense, strict=True)]
            for lexical, dense in zip(by_windows, by_vectors, strict=True)
        ]

    known, held_out = range(0, len(chosen), 2), range(1, len(chosen), 2)
    best = max(SHARES, key=lambda share: recall_of(fusion(share), known)["turn_r10"])
    print(f"MiniLM's share, chosen on every other conversation: {best:g}")
    yield "fusion_equal", recall_of(fusion(0.5))
    yield "fusion_held_out", recall_of(fusion(best), held_out)
    yield "bm25_windows_held_out", recall_of(by_windows, held_out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, help="conversations in the shape of LoCoMo; else invented ones")
    parser.add_argument("--dense", action="store_true", help="MiniLM and its fusion too")
    parser.add_argument("--quick", action="store_true", help="the first two conversations")
    chosen = parser.parse_args()
    found = json.loads(chosen.file.read_text(encoding="utf-8")) if chosen.file else invented(4)
    made = conversations(found)[: 2 if chosen.quick else None]
    embedder = None
    if chosen.dense:
        from rl_pipeline.memory.embedding import MiniLM

        embedder = MiniLM()
    asked = sum(len(each.questions) for each in made)
    source = chosen.file.name if chosen.file else "invented"
    print(f"{source}: {len(made)} conversations, {sum(len(each.turns) for each in made):,} turns, {asked} questions")
    print("| ranker | turn R@5 | turn R@10 | session R@5 | session R@10 |\n|---|---|---|---|---|")
    figures: dict[str, Any] = {"questions": asked, "invented": int(chosen.file is None)}
    for name, values in rankers(made, embedder):
        print(f"| {name} | " + " | ".join(f"{value:.3f}" for value in values.values()) + " |")
        figures |= {f"{name}_{figure}": value for figure, value in values.items()}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
