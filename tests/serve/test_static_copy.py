"""The page as a directory: what is in it, and what a page may not do to it."""

import json
import re

import pytest
from made_records import add_play, made_run

from scalerl.cli import main
from scalerl.serve.app import static_files
from scalerl.serve.page_script import joined


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    root = tmp_path_factory.mktemp("copy")
    add_play(made_run(root / "runs" / "first", n=12, steps=40))
    assert main(["serve", str(root / "runs"), "--export", str(root / "out")]) == 0
    return root / "out"


def answers(copy):
    found = {}
    for path in (copy / "data").glob("*.js"):
        for line in path.read_text().splitlines():
            match = re.fullmatch(r"scalerlAnswer\((\".*?\"),(.*)\);", line)
            if match:
                found[json.loads(match[1])] = json.loads(match[2])
    return found


def index(copy):
    return json.loads((copy / "data" / "index.js").read_text().partition(" = ")[2].rstrip(";\n"))


def test_a_copy_has_what_the_page_asks(copy):
    found = answers(copy)
    (run,) = found["/api/runs"]
    key = run["id"]
    expected = {f"fit {key}", f"/api/runs/{key}", f"/api/runs/{key}/inside", "/api/about",
                f"/api/v1/runs/{key}/steps", f"/api/v1/runs/{key}/health"}  # fmt: skip
    assert expected <= found.keys() and found[f"fit {key}"]["forecast"]["at"]
    listed = index(copy)
    assert listed["files"].keys() == found.keys() and listed["left_out"]
    assert all((copy / "data" / name).is_file() for name in listed["files"].values())


def test_a_copy_needs_nothing_from_elsewhere(copy):
    page = (copy / "index.html").read_text()
    assert "/static/" not in page and 'type="module"' not in page
    for name in re.findall(r'(?:src|href)="([^"#:]+)"', page):
        assert (copy / name).is_file(), name
    assert "script-src 'self' file:;" in page
    script = (copy / "page.js").read_text()
    assert not re.search(r"^(import|export)\b", script, re.M)
    assert str(copy.parent) not in "".join(p.read_text() for p in copy.rglob("*.js"))


def test_every_module_of_the_page_can_be_joined():
    files = static_files()
    script = joined(files, "app.js")
    assert script.count('modules["') >= 12


def test_a_module_that_is_imported_later_is_there_before_the_first_runs():
    entry = b'import { one } from "./b.js";\nimport("./c.js").then(({ two }) => two(one));\n'
    later = b'import { one } from "./b.js";\nexport const two = (n) => n + one;\n'
    script = joined({"a.js": entry, "b.js": b"export const one = 1;\n", "c.js": later}, "a.js")
    order = [script.index(f'modules["{name}"] =') for name in ("b.js", "c.js", "a.js")]
    assert order == sorted(order)
    assert 'Promise.resolve(modules["c.js"]).then' in script and "import(" not in script


@pytest.mark.parametrize(
    "text, says",
    [
        (b'import { no } from "./b.js";\n', "imports"),
        (b'import { one } from "./a.js";\n', "import one another: a.js -> a.js"),
        (b'import * as b from "./b.js";\n', "written in a way"),
        (b"export default 3;\n", "written in a way"),
    ],
)
def test_a_module_that_cannot_be_joined_is_refused(text, says):
    with pytest.raises(ValueError, match=says):
        joined({"a.js": text, "b.js": b"export const one = 1;\n"}, "a.js")


def test_bad_input_gets_one_line(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    empty, out = str(tmp_path / "empty"), str(tmp_path / "out")
    assert main(["serve", empty, "--export", out]) == 2
    assert "nothing to copy" in capsys.readouterr().err
    assert main(["serve", empty, "--export", out, "--port", "80"]) == 2
    assert "--port is for a server" in capsys.readouterr().err
