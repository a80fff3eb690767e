"""`corpus` then `train` then `generate` with the new head: the whole way, on a tiny random target."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from eagle3_demo.cli.main import main
from eagle3_demo.models.checkpoint import load_head, save_head
from eagle3_demo.training.batches import read_corpus
from tests.tiny_head import tiny_head
from tests.tiny_pair import save_tiny_pair
from tests.tiny_target import byte_level_tokenizer, tiny_model


@dataclass(frozen=True)
class Workplace:
    """A tiny target, its corpus, and commands over them."""

    folder: Path

    @property
    def target(self) -> Path:
        return self.folder / "tiny-target"

    def corpus(self, out: str, *more: str, prompts: str = "prompts.jsonl") -> list[str]:
        command = ["corpus", "--prompts", str(self.folder / prompts), "--out", str(self.folder / out)]
        command += ["--target", str(self.target), "--device", "cpu", "--max-new-tokens", "12", "--batch-size", "16"]
        return [*command, "--workers", "1", *more]

    def train(self, out: str, *more: str) -> list[str]:
        command = ["train", "--corpus", str(self.folder / "corpus"), "--out", str(self.folder / out)]
        command += ["--target", str(self.target), "--device", "cpu", "--epochs", "1", "--steps-ahead", "2"]
        return [*command, "--block-positions", "256", *more]

    def prompts_of(self, out: str) -> list[bytes]:
        """The unmarked tokens of every conversation."""
        corpus = read_corpus(self.folder / out)
        every = [s for group in (corpus.training, corpus.held_out) for shard in group for s in shard]
        return sorted(sequence.tokens[~sequence.answer].tobytes() for sequence in every)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """A target and a corpus of 120 prompts."""
    workplace = Workplace(tmp_path_factory.mktemp("made"))
    save_tiny_pair(workplace.folder)
    lines = [json.dumps({"prompt": f"count to {n}"}) for n in range(120)]
    (workplace.folder / "prompts.jsonl").write_text("\n".join(lines), encoding="utf-8")
    assert main(workplace.corpus("corpus", "--tokens", "300")) == 0
    assert main(workplace.corpus("corpus", "--tokens", "100000", "--resume")) == 0
    return workplace


def test_a_head_is_trained_on_the_targets_own_answers(capsys: pytest.CaptureFixture[str], made: Workplace) -> None:
    assert len(made.prompts_of("corpus")) == len(set(made.prompts_of("corpus"))) == 120
    run = made.folder / "run"
    assert main(made.train("run", "--draft-vocab", "64", "--taps", "1,3,6")) == 0
    head = load_head(run / "head", vocabulary_size=280, hidden_size=32)
    assert head.config.taps == (1, 3, 6) and head.config.draft_vocab_size == 64
    assert "curve.html" in capsys.readouterr().err
    assert "plotly.min.js" in (run / "curve.html").read_text() and (run / "plotly.min.js").is_file()

    assert main(made.train("run", "--draft-vocab", "64")) == 1
    assert "--resume" in capsys.readouterr().err
    assert main(made.train("run", "--draft-vocab", "64", "--taps", "1,3,6", "--epochs", "2", "--resume")) == 0
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(steps) and len(set(steps)) > 1
    capsys.readouterr()

    used = ["--target", str(made.target), "--head", str(run / "head"), "--device", "cpu", "--max-new-tokens", "8"]
    assert main(["generate", "count to 3", *used, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["speculation"]["active"] is True

    assert main(made.train("longer", "--start-from", str(run / "head"), "--tokens", "200", "--loss", "lk")) == 0
    longer = load_head(made.folder / "longer" / "head", vocabulary_size=280, hidden_size=32)
    assert longer.config == head.config and torch.equal(longer.d2t, head.d2t)


def test_accelerate_launches_the_same_command(made: Workplace) -> None:
    """Two CPU processes over gloo; each counts the answer tokens of both."""
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    command = [*launch, "-m", "eagle3_demo", *made.train("launched", "--draft-vocab", "64")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stderr.count("The best head is in") == 1
    last = json.loads((made.folder / "launched" / "metrics.jsonl").read_text().splitlines()[-1])
    trained = sum(int(s.answer.sum()) for shard in read_corpus(made.folder / "corpus").training for s in shard)
    assert last["token_passes"] >= trained


@pytest.mark.parametrize(("number", "workers"), [(signal.SIGINT, "1"), (signal.SIGTERM, "2")])
def test_an_interrupted_corpus_goes_on_without_loss_or_repetition(
    number: signal.Signals, workers: str, made: Workplace, tmp_path: Path
) -> None:
    lines = [json.dumps({"turns": [f"count to {n}", "go on"]}) for n in range(3000)]
    (made.folder / "many.jsonl").write_text("\n".join(lines), encoding="utf-8")
    options = ["--workers", workers, "--max-new-tokens", "4", "--tokens"]
    command = made.corpus(f"corpus{workers}", *options, "1000000", prompts="many.jsonl")
    running = subprocess.Popen(
        [sys.executable, "-m", "eagle3_demo", *command],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Where the tests themselves run in the background, Ctrl+C would be ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    out = made.folder / f"corpus{workers}"
    deadline = time.monotonic() + 400
    while not list(out.glob("shard-*")) and running.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    running.send_signal(number)
    _, errors = running.communicate(timeout=400)
    assert running.returncode == 130, errors
    assert "the same command goes on" in errors
    prompts = made.prompts_of(f"corpus{workers}")
    assert 512 <= len(prompts) < 3000 and len(set(prompts)) == len(prompts)
    assert not [path for path in out.iterdir() if path.name.startswith(".")]
    before = read_corpus(out)
    written = sum(int(s.answer.sum()) for g in (before.training, before.held_out) for shard in g for s in shard)
    assert main(made.corpus(f"corpus{workers}", *options, str(written + 100), prompts="many.jsonl")) == 0
    assert len(set(made.prompts_of(f"corpus{workers}"))) > len(prompts)


def test_a_workers_failure_ends_the_run_with_its_reason(capsys: pytest.CaptureFixture[str], made: Workplace) -> None:
    shutil.copytree(made.folder / "corpus", made.folder / "copy")
    assert main(made.corpus("copy", "--workers", "2", "--seed", "9")) == 1
    error = capsys.readouterr().err
    assert "worker" in error and "another settings (seed)" in error


def test_a_corpus_of_another_target_is_refused(capsys: pytest.CaptureFixture[str], made: Workplace) -> None:
    """Targets are told apart by their weights and tokenizer: a renamed folder is the same, a fine-tune is not."""
    renamed, tuned, spoken = (made.folder / name for name in ("renamed", "tuned", "spoken"))
    shutil.copytree(made.target, renamed)
    other = tiny_model()
    other.model.layers[2].mlp.up_proj.weight.data.mul_(1.5)
    for folder, model, template in ((tuned, other, None), (spoken, tiny_model(), "{{ messages[0]['content'] }}")):
        tokenizer = byte_level_tokenizer()
        tokenizer.chat_template = template or tokenizer.chat_template
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    for folder, reason in ((tuned, "weights_sha256"), (spoken, "template_sha256")):
        assert main(made.train("never", "--target", str(folder))) == 1
        error = capsys.readouterr().err
        assert str(made.target) in error and reason in error
    assert not (made.folder / "never").exists()
    assert main(made.train("renamed-run", "--target", str(renamed), "--draft-vocab", "64", "--tokens", "50")) == 0


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--draft-vocab", "281"], "--draft-vocab 280 or less"),
        (["--draft-vocab", "64", "--taps", "1,2"], "three layers"),
        (["--start-from", "nowhere"], "no head"),
        (["--start-from", "nowhere", "--taps", "1,2,3"], "leave the others out"),
        (["--draft-vocab", "64", "--resume"], "nothing to resume"),
        (["--corpus", "nowhere"], "not a corpus"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_any_work(
    more: list[str], reason: str, capsys: pytest.CaptureFixture[str], made: Workplace
) -> None:
    assert main(made.train("refused", *more)) == 1
    assert reason in capsys.readouterr().err
    assert not (made.folder / "refused" / "features").exists()


def test_a_head_of_another_target_is_not_trained_on(capsys: pytest.CaptureFixture[str], made: Workplace) -> None:
    save_head(tiny_head(vocabulary=300), made.folder / "foreign")
    assert main(made.train("refused", "--start-from", str(made.folder / "foreign"))) == 1
    assert "vocabulary of 300" in capsys.readouterr().err


def test_a_corpus_is_resumed_only_where_there_is_one(capsys: pytest.CaptureFixture[str], made: Workplace) -> None:
    assert main(made.corpus("nowhere", "--resume")) == 1
    assert "nothing to resume" in capsys.readouterr().err
    (made.folder / "empty.jsonl").write_text("")
    assert main(made.corpus("nowhere", prompts="empty.jsonl")) == 1
    assert "no prompts" in capsys.readouterr().err
    assert not (made.folder / "nowhere").exists()
