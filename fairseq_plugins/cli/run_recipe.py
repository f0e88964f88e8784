"""Systems of a recipe trained, decoded and compared: ``python -m fairseq_plugins.cli.run_recipe --help``."""

import argparse
import itertools
import os
import sys
from typing import List, Mapping, Optional

import fairseq_plugins  # noqa: F401  registers the architectures
from fairseq_plugins.command_line import TrainingCommand, add_beam, add_cpu, add_out, choose_device
from fairseq_plugins.data.text import is_binarised
from fairseq_plugins.evaluation.checkpoints import check_split, raw_reference
from fairseq_plugins.evaluation.decoding import Decoding, languages_among
from fairseq_plugins.evaluation.raw_text import subword_kind
from fairseq_plugins.fairseq_patches.generation import complete_languages
from fairseq_plugins.options import UserError, check_at_least_one, check_output_folder, data_folder, given_path
from fairseq_plugins.processes import Task, run_side_by_side
from fairseq_plugins.recipes import RECIPES, Recipe, find_recipe
from fairseq_plugins.recipes.training import PlannedTraining, TrainingPlan, check_not_stopped_by_the_clock
from fairseq_plugins.reports.comparison import Metric, PerplexityMetric, compare_runs, text_metric


class RunRecipe(TrainingCommand):
    """Makes the table of a recipe, from training to the picture."""

    name = "run_recipe"
    summary = "Train systems of a recipe with several seeds, decode, and compare them in one table."
    description = """\
Trains every system with every seed, one after the other, or --jobs of them at once, in DIR/SYSTEM-SEED, with a dash for
a colon; translators then decode the test set as the recipe's published figures were decoded.
What a system begins with, such as the base model of a gate, is trained before it, with the same seed; three models
have seeds 1 to 3 for seed 1, 4 to 6 for seed 2. What is finished is not done again, so that the same line goes on where
it was stopped, and more systems or seeds join those that are there; trainings that were begun with other flags are
refused. Of several at once the output is in DIR/SYSTEM-SEED/train.log alone; plot_learning_curves shows how they go.

Writes what compare_runs writes, by the metric of the recipe: table.md, runs.json and learning_curves.png. Flags that
this command does not know go to every fairseq-train after those of the recipe, and win."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.usage = (
            "%(prog)s RECIPE DATA --systems SYSTEM... [--seeds N...] --save-dir DIR [--out DIR] [options] "
            "[fairseq-train flags]"
        )
        parser.add_argument("recipe", metavar="RECIPE", help=", ".join(RECIPES))
        parser.add_argument("data", metavar="DATA", type=data_folder, help="directory that data-prep wrote")
        parser.add_argument(
            "--systems",
            nargs="+",
            action="extend",
            required=True,
            metavar="SYSTEM",
            help="rows of the recipe's table; train --list RECIPE prints them",
        )
        parser.add_argument(
            "--seeds",
            nargs="+",
            action="extend",
            type=int,
            metavar="N",
            help="every system is trained with each (default: 1)",
        )
        parser.add_argument(
            "--save-dir", type=given_path, required=True, metavar="DIR", help="directory for a folder of each training"
        )
        parser.add_argument(
            "--baseline",
            metavar="SYSTEM",
            help="the others are tested against it, sentence by sentence, for bleu and rouge (default: none)",
        )
        parser.add_argument(
            "--split",
            "--gen-subset",
            metavar="SPLIT",
            help="that translators decode (default: the recipe's, or test)",
        )
        add_beam(parser, default="the recipe's")
        parser.add_argument(
            "--jobs",
            type=int,
            default=1,
            metavar="N",
            help="trainings, each with its decoding, that run at once; on CPUs give each a core by OMP_NUM_THREADS=1 "
            "in the environment, and a shared GPU goes further under NVIDIA's multi-process service (default: 1)",
        )
        add_cpu(parser)
        add_out(parser, help="directory for the table (default: no table is made)", required=False)

    def run(self, args: argparse.Namespace) -> None:
        recipe = find_recipe(args.recipe)
        _settle_decoding(recipe, args)
        check_at_least_one(args.jobs, flag="--jobs")
        plan = _plan(recipe, args)
        metric = _metric(recipe, args)
        baseline = _baseline(recipe, args)
        for planned in plan.trainings:
            planned.training.check()
        compared = [plan.add(system, seed=seed) for system in dict.fromkeys(args.systems) for seed in _seeds(args)]
        decodings = {one.name: _decoding(one, recipe, args) for one in compared if recipe.compared_by != "perplexity"}
        if args.jobs > 1:
            _run_side_by_side(plan, decodings, args)
        for planned in plan.trainings:
            planned.training.run()
        for decoding in decodings.values():
            decoding.check()
            decoding.run()
        if args.out is None:
            return
        report = compare_runs(
            [(planned.label, planned.result) for planned in compared],
            metric,
            data=str(args.data),
            baseline=baseline,
            command=args.command_line,
        )
        print(report.write(args.out, name="table", figures="runs.json", picture="learning_curves.png"))
        print(f"written to {args.out}: table.md, runs.json, learning_curves.png")


def _settle_decoding(recipe: Recipe, args: argparse.Namespace) -> None:
    """Set split and beam to those of the recipe if none is given. They are an error if nothing is decoded."""
    if recipe.compared_by == "perplexity" and args.split:
        raise UserError(f"--split {args.split}: recipe {recipe.name} has no translators, leave it out")
    is_typed = args.beam is not None and str(args.beam) != os.environ.get("BEAM")
    if recipe.compared_by == "perplexity" and is_typed:
        raise UserError(f"--beam {args.beam}: recipe {recipe.name} has no translators, leave it out")
    args.split = args.split or recipe.decoding.split
    args.beam = recipe.decoding.beam if args.beam is None else args.beam
    if recipe.compared_by != "perplexity":
        check_at_least_one(args.beam, flag="--beam")


def _baseline(recipe: Recipe, args: argparse.Namespace) -> Optional[str]:
    """Label of the baseline in the table."""
    if args.baseline is None:
        return None
    label = recipe.label(args.baseline)
    if args.baseline not in args.systems or recipe.compared_by == "perplexity":
        raise UserError(
            f"--baseline {args.baseline}: give one of --systems, of a recipe that is compared by BLEU or ROUGE"
        )
    if args.out is None:
        raise UserError(f"--baseline {args.baseline}: give --out for the table that tests against it")
    return label


def _seeds(args: argparse.Namespace) -> List[int]:
    return list(dict.fromkeys(args.seeds or [1]))


def _plan(recipe: Recipe, args: argparse.Namespace) -> TrainingPlan:
    """Plan all systems with the first seed, then with the next."""
    check_output_folder(args.save_dir)
    if any(word.partition("=")[0] == "--seed" for word in args.more):
        raise UserError("--seed: give --seeds N..., which name the folders of the trainings")
    check_not_stopped_by_the_clock(args.more)
    more = [*args.more, *(["--cpu"] if args.cpu else [])]
    plan = TrainingPlan(recipe, data=str(args.data), save_dir=args.save_dir, more=more)
    for seed, system in itertools.product(_seeds(args), args.systems):
        plan.add(system, seed=seed)
    return plan


def _metric(recipe: Recipe, args: argparse.Namespace) -> Metric:
    if recipe.compared_by == "perplexity":
        for split in ("valid", "test"):
            if not is_binarised(args.data / split):
                raise UserError(f"{args.data} has no {split}.bin and {split}.idx, on which models are compared")
        return PerplexityMetric(device=choose_device(args))
    if ":" in str(args.save_dir):
        raise UserError(f"--save-dir {args.save_dir}: a colon parts the models of an ensemble, give one without")
    languages = complete_languages(languages_among(args.more), str(args.data))
    check_split(args.data, args.split, languages)
    reference, split = raw_reference(args.data, args.split, languages[1]), args.split
    subword_kind(args.data)  # an error before training, not after
    return text_metric(recipe.compared_by, reference, data=args.data, split=split, language=languages[1])


def _decoding(planned: PlannedTraining, recipe: Recipe, args: argparse.Namespace) -> Decoding:
    return Decoding(
        data=args.data,
        models=[str(planned.result)],
        split=args.split,
        out=planned.result.parent / args.split,
        beam=args.beam,
        subwords=subword_kind(args.data),
        flags=[*recipe.decoding.flags, *(["--cpu"] if args.cpu else [])],
    )


def _run_side_by_side(plan: TrainingPlan, decodings: Mapping[str, Decoding], args: argparse.Namespace) -> None:
    """Train and decode all that is not done, each run by its own call of this command.

    Raises:
        SystemExit: with the status of a failed call, after all calls that do not depend on one have ended.
    """
    open_ones = [planned for planned in plan.trainings if not _is_done(planned, decodings)]
    names = {planned.name for planned in open_ones}
    tasks = [
        Task(
            name=planned.name,
            command=_own_call(planned, args, decodes=bool(decodings)),
            needs=[needed.name for needed in planned.begins_with if needed.name in names],
        )
        for planned in open_ones
    ]
    statuses = run_side_by_side(tasks, num=args.jobs)
    failed = {name: status for name, status in statuses.items() if status != 0}
    if failed:
        left_out = [task.name for task in tasks if task.name not in statuses]
        message = f"{', '.join(failed)} did not end well" + (f"; {', '.join(left_out)} not begun" if left_out else "")
        log = args.save_dir / next(iter(failed)) / "train.log"
        print(f"{message}: see {log}, and give the same line again to go on", file=sys.stderr)
        raise SystemExit(next(iter(failed.values())))


def _is_done(planned: PlannedTraining, decodings: Mapping[str, Decoding]) -> bool:
    decoding = decodings.get(planned.name)
    return planned.training.is_finished and planned.result.is_file() and (decoding is None or decoding.is_done)


def _own_call(planned: PlannedTraining, args: argparse.Namespace, *, decodes: bool) -> List[str]:
    """Command line that trains and decodes one system with one seed by this command."""
    decoded = ["--split", args.split, "--beam", str(args.beam)] if decodes else []
    return [
        *(sys.executable, "-m", f"fairseq_plugins.cli.{RunRecipe.name}", args.recipe, str(args.data)),
        *("--systems", planned.system, "--seeds", str(planned.seed), "--save-dir", str(args.save_dir), *decoded),
        *(["--cpu"] if args.cpu else []),
        *args.more,
    ]


if __name__ == "__main__":
    RunRecipe().main()
