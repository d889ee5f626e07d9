"""scalerl export and upload; the hub is a server on loopback that speaks what its client calls."""

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from scalerl.cli import main
from scalerl.models.load import model_path
from scalerl.pipeline import checkpoints
from scalerl.recipe import Recipe
from scalerl.runs.lines import EvalLine
from scalerl.runs.store import RunStore

TOKEN = "hf_a-secret-of-the-test"
STATE = ("run.json", "trainer.json", "optimiser.safetensors", "groups.npz", "groups.json")


def make_run(out, points=12):
    """A record with a rising curve, and checkpoints of steps 20 and 30 as a trainer writes them."""
    store = RunStore(out)
    recipe = Recipe.load("scalerl", "tiny", overrides=["name=first"])
    store.write_recipe(recipe.to_toml())
    for i in range(points):
        compute = {"flops": 1e9 * (1 + i), "steps": 5 * i, "device_hours": 0.1 * i}
        line = {"step": 5 * i, "version": 5 * i, "pass_rate": 0.1 + 0.5 * i / (i + 4),
                "stderr": 0.01, "n_prompts": 210, "k": 4, "compute": compute}  # fmt: skip
        store.append(EvalLine.from_dict(line))

    def fill(folder):
        for path in Path(model_path("tiny")).iterdir():
            shutil.copy(path, folder)
        for name in STATE:
            (folder / name).write_text("{}")

    for step in (20, 30):
        with checkpoints.writing(out, step, healthy=step == 20) as folder:
            fill(folder)
    return out


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run")


# -- export ---------------------------------------------------------------------------------------


def test_an_export_is_a_model_without_the_state_of_training(run, tmp_path, capsys):
    assert main(["export", str(run), "--to", str(tmp_path / "model")]) == 0
    assert "the model of step 30" in capsys.readouterr().out
    names = {p.name for p in (tmp_path / "model").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md", "recipe.toml",
            "evals.jsonl", "curve.png"} <= names  # fmt: skip
    assert not names & {*STATE, "manifest.json"}
    from scalerl.models.load import load_model

    assert load_model(str(tmp_path / "model"), "float32", "cpu").num_parameters() == 137_024


def test_the_card_has_recipe_curve_forecast_and_version(run, tmp_path, capsys):
    import scalerl

    assert main(["export", str(run), "--to", str(tmp_path / "model"), "--step", "healthy"]) == 0
    card = (tmp_path / "model" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert "# first, step 20" in card and f"scalerl {scalerl.__version__}" in card
    assert "| pass rate on held-out prompts | 0.350 ± 0.010 at step 20 (210 prompts) |" in card
    assert "](curve.png)" in card and "the next doubling" in card
    toml = card.split("```toml\n")[1].split("```")[0]
    assert toml.strip() == Recipe.load(run / "recipe.toml").to_toml().strip()


def test_a_run_of_few_points_has_a_card_without_a_forecast(tmp_path, capsys):
    few = make_run(tmp_path / "few", points=2)
    assert main(["export", str(few), "--to", str(tmp_path / "model")]) == 0
    assert "too few validations for a fit" in (tmp_path / "model" / "README.md").read_text()
    assert not (tmp_path / "model" / "curve.png").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["{run}", "--to", "{run}"], "exists and is not empty"),
        (["{run}/nothing", "--to", "{run}/x"], "holds no run"),
        (["{run}", "--to", "{run}/x", "--step", "7"], "no whole checkpoint of step 7"),
    ],
)
def test_what_cannot_be_exported_is_one_line(run, capsys, words, says):
    before = sorted(run.rglob("*"))
    assert main(["export", *(word.format(run=run) for word in words)]) == 2
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1 and sorted(run.rglob("*")) == before


def test_a_damaged_checkpoint_is_passed_over(run, tmp_path, capsys):
    (run / "checkpoints" / "step_30" / "config.json").write_text("{}")
    assert main(["export", str(run), "--to", str(tmp_path / "model")]) == 0
    assert "the model of step 20" in capsys.readouterr().out


# -- upload ---------------------------------------------------------------------------------------


class Hub(BaseHTTPRequestHandler):
    """Repositories, LFS objects and commits of a hub, in memory of the server."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.asked.append(self.path)
        if self.headers.get("authorization") != f"Bearer {TOKEN}":
            return self.answer(401, {"error": "Invalid credentials in Authorization header"})
        if self.path.endswith("/commit/main"):
            return self.commit([json.loads(line) for line in body.splitlines()])
        given = json.loads(body)
        if self.path == "/api/repos/create":
            name = f"{given['organization']}/{given['name']}"
            if name in self.server.repos:
                return self.answer(409, {"url": f"{self.server.url}/{name}", "error": "exists"})
            hidden = given.get("visibility") == "private" or bool(given.get("private"))
            self.server.repos[name] = hidden
            return self.answer(200, {"url": f"{self.server.url}/{name}"})
        if self.path == "/api/validate-yaml":
            return self.answer(200, {"errors": [], "warnings": []})
        if "/preupload/" in self.path:
            files = [
                {"path": f["path"], "shouldIgnore": False,
                 "uploadMode": "lfs" if f["path"].endswith(".safetensors") else "regular"}
                for f in given["files"]
            ]  # fmt: skip
            return self.answer(200, {"files": files})
        if self.path.endswith("/info/lfs/objects/batch"):
            objects = [
                {**o, "actions": {"upload": {"href": f"{self.server.url}/lfs/{o['oid']}"}}}
                for o in given["objects"]
            ]
            return self.answer(200, {"transfer": "basic", "objects": objects})
        return self.answer(404, {"error": "no such thing"})

    def do_GET(self):
        name = self.path.removeprefix("/api/models/").partition("?")[0]
        if self.headers.get("authorization") != f"Bearer {TOKEN}":
            return self.answer(401, {"error": "Invalid credentials in Authorization header"})
        return self.answer(200, {"id": name, "private": self.server.repos[name], "siblings": []})

    def do_PUT(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        oid = self.path.rpartition("/")[2]
        assert hashlib.sha256(body).hexdigest() == oid
        self.server.objects[oid] = body
        self.answer(200, {})

    def commit(self, lines):
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                self.server.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.server.files[value["path"]] = self.server.objects[value["oid"]]
        name = self.path.removeprefix("/api/models/").removesuffix("/commit/main")
        url = f"{self.server.url}/{name}/commit/{'1' * 40}"
        self.answer(200, {"success": True, "commitUrl": url, "commitOid": "1" * 40})

    def answer(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.url = f"http://127.0.0.1:{server.server_port}"
    server.repos, server.objects, server.files, server.asked = {}, {}, {}, []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def upload(tmp_path, endpoint, *words, token=TOKEN):
    """As a user would, with a home of its own: no token of the machine is found."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
    env |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1",
            "HOME": str(tmp_path), "NO_PROXY": "127.0.0.1", "TMPDIR": str(tmp_path)}  # fmt: skip
    if token:
        env["HF_TOKEN"] = token
    done = subprocess.run(
        [sys.executable, "-m", "scalerl", "upload", *map(str, words)],
        capture_output=True, text=True, timeout=300, env=env,
    )  # fmt: skip
    assert TOKEN not in done.stdout + done.stderr
    assert not [p for p in tmp_path.iterdir() if p.name.startswith("scalerl-upload-")]
    return done


def test_an_upload_is_private_and_whole_and_the_token_is_nowhere(run, hub, tmp_path):
    pytest.importorskip("huggingface_hub")
    done = upload(tmp_path, hub.url, run, "me/first")
    assert done.returncode == 0, done.stderr
    assert f"uploaded step 30 to {hub.url}/me/first" in done.stdout
    assert hub.repos == {"me/first": True}
    assert main(["export", str(run), "--to", str(tmp_path / "model")]) == 0
    wanted = {p.name: p.read_bytes() for p in (tmp_path / "model").iterdir()}
    assert hub.files.keys() == wanted.keys()
    assert {n for n in wanted if hub.files[n] != wanted[n]} <= {"curve.png"}  # drawn anew
    assert not [n for n, content in hub.files.items() if TOKEN.encode() in content]
    again = upload(tmp_path, hub.url, run, "me/first", "--step", "20")
    assert again.returncode == 0 and "uploaded step 20" in again.stdout, again.stderr


def test_public_is_asked_for(run, hub, tmp_path):
    pytest.importorskip("huggingface_hub")
    assert upload(tmp_path, hub.url, run, "me/open", "--public").returncode == 0
    assert hub.repos == {"me/open": False}
    hub.files.clear()
    done = upload(tmp_path, hub.url, run, "me/open")
    assert done.returncode == 2 and "me/open is public: give --public" in done.stderr
    assert hub.files == {}, "nothing was uploaded to it"


def test_what_goes_wrong_is_one_line(run, hub, tmp_path):
    pytest.importorskip("huggingface_hub")
    wrong = upload(tmp_path, hub.url, run, "me/first", token="hf_another")
    nobody = upload(tmp_path, hub.url, run, "me/first", token=None)
    unnamed = upload(tmp_path, hub.url, run, "first")
    closed = upload(tmp_path, "http://127.0.0.1:9", run, "me/first")
    for done, says in (
        (wrong, "me/first was not uploaded: "),
        (nobody, "no token for the hub: run `hf auth login`, or set HF_TOKEN"),
        (unnamed, "name the repository as OWNER/NAME"),
        (closed, "me/first was not uploaded: "),
    ):
        lines = [line for line in done.stderr.splitlines() if line.startswith("scalerl: ")]
        assert done.returncode == 2 and says in lines[0] and done.stderr.count("\n") == 1, done
    assert hub.files == {} and hub.repos == {}


def test_without_the_extra_it_says_what_to_install(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert main(["upload", str(run), "me/first"]) == 2
    assert "pip install 'scalerl[hub]'" in capsys.readouterr().err
