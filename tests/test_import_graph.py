"""Dependencies point one way, and the forecasting half is light."""

import ast
import resource
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "scalerl"

#: What each room imports from the others, exactly: what is not here is refused, and what nobody
#: needs any more goes. A room within a room (`models/tiny`) has a line of its own.
ALLOWED = {
    "errors": set(),
    "files": set(),
    "machine": set(),
    "registry": {"errors"},
    "streams": set(),
    "runs": {"streams", "registry", "files", "errors"},
    "curves": {"runs", "registry", "errors"},
    "report": {"curves", "recipe", "runs", "tasks", "files", "errors"},
    "recipe": {"files", "errors"},
    "algorithm": {"recipe", "registry", "errors"},
    "models": {"errors"},
    "models/tiny": {"models", "tasks", "errors"},
    "tasks": {"registry", "errors"},
    "weights": {"registry", "errors"},
    "engine": {"models", "algorithm", "registry", "errors"},
    "trainer": {"models", "algorithm", "registry", "errors"},
    "pipeline": {
        "engine",
        "trainer",
        "weights",
        "models",
        "algorithm",
        "tasks",
        "recipe",
        "runs",
        "files",
        "errors",
    },
    "placement": {
        "pipeline",
        "engine",
        "trainer",
        "weights",
        "tasks",
        "streams",
        "registry",
        "machine",
        "errors",
    },
    "notebook": {"runs"},
    "training": {
        "placement",
        "pipeline",
        "curves",
        "recipe",
        "runs",
        "notebook",
        "streams",
        "errors",
    },
    "callbacks": {"curves", "runs", "errors"},
    "study": {"pipeline", "curves", "recipe", "runs", "streams", "machine", "files", "errors"},
    "evaluation": {
        "placement",
        "pipeline",
        "engine",
        "models",
        "tasks",
        "recipe",
        "runs",
        "errors",
    },
    "serve": {"study", "report", "curves", "recipe", "runs", "files", "errors"},
    "cli": {
        "serve",
        "study",
        "training",
        "evaluation",
        "placement",
        "pipeline",
        "algorithm",
        "models",
        "report",
        "curves",
        "runs",
        "recipe",
        "streams",
        "errors",
    },
}
#: What a room may import further, for types alone: who listens to a run is told of both, and the
#: page of a study is made from one.
TYPES_ONLY = {
    "report": {"study"},
    "runs": {"recipe", "curves"},
    "notebook": {"recipe", "curves"},
    "tasks": {"recipe"},
}
#: `curves` results have a `.plot()`, and for notebooks a `_repr_html_()`, that reach into `report`
#: when called: the one import that points the other way, and only inside those methods.
SHOWN_BY = {"curves": {"report"}, "study": {"report"}}
#: All that the loop knows of those it is given.
PROTOCOLS = {"scalerl.engine.interface", "scalerl.trainer.interface", "scalerl.weights.interface"}
#: Words of a place that the loop must not know it is in.
PLACE_WORDS = [
    "Connection",
    "getppid",
    "getpid",
    "shared_memory",
    "SharedWeights",
    "monotonic",
    "multiprocessing",
    "threading",
]
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
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports name the whole path"
            names = [node.module]
            if node.module and node.module.count(".") <= 1:  # `from scalerl.engine import local`
                names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            if name.startswith("scalerl.") and name != "scalerl.__version__":
                yield name, id(node) in shows, id(node) in types


def room_of(path):
    """The innermost room that has a line in ALLOWED, or the outermost."""
    inside = path.relative_to(SRC).with_suffix("")
    known = [p.as_posix() for p in inside.parents if p.as_posix() in ALLOWED]
    return known[0] if known else inside.parts[0]


def crossings():
    """(file, its room, the room it imports from, is for types only) for all files."""
    for path in SRC.rglob("*.py"):
        room = room_of(path)
        if room not in ALLOWED:
            assert room in {"__init__", "__main__"}, f"{path} is in no known room"
            continue
        for name, shows, for_types in imports(path):
            target = name.split(".")[1]
            if target != room and not (shows and target in SHOWN_BY.get(room, ())):
                yield path.relative_to(SRC), room, target, for_types


def test_dependencies_point_one_way():
    wrong = [
        f"{path} imports {target}"
        for path, room, target, for_types in crossings()
        if target not in ALLOWED[room] and not (for_types and target in TYPES_ONLY.get(room, ()))
    ]
    assert not wrong


def test_no_room_is_allowed_more_than_it_needs():
    needed = {(room, target) for _, room, target, for_types in crossings() if not for_types}
    assert {(room, t) for room, targets in ALLOWED.items() for t in targets} <= needed


def test_rooms_form_no_circle():
    left = {room: {t for t in targets if t != room} for room, targets in ALLOWED.items()}
    while free := [room for room, targets in left.items() if not targets & left.keys()]:
        for room in free:
            del left[room]
    assert not left


def test_the_loop_is_given_its_parts_and_knows_only_their_protocols():
    given = ("engine", "trainer", "weights", "placement")
    for path in (SRC / "pipeline").rglob("*.py"):
        for name, _, _ in imports(path):
            if name.split(".")[1] in given:
                module = ".".join(name.split(".")[:3])
                assert module in PROTOCOLS, f"{path.name} imports {name}"


@pytest.mark.parametrize("word", PLACE_WORDS)
def test_the_loop_does_not_know_where_it_is(word):
    for path in (SRC / "pipeline").rglob("*.py"):
        assert word not in path.read_text(encoding="utf-8"), f"{path.name} speaks of {word}"


def test_a_class_name_exists_once():
    homes = defaultdict(list)
    for path in SRC.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(path.relative_to(SRC).as_posix())
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_the_algorithm_knows_no_model():
    """It is equations on tensors: nothing of it needs Transformers."""
    for path in (SRC / "algorithm").rglob("*.py"):
        assert "transformers" not in path.read_text(encoding="utf-8"), path


def python(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
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


def test_a_checker_starts_without_torch():
    """Those that a verifier took with it are replaced: a new one must be there at once."""
    code = "import sys, scalerl.placement.checker_process; print('torch' in sys.modules)"
    assert python(code).strip() == "False"


def test_importing_the_package_does_not_even_load_numpy():
    assert python("import sys, scalerl; print('numpy' in sys.modules)").strip() == "False"


@pytest.mark.parametrize("arguments", [["-c", "import scalerl"], ["-m", "scalerl", "--help"]])
def test_start_is_instant(arguments):
    """Under 0.3 s of CPU time (other tests run beside this one), the best of a few tries."""
    best = float("inf")
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], capture_output=True, check=True, timeout=600)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        best = min(best, spent)
    assert best < 0.3
