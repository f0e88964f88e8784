"""All runs of a recipe's table: trained, decoded, compared."""

import argparse
import os
import sys
from typing import Dict, List, Mapping, Sequence, Tuple

import torch

from fairseq_plugins.command_line import add_cpu, add_data, add_out, choose_device
from fairseq_plugins.commands.compare import write_comparison
from fairseq_plugins.console import Command
from fairseq_plugins.data.pairs import check_split, complete_languages, raw_reference
from fairseq_plugins.data.text import is_binarised
from fairseq_plugins.evaluation.decoding import Decoding
from fairseq_plugins.evaluation.raw_text import subword_kind
from fairseq_plugins.files import given_path
from fairseq_plugins.options import UserError, count, whole_number
from fairseq_plugins.own_parts import user_dir
from fairseq_plugins.processes import USER_ERROR_LINE, Job, run_side_by_side
from fairseq_plugins.recipes import RECIPES, Recipe, find_recipe
from fairseq_plugins.recipes.training import (
    SystemTraining,
    check_leaves_a_model,
    plan_trainings,
    value_of,
    values_by_flag,
)
from fairseq_plugins.reports.comparison import Metric, PerplexityMetric, check_baseline, compare_runs, text_metric
from fairseq_plugins.reports.training_log import read_log


def _add_run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "%(prog)s RECIPE DATA --systems SYSTEM... [--seeds N...] --save-dir DIR [--out DIR] [options] "
        "[fairseq-train flags]"
    )
    parser.add_argument("recipe", metavar="RECIPE", help=", ".join(RECIPES))
    add_data(parser)
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
        type=whole_number(at_least=0),
        metavar="N",
        help="every system is trained with each (default: 1)",
    )
    parser.add_argument(
        "--save-dir", type=given_path, required=True, metavar="DIR", help="directory for a folder of each run"
    )
    parser.add_argument(
        "--baseline",
        metavar="SYSTEM",
        help="the others are tested against it: by bleu and rouge sentence by sentence, by perplexity over two or more "
        "--seeds (default: none)",
    )
    parser.add_argument(
        "--split", "--gen-subset", metavar="SPLIT", help="that translators decode (default: the recipe's, or test)"
    )
    parser.add_argument("--beam", type=count, metavar="N", help="beam size (default: the recipe's)")
    parser.add_argument(
        "--jobs",
        type=count,
        default=1,
        metavar="N",
        help="runs, each with its decoding, at once, which go on where one fails; they share the cores, or use "
        "OMP_NUM_THREADS cores each, and take the GPUs in turn; a shared GPU goes further under NVIDIA's multi-process "
        "service (default: 1, which stops where one fails)",
    )
    add_cpu(parser)
    add_out(parser, help="directory for the table (default: no table is made)", required=False)


def _run_recipe(args: argparse.Namespace) -> None:
    recipe = find_recipe(args.recipe)
    args.seeds = list(dict.fromkeys(args.seeds or [1]))
    _settle_decoding(recipe, args)
    plan = _plan(recipe, args)
    metric = _metric(recipe, args)
    compared = [plan[system, seed] for system in dict.fromkeys(args.systems) for seed in args.seeds]
    check_baseline(args.baseline, metric, names=[one.system for one in compared])
    if args.baseline is not None and args.out is None:
        raise UserError(f"--baseline {args.baseline}: give --out for the table that tests against it")
    for training in plan.values():
        training.check()
        for base in training.starts_from:
            if training.is_resumed and not base.is_finished:
                raise UserError(
                    f"{base.save_dir} would be trained on, but {training.save_dir} has started from it: give another "
                    f"--save-dir, or remove {training.save_dir}"
                )
    for training in compared:
        training.check_kept()
    decodings = {one.name: _decoding(one, recipe, args) for one in compared if recipe.compared_by != "perplexity"}
    if args.jobs > 1:
        _run_side_by_side(list(plan.values()), decodings, args)
    for training in plan.values():
        training.run()
    for decoding in decodings.values():
        decoding.check()
        decoding.run()
    if args.out is None:
        return
    report = compare_runs(
        [(one.label, one.result) for one in compared],
        metric,
        baseline=None if args.baseline is None else recipe.label(args.baseline),
    )
    write_comparison(report, args)


RUN = Command(
    add_arguments=_add_run_arguments,
    run=_run_recipe,
    description="""\
Trains every system with every seed in DIR/SYSTEM-SEED (a dash replaces a colon), one after the other or --jobs of them
at once. Translators then decode the test set as for the recipe's published figures. A system that needs another, such
as a gate its base model, has that trained first with the same seed. If it needs three base models, they get seeds 1 to
3 for seed 1, and 4 to 6 for seed 2.

Repeat the command to resume. Finished runs are not repeated, and further systems or seeds are added. Runs that began
with other flags are refused. With --jobs only validations are shown. All output is in DIR/SYSTEM-SEED/train.log, which
compare curves reads.

Writes what compare runs writes, by the metric of the recipe: table.md, runs.json and learning_curves.png. Flags that
this command does not know go to every fairseq-train and override the recipe's.""",
    example="tatoeba data-bin/tatoeba.de-en --systems encdec doc --seeds 1 2 --save-dir runs --out results/mine",
    passes_on=True,
)


def _settle_decoding(recipe: Recipe, args: argparse.Namespace) -> None:
    """Take split and beam from the recipe where they are not given. They are an error if nothing is decoded."""
    if recipe.compared_by == "perplexity":
        for flag, value in (("--split", args.split), ("--beam", args.beam)):
            if value is not None:
                raise UserError(f"{flag} {value}: recipe {recipe.name} has no translators, leave it out")
        return
    args.split = args.split or recipe.decoding.split
    args.beam = recipe.decoding.beam if args.beam is None else args.beam


def _plan(recipe: Recipe, args: argparse.Namespace) -> Dict[Tuple[str, int], SystemTraining]:
    if "--seed" in values_by_flag(args.more):
        raise UserError("--seed: give --seeds N..., which name the folders of the runs")
    check_leaves_a_model(args.more)
    more = [*args.more, *(["--cpu"] if args.cpu else [])]
    return plan_trainings(recipe, args.systems, args.seeds, data=args.data, save_dir=args.save_dir, more=more)


def _metric(recipe: Recipe, args: argparse.Namespace) -> Metric:
    if recipe.compared_by == "perplexity":
        for split in ("valid", "test"):
            if not is_binarised(args.data / split):
                raise UserError(f"{args.data} has no {split}.bin and {split}.idx, on which models are compared")
        return PerplexityMetric(args.data, device=choose_device(args))
    if ":" in str(args.save_dir):
        raise UserError(f"--save-dir {args.save_dir}: a colon separates the models of an ensemble, give one without")
    given = values_by_flag(args.more)
    source, target = value_of(given, "-s", "--source-lang"), value_of(given, "-t", "--target-lang")
    languages = complete_languages((source or None, target or None), str(args.data))
    check_split(args.data, args.split, languages)
    remedy = "prepare the data again, which also writes raw/"
    reference = raw_reference(args.data, args.split, languages[1], remedy=remedy)
    subword_kind(args.data)  # an error before training, not after
    return text_metric(recipe.compared_by, reference, data=args.data, split=args.split, language=languages[1])


def _decoding(training: SystemTraining, recipe: Recipe, args: argparse.Namespace) -> Decoding:
    return Decoding(
        data=args.data,
        models=[str(training.result)],
        split=args.split,
        out=training.save_dir / args.split,
        beam=args.beam,
        subwords=subword_kind(args.data),
        flags=[*recipe.decoding.flags, *(["--cpu"] if args.cpu else [])],
    )


def _run_side_by_side(
    trainings: Sequence[SystemTraining], decodings: Mapping[str, Decoding], args: argparse.Namespace
) -> None:
    """Train and decode all that is not done, each run by its own call of this command.

    Raises:
        SystemExit: with the status of a failed call, after all calls that do not depend on one have ended.
    """
    unfinished = [one for one in trainings if not _is_done(one, decodings)]
    names = {one.name for one in unfinished}
    jobs = [
        Job(
            name=one.name,
            command=_own_call(one, args, decodes=bool(decodings)),
            needs=[needed.name for needed in one.starts_from if needed.name in names],
        )
        for one in unfinished
    ]
    statuses = run_side_by_side(jobs, places=_places(args), show=_show_validation)
    failed = {name: status for name, status in statuses.items() if status != 0}
    if failed:
        left_out = [job.name for job in jobs if job.name not in statuses]
        message = f"{', '.join(failed)} did not end well" + (f"; {', '.join(left_out)} not begun" if left_out else "")
        logs = {name: args.save_dir / name / "train.log" for name, status in failed.items() if status < 128}
        for name, log in logs.items():
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
            if lines and USER_ERROR_LINE.match(lines[-1]):
                print(f"{name}: {lines[-1]}", file=sys.stderr)
        remedy = "repeat the command to resume"
        if logs:
            remedy = f"see {', '.join(map(str, logs.values()))}, and repeat the command without the cause"
        print(f"{message}: {remedy}", file=sys.stderr)
        raise SystemExit(next(iter(failed.values())))


def _places(args: argparse.Namespace) -> List[Dict[str, str]]:
    """Variables of the environment for each run at once: its share of the cores, and one of several GPUs.

    Runs on more than one GPU each, by ``--distributed-world-size``, see all of them.
    """
    shares = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(max(1, torch.get_num_threads() // args.jobs))}
    num_gpus = torch.cuda.device_count()
    if num_gpus < 2 or "--distributed-world-size" in values_by_flag(args.more):
        return [shares] * args.jobs
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(num_gpus)))).split(",")[:num_gpus]
    return [{**shares, "CUDA_VISIBLE_DEVICES": gpus[number % num_gpus]} for number in range(args.jobs)]


def _show_validation(name: str, line: str) -> None:
    """Show a short line for a validation in the output of a run."""
    for one in read_log(line):
        if one.kind == "valid" and "ppl" in one.figures:
            told = f"   {name}  epoch {one.epoch}  valid perplexity {one.figures['ppl']:g}"
            print(told, file=sys.stderr, flush=True)


def _is_done(training: SystemTraining, decodings: Mapping[str, Decoding]) -> bool:
    decoding = decodings.get(training.name)
    return training.is_finished and training.result.is_file() and (decoding is None or decoding.is_done)


def _own_call(training: SystemTraining, args: argparse.Namespace, *, decodes: bool) -> List[str]:
    """Command line that trains and decodes one system with one seed by this command."""
    decoded = ["--split", args.split, "--beam", str(args.beam)] if decodes else []
    return [
        *(sys.executable, "-m", "fairseq_plugins", "run", args.recipe, str(args.data)),
        *("--systems", training.system, "--seeds", str(training.seed), "--save-dir", str(args.save_dir), *decoded),
        *("--user-dir", user_dir()),
        *(["--cpu"] if args.cpu else []),
        *args.more,
    ]
