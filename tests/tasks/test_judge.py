"""The task `judge`, at a real server over HTTP; and `scalerl host`, which serves a real model."""

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from scalerl.errors import InputError
from scalerl.hosting.reward_model import RewardModel
from scalerl.hosting.server import ModelServer
from scalerl.models.load import load_tokenizer
from scalerl.tasks import make_task
from scalerl.tasks.judge import Judge

ENV = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


class OneReply(BaseHTTPRequestHandler):
    """A chat model that always writes the text of its server."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append((self.headers.get("authorization"), asked))
        if self.server.busy:
            self.server.busy -= 1
            self.send_error(503)
            return
        body = {"choices": [{"message": {"content": self.server.text}}],
                "usage": {"prompt_tokens": 11, "completion_tokens": 3}}  # fmt: skip
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    found = ThreadingHTTPServer(("127.0.0.1", 0), OneReply)
    found.text, found.asked, found.busy = "Fine. Score: 0.75", [], 0
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield found
    found.shutdown()
    found.server_close()


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    lines = [{"prompt": f"What is {i}+1? {{answer}}", "answer": str(i + 1)} for i in range(100)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def task_at(server, rows, **options):
    address = f"http://127.0.0.1:{server.server_address[1]}/v1"
    return make_task("judge", str(rows), options={"address": address, **options})


def test_the_score_is_the_judges_number_and_its_cost_is_reported(server, rows, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "secret")
    task = task_at(server, rows, key="JUDGE_KEY").for_checking()
    prompt = task_at(server, rows).prompts()[0]
    found = task.check(prompt, "<think>hm</think> {question}")
    assert (found.correct, found.reward, found.why) == (True, 0.75, "the judge gave 0.75")
    assert dict(found.metrics) == {
        "judge/read_tokens": 11, "judge/written_tokens": 3, "judge/device_seconds": 0,
    }  # fmt: skip
    [(key, asked)] = server.asked
    text = asked["messages"][0]["content"]
    assert key == "Bearer secret" and asked["temperature"] == 0
    assert "What is 0+1? {answer}" in text and "scored:\n{question}" in text and "hm" not in text


def test_what_is_no_score_stays_unscored_in_one_line(server, rows):
    task = task_at(server, rows)
    prompt = task.prompts()[0]
    server.text = "I do not know."
    found = task.check(prompt, "1")
    assert found.correct is None and found.why == "the judge gave no score: I do not know."
    assert found.metrics, "it has cost something all the same"
    server.text, server.busy = "Score: 0.2, no: score: 1", 2
    assert task.check(prompt, "1").reward == 1.0, "the last one, at the third attempt"
    server.busy = 9
    assert "503" in task.check(prompt, "1").why
    away = make_task("judge", str(rows), options={"address": "http://127.0.0.1:9/v1"})
    found = away.check(prompt, "1")
    assert found.correct is None and found.why.startswith("the judge at http://127.0.0.1:9/v1: ")
    assert task.check(prompt, "<think>open").correct is False


def test_wrong_options_are_one_line(rows):
    for options, why in (
        ({}, "give the address of a chat model"),
        ({"address": "http://x/v1", "key": "NO_SUCH_KEY"}, "is not set"),
        ({"address": "http://x/v1", "instruction": "Score this"}, "has no {answer}"),
        ({"address": "http://x/v1", "pattern": "("}, "pattern"),
    ):
        with pytest.raises(InputError, match=why):
            make_task("judge", str(rows), options=options)


# -- a judge of our own ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hosted():
    """The tiny model behind `scalerl host`; its address."""
    command = [sys.executable, "-m", "scalerl", "host", "tiny", "--port", "0", "--columns", "96"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENV)
    line = process.stdout.readline()
    assert " as judge at http://127.0.0.1:" in line, line
    yield line.split()[-1]
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def test_a_hosted_model_answers_many_at_once_and_reports_its_devices(hosted):
    judge, found = Judge(hosted, "judge", max_tokens=20, temperature=1.0), []
    threads = [
        threading.Thread(target=lambda i=i: found.append(judge.ask(("user", f"{i}+1="))))
        for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(found) == 8
    for text, cost in found:
        assert text and 0 < cost["judge/written_tokens"] <= 20 and cost["judge/read_tokens"] > 2
        assert cost["judge/device_seconds"] > 0
    with urllib.request.urlopen(f"{hosted}/models") as reply:
        assert json.loads(reply.read())["data"][0]["id"] == "judge"


@pytest.mark.parametrize(
    "body, why",
    [(b"{}", "messages"), (b"[", "Expecting"), (b'{"messages": [], "stream": true}', "stream"),
     (json.dumps({"messages": [{"role": "user", "content": "1+" * 200}]}).encode(), "tokens")],
)  # fmt: skip
def test_a_hosted_model_refuses_in_one_line(hosted, body, why):
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(urllib.request.Request(f"{hosted}/chat/completions", body))
    assert error.value.code == 400
    assert why in json.loads(error.value.read())["error"]["message"]


def test_a_reward_model_scores_a_conversation(tmp_path, rows):
    import torch
    from transformers import AutoModelForSequenceClassification, LlamaConfig

    from scalerl.models.load import model_path

    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=44, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
                         num_attention_heads=1, num_key_value_heads=1, num_labels=1,
                         pad_token_id=0)  # fmt: skip
    model = AutoModelForSequenceClassification.from_config(config).eval()
    path = tmp_path / "reward"
    model.save_pretrained(path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (path / name).write_text((Path(model_path("tiny")) / name).read_text())
    server = ModelServer(RewardModel("rm", str(path), dtype="float32", device="cpu", columns=64),
                         "127.0.0.1", 0)  # fmt: skip
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        task = task_at(server, rows, conversation=True)
        prompt = replace(task.prompts()[0], question="1+2=")
        found = task.check(prompt, "3")
    finally:
        server.shutdown()
        server.server_close()
    ids = load_tokenizer(str(path))("1+2=\n3")["input_ids"]
    with torch.no_grad():
        expected = float(model(torch.tensor([ids])).logits[0, 0])
    assert found.reward == pytest.approx(expected, abs=1e-5), found.why
    assert dict(found.metrics)["judge/device_seconds"] > 0


def test_other_machines_need_a_key(capsys):
    from scalerl.cli import main

    assert main(["host", "tiny", "--host", "0.0.0.0"]) == 2
    assert "SCALERL_HOST_KEY" in capsys.readouterr().err


def test_a_run_is_scored_by_a_hosted_model_and_its_ledger_has_the_cost(hosted, tmp_path):
    rows = tmp_path / "rows.jsonl"
    lines = [{"prompt": f"{i % 90 + 1}+{i // 90 + 1}="} for i in range(400)]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = (f'{{address = "{hosted}", instruction = "{{answer}}+1=", '
               'pattern = "(\\\\d)", max_tokens = 12}')  # fmt: skip
    command = [sys.executable, "-m", "scalerl", "train", "scalerl", "tiny", "task.name=judge",
               f"task.dataset={rows}", f"task.options={options}", "batch.prompts=4",
               "batch.generations=4", "validation.prompts=8", "validation.k=2",
               "validation.also_temperatures=[]", "filter.empty_steps=0", "--steps", "2", "--out",
               str(tmp_path / "run")]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, env=ENV, timeout=600)
    assert done.returncode == 0, done.stderr
    ledger = json.loads((tmp_path / "run/steps.jsonl").read_text().splitlines()[-1])["ledger"]
    assert ledger["judge_read_tokens"] > 8 * 2 * 3 and ledger["judge_written_tokens"] > 0
    assert ledger["spent"]["judge"] > 0
    spent = ledger["spent"]
    parts = ("generate", "hand_over", "train", "generate_wait", "train_wait")
    assert sum(spent[p] for p in parts) == pytest.approx(ledger["device_seconds"])
