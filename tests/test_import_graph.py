"""Dependencies point one way, and the forecasting half is light."""

import ast
import resource
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "scalerl"

#: Modules that every package may import: they hold plumbing and import one another only.
FLOOR = {
    "errors": set(),
    "files": set(),
    "machine": set(),
    "parquet": {"errors", "text"},
    "processes": set(),
    "registry": {"errors", "text"},
    "renamed": set(),
    "streams": set(),
    "text": set(),
}
#: What each package imports from the others, exactly: any other import is refused, and a line that
#: no file needs fails too. A package inside a package (`models/tiny`) has a line of its own.
ALLOWED = {
    "runs": set(),
    "curves": {"runs"},
    "report": {"curves", "recipe", "runs", "tasks"},
    "recipe": set(),
    "algorithm": {"recipe"},
    "models": set(),
    "models/tiny": {"environments", "models", "tasks"},
    "tasks": set(),
    "environments": {"tasks"},
    "weights": set(),
    "engine": {"algorithm", "models"},
    "trainer": {"algorithm", "models", "recipe"},
    "pipeline": {
        "algorithm",
        "engine",
        "environments",
        "models",
        "recipe",
        "runs",
        "tasks",
        "weights",
    },
    "placement": {"engine", "environments", "models", "pipeline", "tasks", "trainer", "weights"},
    "notebook": {"runs"},
    "training": {"curves", "notebook", "pipeline", "placement", "recipe", "runs"},
    "callbacks": {"curves", "runs"},
    "study": {"curves", "pipeline", "recipe", "runs"},
    "evaluation": {"models", "pipeline", "placement", "recipe", "runs", "tasks"},
    "hosting": {"algorithm", "engine", "models"},
    "serve": {"curves", "recipe", "report", "runs", "study"},
    "planner": {
        "algorithm",
        "curves",
        "engine",
        "models",
        "pipeline",
        "recipe",
        "runs",
        "study",
        "tasks",
        "trainer",
        "training",
        "weights",
    },
    "cli": {
        "hosting",
        "algorithm",
        "curves",
        "evaluation",
        "models",
        "pipeline",
        "placement",
        "planner",
        "recipe",
        "report",
        "runs",
        "serve",
        "study",
        "training",
    },
}
#: What a package may import besides, for type annotations only.
TYPES_ONLY = {
    "report": {"planner", "study"},
    "runs": {"recipe", "curves"},
    "notebook": {"recipe", "curves"},
    "pipeline": {"trainer"},
    "tasks": {"recipe"},
}
#: `curves` results have a `.plot()`, and for notebooks a `_repr_html_()`, that reach into `report`
#: when called: the one import that points the other way, and only inside those methods.
SHOWN_BY = {"curves": {"report"}, "planner": {"report"}, "study": {"report"}}
#: `tasks` makes environments for a recipe that names one, and `environments` extends `tasks`: what
#: the registry of tasks imports by its path, and only when a recipe asks for it.
MADE_LATER = {"tasks": {"environments"}}
#: The modules through which the loop knows the workers it is given.
PROTOCOLS = {"scalerl.engine.interface", "scalerl.trainer.interface", "scalerl.weights.interface"}
#: Words that would show that the loop knows in which placement it runs.
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


def package_of(path):
    """The innermost package that has a line in ALLOWED, or the outermost."""
    inside = path.relative_to(SRC).with_suffix("")
    known = [p.as_posix() for p in inside.parents if p.as_posix() in ALLOWED]
    return known[0] if known else inside.parts[0]


def crossings():
    """(file, its package, the package it imports from, is for types only) for all files."""
    for path in SRC.rglob("*.py"):
        package = package_of(path)
        if package not in ALLOWED | FLOOR:
            assert package in {"__init__", "__main__"}, f"{path} is in no known package"
            continue
        for name, shows, for_types in imports(path):
            target = name.split(".")[1]
            if target != package and not (shows and target in SHOWN_BY.get(package, ())):
                yield path.relative_to(SRC), package, target, for_types


def test_dependencies_point_one_way():
    wrong = [
        f"{path} imports {target}"
        for path, package, target, for_types in crossings()
        if target not in (FLOOR[package] if package in FLOOR else ALLOWED[package] | FLOOR.keys())
        and not (for_types and target in TYPES_ONLY.get(package, ()))
    ]
    assert not wrong


def test_no_package_is_allowed_more_than_it_needs():
    needed = {(package, target) for _, package, target, for_types in crossings() if not for_types}
    assert {
        (package, t) for package, targets in (ALLOWED | FLOOR).items() for t in targets
    } <= needed


def test_packages_form_no_circle():
    left = {
        package: {t for t in targets if t != package}
        for package, targets in (ALLOWED | FLOOR).items()
    }
    while free := [package for package, targets in left.items() if not targets & left.keys()]:
        for package in free:
            del left[package]
    assert not left


def test_tasks_that_are_made_later_are_there_and_are_named_nowhere_else():
    from scalerl.tasks.registry import LATER, TASKS

    assert {path.split(".")[1] for path in LATER.values()} == MADE_LATER["tasks"]
    assert all(callable(TASKS[path]) for path in LATER.values())
    naming = [
        p.name for p in (SRC / "tasks").rglob("*.py") if '"scalerl.env' in p.read_text("utf-8")
    ]
    assert naming == ["registry.py"]


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


def test_a_plan_is_read_and_shown_without_torch():
    """Only a simulation needs it, because it runs the loop."""
    code = (
        "import sys, scalerl.cli.plan\n"
        "from scalerl.planner import accelerators, calibrate, memory, outlook, pilot, plan, text\n"
        "print([m for m in ('torch', 'transformers', 'pandas') if m in sys.modules])"
    )
    assert python(code).strip() == "[]"


def test_a_checker_starts_without_torch():
    """Those that a verifier took with it are replaced: a new one must be there at once."""
    code = "import sys, scalerl.placement.environment_worker; print('torch' in sys.modules)"
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
