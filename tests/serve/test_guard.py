"""Who may ask, and what nobody gets: each is a request that fails."""

import asyncio
import json
import random
import socket
import string

import pytest
from made_records import add_play, made_run
from made_runs import HOSTILE
from serving import SRC, Page

from scalerl.cli import main
from scalerl.errors import InputError
from scalerl.serve.guard import COOKIE, read_token
from scalerl.serve.server import serve

TOKEN = "a-token-of-some-length_123"
SECRET = "not-for-the-page"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    path = tmp_path_factory.mktemp("guard")
    (path / "secret.csv").write_text(f"step,val_acc,{SECRET}\n1,0.1,0\n2,0.2,0\n")
    (path / "secret.json").write_text(json.dumps({"step": 300, "answers": [{"answer": SECRET}]}))
    secret = {"step": 3, "correct": True, "why": SECRET}
    (path / "secret.jsonl").write_text(json.dumps(secret) + "\n")
    made_run(path / "runs" / "first", n=12, steps=40)
    return path / "runs"


@pytest.fixture(scope="module")
def page(runs):
    return Page(runs)


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e/app.py",
        "/static/%2e%2e%2fapp.py",
        "/static/..%5capp.py",
        "/static/....//app.py",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/..%252f..%252fapp.py",
        "/static/%c0%ae%c0%ae/app.py",
        "/static/index.html%00.py",
        "/static/../../../../../../etc/passwd",
        "/../../etc/passwd",
        "/..%2f..%2fetc%2fpasswd",
        "//etc/passwd",
        "/api/runs/../../secret.csv",
        "/api/runs/..%2f..%2fsecret.csv",
        "/api/runs/%2e%2e%2fsecret.csv",
        "/api/runs//etc/passwd",
        "/api/studies/..%2f..",
        "/api/export/..%2f..%2fsecret.csv?run=x",
        "/api/runs/first/inside?step=../../../secret",
        "/file:///etc/passwd",
    ],
)
def test_no_spelling_of_a_path_leads_anywhere(page, path):
    answer = page.ask(path)
    assert answer.status in (400, 404), path
    assert SECRET not in answer.text and "root:" not in answer.text
    assert "import" not in answer.text


def test_a_step_that_is_a_path_is_refused(page):
    key = page.runs()["first"]["id"]
    for step in ("../../../secret", "-1", "1e3", "٣", "%00"):
        assert page.ask(f"/api/runs/{key}/inside?step={step}").status == 400


def test_links_that_lead_out_are_not_read(runs, tmp_path):
    outside = runs.parent
    inside = tmp_path / "runs"
    real = add_play(made_run(inside / "real", n=8, steps=20))
    (real / "episodes" / "training.jsonl").unlink()
    (real / "episodes" / "training.jsonl").symlink_to(outside / "secret.jsonl")
    (inside / "log.csv").symlink_to(outside / "secret.csv")
    (inside / "folder").symlink_to(outside / "runs")
    (inside / "loop").symlink_to(inside)
    linked = made_run(inside / "linked", n=8, steps=20)
    (linked / "evals.jsonl").unlink()
    (linked / "evals.jsonl").symlink_to(outside / "runs" / "first" / "evals.jsonl")
    answers = real / "evals"
    last = sorted(answers.iterdir())[-1]
    last.unlink()
    last.symlink_to(outside / "secret.json")
    tensorboard = inside / "tb"
    tensorboard.mkdir()
    (tensorboard / "x.tfevents.1").symlink_to(outside / "secret.csv")
    (inside / "study").mkdir()
    (inside / "study" / "study.toml").symlink_to(outside / "secret.csv")
    page = Page(inside)
    found = page.runs()
    assert {n for n, r in found.items() if r["points"]} == {"real"}
    assert "leads out" in found["linked"]["problem"]
    texts = [page.ask("/api/runs").text, page.ask("/api/studies").text]
    for run in found.values():
        texts += [page.ask(f"/api/runs/{run['id']}").text]
        texts += [page.ask(f"/api/runs/{run['id']}/inside?step=20").text]
    assert SECRET not in "".join(texts)


def test_a_link_within_the_directory_is_followed_once(tmp_path):
    made_run(tmp_path / "real", n=8, steps=20)
    (tmp_path / "again").symlink_to(tmp_path / "real")
    assert len(Page(tmp_path).runs()) == 1


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example", "",
     "127.0.0.1@evil.example", "localhost:8000/x", "0.0.0.0", "10.0.0.1", "[::2]", "a b", None],
)  # fmt: skip
def test_another_host_is_refused(page, host):
    answer = page.ask("/api/runs", headers={"host": host})
    assert answer.status == 403 and "first" not in answer.text


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:9", "[::1]:8000", "LOCALHOST:1"])
def test_this_machine_by_its_names_is_answered(page, host):
    assert page.ask("/api/runs", headers={"host": host}).status == 200


def test_elsewhere_goes_by_address_or_by_the_machines_name_alone(runs):
    page = Page(runs, host="0.0.0.0", token=TOKEN)
    mine = {"cookie": f"{COOKIE}={TOKEN}"}
    assert page.ask("/api/runs", headers=mine | {"host": "10.1.2.3:8000"}).status == 200
    assert page.ask("/api/runs", headers=mine | {"host": "rebound.example"}).status == 403


@pytest.mark.parametrize(
    "cookie",
    [None, "", f"{COOKIE}=", f"{COOKIE}=wrong", f"{COOKIE}={TOKEN[:-1]}", f"{COOKIE}={TOKEN}x",
     f"other={TOKEN}", f"{COOKIE}={TOKEN.upper()}", "=;;=", f"{COOKIE}=é"],
)  # fmt: skip
def test_without_the_token_there_is_nothing(runs, cookie):
    page = Page(runs, token=TOKEN)
    for path in ("/", "/api/runs", "/api/events", "/api/about", "/api/export/data.csv?run=x"):
        answer = page.ask(path, headers={"cookie": cookie})
        assert answer.status == 401 and "first" not in answer.text
    assert page.ask("/api/fit", {"run": "x"}, headers={"cookie": cookie}).status == 401
    asked = page.ask("/", headers={"accept": "text/html", "cookie": cookie})
    assert asked.status == 303 and asked.headers["location"] == "/login"
    assert page.ask("/login").status == 200 and page.ask("/healthz").status == 200


def test_the_token_opens_the_page_by_a_cookie_that_no_script_reads(runs):
    page = Page(runs, token=TOKEN)
    assert page.ask("/api/login", {"token": "wrong"}).status == 401
    assert page.ask("/api/login", {"token": ["x"]}).status == 401
    for given in ("\ud800", TOKEN + "\udfff", "\0", "é" * 500, ""):
        assert page.ask("/api/login", {"token": given}).status == 401
    answer = page.ask("/api/login", {"token": TOKEN})
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower()
    assert page.ask("/api/runs", headers={"cookie": cookie.partition(";")[0]}).status == 200


def test_to_listen_elsewhere_takes_a_token(tmp_path):
    with pytest.raises(InputError, match="--token-file"):
        serve([tmp_path], host="0.0.0.0")
    for text in ("", "short", "has spaces in it, many", "line\nline of more than sixteen"):
        (tmp_path / "token").write_text(text)
        with pytest.raises(InputError, match="a token is one line"):
            read_token(tmp_path / "token")
    (tmp_path / "token").write_text(TOKEN + "\n")
    assert read_token(tmp_path / "token") == TOKEN


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "https://127.0.0.1:8000"},
        {"origin": "ftp://127.0.0.1:8000"},
        {"origin": "127.0.0.1:8000"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
    ],
)
def test_other_pages_get_nothing(page, headers):
    for path, body in (("/api/runs", None), ("/api/events", None), ("/api/fit", {"run": "x"})):
        answer = page.ask(path, body, headers=headers)
        assert answer.status == 403 and "first" not in answer.text


def test_behind_a_proxy_its_origin_is_answered_and_no_other(runs):
    page = Page(runs, token=TOKEN, origin="https://runs.example.org")
    login = {"host": "runs.example.org", "origin": "https://runs.example.org"}
    answer = page.ask("/api/login", {"token": TOKEN}, headers=login)
    cookie = answer.headers["set-cookie"]
    assert "secure" in cookie.lower()
    mine = {"cookie": cookie.partition(";")[0]}
    for headers in (
        login,
        {"host": "127.0.0.1:8000", "origin": "https://runs.example.org"},  # a proxy may rewrite it
        {"host": "127.0.0.1:8000", "origin": "http://127.0.0.1:8000"},
    ):
        assert page.ask("/api/runs", headers=mine | headers).status == 200, headers
    for headers in (
        {"host": "runs.example.org", "origin": "https://runs.example.org.evil.example"},
        {"host": "127.0.0.1:8000", "origin": "https://127.0.0.1:8000"},
        {"host": "other.example.org"},
    ):
        assert page.ask("/api/runs", headers=mine | headers).status == 403, headers
    plain = page.ask("/api/login", {"token": TOKEN}, headers={"origin": "http://127.0.0.1:8000"})
    assert "secure" not in plain.headers["set-cookie"].lower()


def test_an_origin_takes_a_token_and_is_an_origin(tmp_path):
    with pytest.raises(InputError, match="--token-file"):
        serve([tmp_path], origin="https://runs.example.org")
    (tmp_path / "token").write_text(TOKEN)
    for bad in ("runs.example.org", "https://", "https://a.org/runs", "https://a b", "*"):
        with pytest.raises(InputError, match="--origin"):
            serve([tmp_path], token_file=tmp_path / "token", origin=bad)


def test_no_answer_may_be_read_by_another_page(page):
    answer = page.ask("/api/runs", headers={"origin": "http://127.0.0.1:8000"})
    assert answer.status == 200
    assert not any(name.startswith("access-control") for name in answer.headers)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert answer.headers["x-content-type-options"] == "nosniff"
    asked = page.ask("/api/fit", method="OPTIONS", headers={"origin": "http://127.0.0.1:8000"})
    assert asked.status == 405 and "access-control-allow-origin" not in asked.headers


def test_the_page_itself_has_nothing_that_its_policy_refuses():
    for file in (SRC / "scalerl/serve/static").glob("*.html"):
        text = file.read_text()
        assert " style=" not in text and " on" not in text.replace(" one ", " ").replace(
            " only ", " "
        )
        assert "<script>" not in text and "<style" not in text


def test_script_in_every_field_is_text(tmp_path):
    evil = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'"
    run = made_run(
        tmp_path / "r<script>alert(3)</script>", n=12, steps=40, answer=evil, warning=evil, set=evil
    )
    recipe = run / "recipe.toml"
    recipe.write_text(
        recipe.read_text().replace('name = "scalerl+tiny"', f"name = {json.dumps(evil)}")
    )
    (run / "status.json").write_text(json.dumps({"step": 1, "waits_for": evil, "time": 4e9}))
    with (run / "events.jsonl").open("a") as file:
        file.write(json.dumps({"step": 41, "event": "failed", "why": evil}) + "\n")
    rows = "".join(f"{json.dumps(name).replace(chr(92) + chr(34), chr(34) * 2)},{i},0.{i}\n"
                   for name in HOSTILE[:4] for i in range(1, 9))  # fmt: skip
    (tmp_path / "log.csv").write_text("run,step,val_acc\n" + rows)
    page = Page(tmp_path)
    for entry in page.catalogue.entries.values():
        for path in ("", "/inside"):
            answer = page.ask(f"/api/runs/{entry.id}{path}")
            assert answer.headers["content-type"] == "application/json"
            found = answer.json()
            for part in (found.get("html"), found.get("answers")):
                assert not part or ("<script" not in part and "<img" not in part)
    others = [e.id for e in page.catalogue.entries.values()]
    svg = page.ask(f"/api/export/figure.svg?run={others[0]}").text
    assert "<script" not in svg and "onerror=" not in svg.replace("onerror=alert(2)&gt;", "")


def test_no_request_writes_anything(runs, page):
    def state():
        return {str(p): (p.stat().st_size, p.stat().st_mtime_ns) for p in sorted(runs.rglob("*"))}

    before = state()
    key = page.runs()["first"]["id"]
    for path in ("", "/inside"):
        page.ask(f"/api/runs/{key}{path}")
    page.ask("/api/fit", {"run": key, "quick": True})
    for file in ("figure.svg", "data.csv", "data.json"):
        assert page.ask(f"/api/export/{file}?run={key}").status == 200
    page.refresh()
    assert state() == before


def test_ten_thousand_fuzzed_requests_get_a_plain_answer(page, caplog):
    rng = random.Random(0)
    key = page.runs()["first"]["id"]
    words = ["/", "api", "runs", "fit", key, "..", "%2e", "static", "app.js", "studies", "events2",
             "export", "figure.png", "data.csv", "inside", "diff", "compare", "login", "\x00", "é",
             "%", "%zz", "?", "&", "=", "run", "step", "with", "axis", "from", "NaN", "1e999",
             "-1", "null", "[]", "{}", "'", '"', "<script>", "A" * 3000]  # fmt: skip
    values = [None, True, 0, -1, 1e308, "1e999", "NaN", float("inf"), [], {}, [[]], "x" * 999, "é",
              [1, 2], [None, None], ["a", "b"], {"a": 1}, key, [key], [key] * 20]  # fmt: skip
    fields = ["run", "id", "runs", "window", "from", "to", "axis", "budget", "target", "price",
              "value", "level", "known", "quick", "token", "x"]  # fmt: skip

    def one():
        path = "/" + "/".join(rng.choices(words, k=rng.randint(0, 5)))
        if rng.random() < 0.5:
            path = rng.choice(["/api/fit", "/api/compare", "/api/login", "/api/runs",
                               f"/api/runs/{key}/inside?step=", f"/api/runs/{key}/diff?with=",
                               "/api/export/figure.svg?run=", "/static/"])  # fmt: skip
            path += rng.choice(["", "", *words])
        method = rng.choice(["GET", "POST", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "X"])
        body = {rng.choice(fields): rng.choice(values) for _ in range(rng.randint(0, 4))}
        raw = None
        if rng.random() < 0.2:
            raw = bytes(rng.getrandbits(8) for _ in range(rng.randint(1, 60)))
        headers = {}
        if rng.random() < 0.2:
            junk = "".join(rng.choices(string.printable[:94], k=rng.randint(0, 30)))
            headers[rng.choice(["host", "origin", "cookie", "content-type", "accept"])] = junk
        # What a number of its own would cost a fit is tried elsewhere.
        if path == "/api/fit" and body.get("run") == key and method == "POST" and raw is None:
            body["window"] = 1
        return path, body if method == "POST" else None, method, headers, raw

    async def all_of_them():
        statuses = {}
        for _ in range(10_000):
            answer = await page.asked(*one())
            statuses[answer.status] = statuses.get(answer.status, 0) + 1
            assert answer.status < 500, answer.text
            assert "Traceback" not in answer.text and "File " not in answer.text
        return statuses

    statuses = asyncio.run(all_of_them())
    assert sum(statuses.values()) == 10_000 and {200, 400, 404, 405} <= set(statuses)
    assert not caplog.records


def test_the_command_refuses_bad_input_in_one_line(tmp_path, capsys):
    for arguments, says in (
        ([str(tmp_path / "nowhere")], "no such file or directory"),
        ([str(tmp_path), "--host", "0.0.0.0"], "--token-file"),
        ([str(tmp_path), "--host", "127.0.0.1", "--token-file", "x"], "token"),
    ):
        assert main(["serve", *arguments]) == 2
        out, err = capsys.readouterr()
        assert says in err and not out and err.count("\n") == 1
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["serve", str(tmp_path), "--port", str(taken.getsockname()[1])]) == 2
        assert "cannot listen" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["serve", str(tmp_path), "--port", "99999"])


# -- programs, and pages of other origins ---------------------------------------------------------

OTHER = "https://dashboards.example.org"


@pytest.fixture(scope="module")
def shared(runs):
    return Page(runs, token=TOKEN, cors=(OTHER, "null"))


def bearer(token=TOKEN, **more):
    return {"authorization": f"Bearer {token}", **more}


def test_programs_send_the_token_in_a_header(shared):
    assert shared.ask("/api/v1/runs", headers=bearer()).status == 200
    for given in ("", "wrong", TOKEN + "x", "é"):
        refused = shared.ask("/api/v1/runs", headers=bearer(given))
        assert refused.status == 401 and refused.json() == {"error": "a token is needed"}
    basic = {"authorization": f"Basic {TOKEN}"}
    assert shared.ask("/api/v1/runs", headers=basic).status == 401
    # A wrong header is wrong, whatever the cookie.
    both = bearer("wrong", cookie=f"{COOKIE}={TOKEN}")
    assert shared.ask("/api/v1/runs", headers=both).status == 401


@pytest.mark.parametrize("origin", [OTHER, "null"])
def test_an_allowed_page_reads_the_api_with_the_token(shared, origin):
    elsewhere = {"origin": origin, "sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"}
    question = elsewhere | {"access-control-request-headers": "authorization"}
    answer = shared.ask("/api/v1/runs", method="OPTIONS", headers=question)
    assert answer.status == 204 and answer.headers["access-control-allow-origin"] == origin
    assert answer.headers["access-control-allow-headers"] == "authorization"
    assert "access-control-allow-credentials" not in answer.headers
    answer = shared.ask("/api/v1/runs", headers=bearer(**elsewhere))
    assert answer.status == 200 and answer.headers["access-control-allow-origin"] == origin
    assert "origin" in answer.headers["vary"].lower()


def test_an_allowed_page_gets_nothing_by_the_cookie_or_beside_the_api(shared):
    elsewhere = {"origin": OTHER, "sec-fetch-site": "cross-site"}
    cookie = {"cookie": f"{COOKIE}={TOKEN}"}
    assert shared.ask("/api/v1/runs", headers=elsewhere | cookie).status == 401
    for path in ("/api/runs", "/api/events", "/", "/static/app.js", "/api/v1/../runs"):
        assert shared.ask(path, headers=bearer(**elsewhere)).status in (403, 404)
    assert shared.ask("/api/fit", {"run": "x"}, headers=bearer(**elsewhere)).status == 403
    assert shared.ask("/api/v1/runs", method="POST", headers=bearer(**elsewhere)).status == 403


def test_other_origins_get_no_cors_headers(shared, page):
    for origin in ("https://evil.example", "https://dashboards.example.org.evil.example"):
        for method in ("GET", "OPTIONS"):
            answer = shared.ask("/api/v1/runs", method=method, headers=bearer(origin=origin))
            assert answer.status == 403 and "access-control-allow-origin" not in answer.headers
            assert answer.json() == {"error": "requests from other pages are refused"}
    # Without --cors there is no other page.
    answer = page.ask("/api/v1/runs", headers={"origin": "null"})
    assert answer.status == 403 and "access-control-allow-origin" not in answer.headers


def test_cors_takes_a_token_and_an_origin(tmp_path):
    with pytest.raises(InputError, match="--cors null lets another page read"):
        serve([tmp_path], cors=["null"])
    for wrong in ("*", "dashboards.example.org", "https://a.example/path", ""):
        with pytest.raises(InputError, match="--cors"):
            serve([tmp_path], cors=[wrong])
