"""Dependencies point one way, and the forecasting half is light."""

import ast
import resource
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "scalerl"

#: What each room may import from the others. `curves` results have a `.plot()`, and for notebooks a
#: `_repr_html_()`, that reach into `report` when called: the one import that points the other way,
#: and only inside those methods.
#: A room within a room (`models/tiny`) has a line of its own.
ALLOWED = {
    "runs": {"errors"},
    "registry": {"errors"},
    "curves": {"runs", "registry", "errors"},
    "report": {"curves", "runs", "errors"},
    "recipe": {"errors"},
    "algorithm": {"recipe", "errors"},
    "models": {"errors"},
    "models/tiny": {"models", "tasks", "errors"},
    "tasks": {"algorithm", "recipe", "errors"},
    "engine": {"models", "algorithm", "recipe", "errors"},
    "trainer": {"models", "algorithm", "recipe", "errors"},
    "pipeline": {"engine", "trainer", "models", "algorithm", "tasks", "recipe", "runs", "errors"},
    "cli": {
        "training",
        "pipeline",
        "algorithm",
        "models",
        "tasks",
        "report",
        "curves",
        "runs",
        "recipe",
        "errors",
    },
    "callbacks": {"curves", "runs", "errors"},
    "training": {"pipeline", "curves", "recipe", "runs", "errors"},
    "errors": set(),
}
#: What a room may import further, for types alone: who listens to a run is told of both.
TYPES_ONLY = {"runs": {"recipe", "curves"}}
HEAVY = ["torch", "transformers", "pandas", "polars", "pyarrow", "tensorboard", "wandb"]


def imports(path):
    """(module, is inside a method that shows a result, is for types only) for every import of
    ours in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    shows = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name in ("plot", "_repr_html_")
        for inner in ast.walk(node)
    }
    types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module]
            if node.module == "scalerl":
                names = [f"scalerl.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            if name.startswith("scalerl."):
                yield name.split(".")[1], id(node) in shows, id(node) in types


def room_of(path):
    """The innermost room that has a line in ALLOWED, or the outermost."""
    inside = path.relative_to(SRC).with_suffix("")
    known = [p.as_posix() for p in inside.parents if p.as_posix() in ALLOWED]
    return known[0] if known else inside.parts[0]


def test_dependencies_point_one_way():
    wrong = []
    for path in SRC.rglob("*.py"):
        room = room_of(path)
        if room not in ALLOWED:
            assert room in {"__init__", "__main__"}, f"{path} is in no known room"
            continue
        for target, in_show, for_types in imports(path):
            if target == room or target in ALLOWED[room] or target == "__version__":
                continue
            if room == "curves" and target == "report" and in_show:
                continue
            if for_types and target in TYPES_ONLY.get(room, ()):
                continue
            wrong.append(f"{path.relative_to(SRC)} imports {target}")
    assert not wrong


def test_the_algorithm_knows_no_model():
    """It is equations on tensors: nothing of it needs Transformers."""
    for path in (SRC / "algorithm").rglob("*.py"):
        assert "transformers" not in path.read_text(encoding="utf-8"), path


def python(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout


def test_the_forecasting_half_never_imports_anything_heavy():
    code = (
        "import sys, scalerl\n"
        "from scalerl import backtest, compare, fit, forecast, load_runs\n"
        "import scalerl.cli, scalerl.report.terminal, scalerl.report.html\n"
        "runs = load_runs('example:paper-8b', 'example:paper-moe')\n"
        "compare([fit(r) for r in runs]); forecast(runs[0])\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    assert python(code).strip() == "[]"


def test_importing_the_package_does_not_even_load_numpy():
    assert python("import sys, scalerl; print('numpy' in sys.modules)").strip() == "False"


@pytest.mark.parametrize("arguments", [["-c", "import scalerl"], ["-m", "scalerl", "--help"]])
def test_start_is_instant(arguments):
    """Under 0.3 s of CPU time (other tests run beside this one), the best of a few tries."""
    best = float("inf")
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], capture_output=True, check=True, timeout=60)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        best = min(best, spent)
    assert best < 0.3
