"""A study: its directory, its members, what they have shown so far.

from scalerl import Study

study = Study("out/loo", ["scalerl", "tiny"], leave_one_out=True, seeds=3, steps=100)
study.run()                 # or on the command line: scalerl study out/loo
for row in study.table():
    print(row.variant, row.estimates["A"], row.words)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalerl.curves.compare import Pair
from scalerl.curves.fit import MIN_POINTS, fit
from scalerl.errors import InputError
from scalerl.files import write_atomic
from scalerl.machine import cores
from scalerl.recipe import Recipe, diff
from scalerl.recipe.diff import shown
from scalerl.renamed import renamed_attributes
from scalerl.runs import load_run
from scalerl.runs.lines import EvalLine, StepLine
from scalerl.runs.live_run import file_stamp
from scalerl.runs.reader import read_step_health
from scalerl.runs.record import Run
from scalerl.runs.store import RunStore
from scalerl.study.columns import Column, Group, columns_in
from scalerl.study.definition import (
    FILE,
    StudyDefinition,
    definition_from,
    read_definition,
    variants,
)
from scalerl.study.dose_results import ForceResults, force_results, outcome
from scalerl.study.force import FILE as FORCE_FILE
from scalerl.study.force import ForceDefinition, find_force, with_force
from scalerl.study.knobs import Knob, knob_map
from scalerl.study.members import (
    LIMITS,
    Limits,
    Member,
    MemberProgress,
    MemberStatus,
    budget_weight,
    check_same,
    limits_of,
    portions,
    read_progress,
)
from scalerl.study.models import GeneratedModel, make_all, models_of, relocated
from scalerl.study.race import RaceCache, Racer, RaceState, race
from scalerl.study.rates import Expected, Rate, expected
from scalerl.study.stability import Stability, assess_lines, half_check
from scalerl.study.table import MemberFinding, StudyArms, StudyRow, rows

if TYPE_CHECKING:
    from scalerl.study.running import StudyEnd, StudyListener

#: Directories of a study.
RECIPES = "recipes"
RUNS = "runs"
LOGS = "logs"
NOT_BEGUN = Stability("undecided", why="not begun")


@dataclass(frozen=True, slots=True)
class StudyResults:
    """What the runs of a study show so far."""

    #: One per variant, in the order of the members.
    rows: list[StudyRow]
    #: What each variant does to the ceiling and to the speed.
    knobs: list[Knob]
    #: Standard deviation of a ceiling between seeds of one recipe, in pass rate.
    seed_sd: float

    @staticmethod
    def columns(group: Group) -> tuple[Column, ...]:
        """The columns of one of its tables."""
        return columns_in(group)


class Study:
    """A set of recipes × seeds in a directory: an existing study, or a new one.

    >>> study = Study("out/my-first", ["scalerl", "tiny"], leave_one_out=True, seeds=3)
    >>> len(study.members), study.reference, study.differs("loo-plan")
    (27, 'scalerl+tiny', {'advantage.normalisation': 'prompt'})

    path      its directory; alone, an existing study
    recipe    presets, files and KEY=VALUE, as `train` takes them
    more      the other keys of a study file: leave_one_out, forward, recipes, sweep, axis,
              learning_rate, variants, seeds, steps, screen, race. An existing study may be extended
              by seeds, steps and variants.

    Nothing is written before `write`, `run` or `commands`.
    """

    def __init__(self, path: str | Path, recipe: Sequence[str] | str = (), **more: Any) -> None:
        words: Sequence[str] = (recipe,) if isinstance(recipe, str) else tuple(recipe)
        # As TOML has them, which knows no tuples.
        given = {k: list(v) if isinstance(v, tuple) else v for k, v in more.items()}
        self.path = Path(path)
        if "=" in str(path):
            raise InputError(f"{path}: a study's directory has no = in its name: choose another")
        there = (self.path / FILE).exists()
        if given.get("forces") is not None and (words or not there):
            words, given = with_force(words, given)
        if not there and not words:
            raise InputError(
                f"{path} holds no study: name a recipe, as in `scalerl study {path} scalerl tiny "
                "--leave-one-out`"
            )
        known, old = self._read() if there else ({}, None)
        if words or old is None:
            self.definition = definition_from({"recipe": list(words), **given}, "study")
            self.variants = variants(self.definition, home=self.path)
        else:
            self.definition = _grown(old, given)
            self.variants = _more(old, self.definition, known, self.path)
        if old is not None:
            _check_growth(self.path, old, self.definition, known, self.variants)
        self.members = tuple(self._members())
        #: Target score, to which the table gives the compute; None: a share of the ceiling.
        self.target: float | None = None
        #: Rates of trial runs, for the hours of a study of which no member has run.
        self.measured: Sequence[tuple[Recipe, Rate]] = ()
        self._cached: dict[str, tuple[tuple[Any, ...], MemberFinding]] = {}
        self._race_cache = RaceCache()
        for member in self.members:
            check_same(member)

    def _read(self) -> tuple[dict[str, Recipe], StudyDefinition]:
        asked = read_definition(self.path / FILE)
        known = {n: relocated(Recipe.load(self._file(n)), self.path) for n in asked.variants}
        return known, asked

    def _file(self, variant: str) -> Path:
        return self.path / RECIPES / f"{variant}.toml"

    def _members(self) -> list[Member]:
        made = []
        for variant, recipe in self.variants.items():
            for seed in range(recipe.seed, recipe.seed + self.definition.seeds_of(variant)):
                name = f"{variant}-s{seed}"
                made.append(
                    Member(
                        name, variant, seed, recipe.replace({"seed": seed}),
                        self._file(variant), self.path / RUNS / name,
                    )
                )  # fmt: skip
        return made

    @property
    def force(self) -> ForceDefinition | None:
        """The force that it is about, if it is a study of one."""
        asked = self.definition.forces
        return find_force(asked, self.path) if asked else None

    @property
    def reference(self) -> str:
        """The variant that all others are compared with."""
        return next(iter(self.variants))

    def write(self) -> None:
        """Write the definition into the directory: recipes first, so that `study.toml` names no
        recipe without a file."""
        try:
            for folder in (RECIPES, RUNS, LOGS):
                (self.path / folder).mkdir(parents=True, exist_ok=True)
            for name, recipe in self.variants.items():
                _replace(self._file(name), recipe.to_toml())
            if self.force is not None:
                _replace(self.path / FORCE_FILE, self.force.text)
            asked = replace(self.definition, variants=tuple(self.variants))
            _replace(self.path / FILE, asked.to_toml())
        except OSError as error:
            raise InputError(f"{self.path}: {error.strerror}: choose another directory") from None

    # -- what is to be done -----------------------------------------------------------------------

    def differs(self, variant: str) -> dict[str, Any]:
        """Key → value of what a variant does differently from the reference."""
        found = diff(self.variants[self.reference], self.variants[variant])
        return {d.path: d.b for d in found}

    def screening(self, member: Member) -> Limits:
        """The limits that a member is screened with; those of its whole budget where the study does
        not screen."""
        return limits_of(member.recipe, self.definition.screen)

    def progress(self) -> dict[str, MemberProgress]:
        """How far each member has come."""
        return {member.name: read_progress(member) for member in self.members}

    def status(self, member: Member, now: MemberProgress) -> MemberStatus:
        """The status of a member in one word (`members.STATUS` says what each means)."""
        if now.locked:
            return "running"
        if now.reached(limits_of(member.recipe)):
            return "done"
        if now.failed is not None:
            return "failed"
        if self.definition.race and now.limits is not None and now.reached(now.limits):
            return "unstable" if self.finding(member).stability.state == "unstable" else "paused"
        if now.reached(self.screening(member)):
            # A study that was extended has members past their screening that were not judged by it.
            unstable = self.finding(member).stability.state == "unstable"
            return "unstable" if unstable else "screened"
        return "begun" if now.begun else "waiting"

    def expected(self, jobs: int | None = None) -> Expected:
        """Compute and hours that are left, from measured rates."""
        jobs = jobs or self.jobs()
        return expected(self.members, self.progress(), self.path, jobs, self.measured)

    def jobs(self) -> int:
        """Members that run at once by default: as many as the machine has cores for their
        processes; one at a time where they use other devices."""
        heaviest = max(_processes(recipe) for recipe in self.variants.values())
        return max(cores() // heaviest, 1) if heaviest else 1

    def validations(self) -> int | None:
        """Points of each curve, where the budget is in steps."""
        recipe = self.variants[self.reference]
        steps, every = recipe.budget.steps, recipe.validation.every
        # One before the first step, and one at the end wherever that is.
        return None if steps is None else 1 + -(-steps // every)

    def commands(self) -> list[str]:
        """A `scalerl train` line for every member that is not at its end. Models that the study
        makes are made first."""
        self.write()
        make_all(self.models())
        now = self.progress()
        return [
            member.line(limits_of(member.recipe))
            for member in self.members
            if not now[member.name].reached(limits_of(member.recipe))
        ]

    def run(self, jobs: int | None = None, listener: StudyListener | None = None) -> StudyEnd:
        """Run all members that are not done; needs `scalerl[train]`."""
        from scalerl.study.running import StudyListener, run_members

        self.write()
        listener = listener or StudyListener()
        make_all(self.models(), listener.say)
        return run_members(self, jobs or self.jobs(), listener)

    def models(self) -> list[GeneratedModel]:
        """Models that the study makes before it runs: other sizes of the tiny one."""
        return models_of(self.variants.values(), self.path)

    # -- what it has shown ------------------------------------------------------------------------

    def finding(self, member: Member) -> MemberFinding:
        """Stability and fit of a member, computed again only when its record has grown."""
        # Sizes and times of its files say whether there is anything new.
        stamps = tuple(file_stamp(member.path / kind.FILE) for kind in (EvalLine, StepLine))
        kept_stamps, kept = self._cached.get(member.name, (None, None))
        if kept is None or kept_stamps != stamps:
            kept = _assess(member)
            # With the stamps from before the reading: lines that came during it are read next time.
            self._cached[member.name] = stamps, kept
        return kept

    def evals(self, member: Member) -> Sequence[EvalLine]:
        """The validations of a member."""
        return self.finding(member).evals

    def results(self) -> StudyResults:
        """The rows of the table and the knob map, computed together."""
        found = self._findings()
        arms = StudyArms.from_findings(found)
        pairs = arms.pairs(self.reference)
        table = rows(found, self.reference, arms, pairs, self.target)
        return StudyResults(table, self._knobs(pairs), arms.seed_sd)

    def table(self) -> list[StudyRow]:
        """One row per variant."""
        return self.results().rows

    def knobs(self) -> list[Knob]:
        """What each variant does to the ceiling and to the speed: the knob map."""
        return self._knobs(StudyArms.from_findings(self._findings()).pairs(self.reference))

    def race(
        self, now: Mapping[str, MemberProgress] | None = None, closed: Collection[str] = ()
    ) -> RaceState:
        """What a race does next, and why; members in `closed` cannot get compute now."""
        now = now or self.progress()
        racers = [self._racer(each, now[each.member.name], closed) for each in self._findings()]
        return race(racers, self.reference, self._race_cache)

    def _racer(self, finding: MemberFinding, now: MemberProgress, closed: Collection[str]) -> Racer:
        """A member as the race sees it; `closed` ones are running or have failed."""
        member = finding.member
        first, chunk = portions(member.recipe, self.definition.screen)
        return Racer(
            member.name, member.variant, finding.fit, now.share(member.recipe),
            first, chunk, budget_weight(member.recipe),
            unstable=finding.stability.state == "unstable", closed=member.name in closed,
        )  # fmt: skip

    def _knobs(self, pairs: Mapping[str, Pair]) -> list[Knob]:
        return knob_map(pairs, self.reference, {name: self.differs(name) for name in pairs})

    def _findings(self) -> list[MemberFinding]:
        return [
            self.finding(m) if (m.path / "evals.jsonl").exists() else MemberFinding(m, NOT_BEGUN)
            for m in self.members
        ]

    def force_results(self) -> ForceResults:
        """What the runs of a force show: every line over its doses, with verdicts."""
        force = self.force
        if force is None:
            raise InputError(
                f"{self.path} is no study of a force: `scalerl study DIR --forces NAME`"
            )
        return force_results(force, self._findings())

    def force_unstable(self) -> dict[str, Stability]:
        """The runs of a force that became unstable, with the rule."""
        found = {f.member.name: outcome(f) for f in self._findings()}
        return {name: said for name, said in found.items() if said.state == "unstable"}

    def plot(self, path: str | None = None) -> Any:
        """Draw the knob map; returns the matplotlib figure (and saves it if a path is given)."""
        from scalerl.report.knob_map import plot_knob_map

        return plot_knob_map(self.knobs(), self.reference, path)

    def to_dict(
        self, end: StudyEnd | None = None, results: StudyResults | None = None
    ) -> dict[str, Any]:
        """Members, table and knobs (of a force its results instead), as `scalerl study --json`
        prints them; `end` has the errors of members without a record, `results` are those of
        `results()` where they are known."""
        now, failed = self.progress(), {} if end is None else end.failed
        members = [
            self._member_dict(member, now[member.name], failed.get(member.name))
            for member in self.members
        ]
        if self.force is not None and results is None:
            # Its dozens of cells are not compared as variants, unless that is asked for.
            return {"members": members, "force": self.force_results().to_dict()}
        shown = self.results() if results is None else results
        raced = {"race": self.race(now, failed).to_dict()} if self.definition.race else {}
        return {
            "members": members,
            **raced,
            "seed_sd": shown.seed_sd,
            "table": [row.to_dict() for row in shown.rows],
            "knobs": [knob.to_dict() for knob in shown.knobs],
        }

    def dry_run_dict(self, jobs: int | None = None) -> dict[str, Any]:
        """Members, compute and hours, as `scalerl study --dry-run --json` prints them."""
        left = self.expected(jobs)
        return {
            "reference": self.reference,
            "members": [self._about(member) for member in self.members],
            "screening": dict(self.screening(self.members[0])),
            "budget": limits_of(self.members[0].recipe),
            "validations": self.validations(),
            "race": self.definition.race,
            "models": [
                {"path": str(m.path), "there": m.there, "minutes": m.minutes} for m in self.models()
            ],
            "jobs": left.jobs,
            "compute": left.to_dict(),
            "hours": left.hours,
        }

    def _about(self, member: Member) -> dict[str, Any]:
        return {
            "name": member.name,
            "variant": member.variant,
            "seed": member.seed,
            "recipe": str(member.file),
            "differs": self.differs(member.variant),
        }

    def _member_dict(
        self, member: Member, now: MemberProgress, failed: str | None
    ) -> dict[str, Any]:
        finding = self.finding(member)
        return {
            **self._about(member),
            "path": str(member.path),
            "status": self.status(member, now) if failed is None else "failed",
            "why": failed or now.failed,
            "step": now.step,
            "pass_rate": now.pass_rate,
            "stability": finding.stability.to_dict(),
            "fit": None if finding.fit is None else finding.fit.to_dict(),
            "half": None if finding.half is None else finding.half.to_dict(),
        }

    def _repr_html_(self) -> str:
        from scalerl.report.notebook import study_html

        return study_html(repr(self), self.results())

    __getattr__ = renamed_attributes(
        {"plan": "definition", "judged": "finding", "plan_dict": "dry_run_dict"}
    )

    def __repr__(self) -> str:
        count = f"{len(self.variants)} variants × {self.definition.seeds} seeds"
        return f"Study({str(self.path)!r}: {count}, reference {self.reference})"


def _assess(member: Member) -> MemberFinding:
    if not member.path.is_dir():
        return MemberFinding(member, NOT_BEGUN)
    run = _read_curve(member)
    half = None if run is None else half_check(run)
    evals = RunStore(member.path, resume=True).read(EvalLine)
    steps, critical = read_step_health(member.path), member.recipe.length.truncation_critical
    stability = assess_lines(steps, evals, critical, half)
    fitted = None
    if run is not None and len(run) >= MIN_POINTS and stability.state != "unstable":
        try:
            fitted = fit(run)
        except InputError as error:
            stability = Stability("undecided", why=f"cannot be fitted: {error}")
    return MemberFinding(member, stability, fitted, half, run, evals)


def _read_curve(member: Member) -> Run | None:
    """The validations of a member as a curve; None where there are none yet."""
    try:
        return load_run(str(member.path)).replace(name=member.name, group=member.variant)
    except InputError:
        return None


def _grown(old: StudyDefinition, given: Mapping[str, Any]) -> StudyDefinition:
    """The definition of an existing study, extended by what is given."""
    more = definition_from({"recipe": [], **given}, "study")
    changes = {key: getattr(more, key) for key in given}
    for key in ("sweep", "axis"):
        changes[key] = {**getattr(old, key), **getattr(more, key)}
    if "seeds" in given:
        changes["more_seeds"] = {n: max(c, more.seeds) for n, c in old.more_seeds.items()}
    changes["recipes"] = tuple(dict.fromkeys((*old.recipes, *more.recipes)))
    return replace(old, **{**changes, "variants": more.variants})


def _more(
    old: StudyDefinition, new: StudyDefinition, known: Mapping[str, Recipe], home: Path
) -> dict[str, Recipe]:
    """The variants that are there, and those that only the extended definition makes: variants that
    were left out when the study started do not come back."""
    found = variants(new, known, home, old.recipes)
    if new.variants:
        return found
    before = variants(replace(old, variants=()), known, home, old.recipes)
    return {n: r for n, r in found.items() if n in known or n not in before}


def _check_growth(
    path: Path,
    old: StudyDefinition,
    new: StudyDefinition,
    known: Mapping[str, Recipe],
    asked: Mapping[str, Recipe],
) -> None:
    """A study may grow by seeds, steps and variants; anything else is another study."""
    start = f"{path} holds another study: "
    go_on = f"; `scalerl study {path}` goes on with what is there, or choose another directory"
    if new.forces != old.forces:
        was = f"of the force {old.forces}" if old.forces else "of no force"
        raise InputError(f"{start}it is {was}{go_on}")
    if new.seeds < old.seeds:
        raise InputError(f"{start}it has {old.seeds} seeds, not {new.seeds}{go_on}")
    if known and next(iter(known)) != next(iter(asked)):
        was, now = next(iter(known)), next(iter(asked))
        raise InputError(f"{start}its reference is {was}, not {now}{go_on}")
    for name, recipe in known.items():
        if name not in asked:
            raise InputError(f"{start}its variant {name} is not asked for{go_on}")
        for d in diff(recipe, asked[name]):
            section, _, key = d.path.partition(".")
            # More budget extends a run; everything else would make it another.
            if section == "budget" and key in LIMITS and (d.b is None or (d.a or 0) < d.b):
                continue
            raise InputError(f"{start}{d.path} of {name} is {shown(d.a)}, not {shown(d.b)}{go_on}")


def _processes(recipe: Recipe) -> int:
    """Busy processes of a member on this machine's cores; 0 where it uses other devices."""
    where = recipe.placement
    if where.device == "cuda" or where.backend not in ("local", "inline"):
        return 0
    return 1 if where.backend == "inline" else where.devices


def _replace(path: Path, text: str) -> None:
    """A whole new file in the place of the old one."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    write_atomic(path, text)
