"""Training by recipes, fine-tuning in rounds, and averages of checkpoints."""

import argparse
import sys
import textwrap
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from tabulate import tabulate

from fairseq_plugins.command_line import (
    add_cpu,
    add_data,
    add_folders,
    add_out,
    add_output_file,
    checkpoint,
    choose_device,
)
from fairseq_plugins.console import Command
from fairseq_plugins.data.text import is_binarised
from fairseq_plugins.evaluation.average import average_checkpoints
from fairseq_plugins.evaluation.checkpoints import check_split, raw_reference
from fairseq_plugins.evaluation.decoding import Decoding
from fairseq_plugins.evaluation.raw_text import subword_kind
from fairseq_plugins.fairseq_patches.generation import complete_languages
from fairseq_plugins.files import (
    check_not_read,
    checkpoint_of,
    data_folder,
    given_path,
    output_folder,
    write_tensors,
)
from fairseq_plugins.models.checkpoints import last_epoch_checkpoints
from fairseq_plugins.models.presets import ARCHITECTURES
from fairseq_plugins.options import UserError, count, whole_number
from fairseq_plugins.parts import user_dir
from fairseq_plugins.processes import USER_ERROR_LINE, Job, run_side_by_side
from fairseq_plugins.recipes import RECIPES, Recipe, find_recipe, training_arguments
from fairseq_plugins.recipes.fine_tuning import fine_tune, fine_tune_in_rounds
from fairseq_plugins.recipes.recipe import AVERAGED
from fairseq_plugins.recipes.training import (
    SystemTraining,
    Training,
    check_leaves_a_model,
    plan_trainings,
    value_of,
    values_by_flag,
)
from fairseq_plugins.reports.comparison import Metric, PerplexityMetric, check_baseline, compare_runs, text_metric


class ListRecipes(argparse.Action):
    """Option that prints all recipes, or one, and ends the command."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Union[str, Sequence[Any], None],
        option_string: Optional[str] = None,
    ) -> None:
        recipes = RECIPES.values() if values is None else [find_recipe(str(values))]
        print("\n\n".join(recipe_as_text(recipe) for recipe in recipes))
        parser.exit()


def _add_train_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s RECIPE SYSTEM DATA --save-dir DIR [--seed N] [fairseq-train flags]"
    parser.add_argument("recipe", metavar="RECIPE", help=", ".join(RECIPES))
    parser.add_argument("system", metavar="SYSTEM", help="a row of the recipe's table; --list RECIPE prints them")
    parser.add_argument("data", metavar="DATA", type=given_path, help="directory that data-prep wrote")
    parser.add_argument(
        "--save-dir", type=given_path, required=True, metavar="DIR", help="directory for checkpoints and train.log"
    )
    parser.add_argument(
        "--seed", type=whole_number(at_least=0), metavar="N", help="default: that of the architecture's preset, or 1"
    )
    parser.add_argument(
        "--list",
        action=ListRecipes,
        nargs="?",
        metavar="RECIPE",
        help="print the recipes, or one, with their systems and published figures, and end",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the command line of fairseq-train and end")


def _train(args: argparse.Namespace) -> None:
    arguments = training_arguments(
        find_recipe(args.recipe), args.system, data=args.data, save_dir=args.save_dir, seed=args.seed, more=args.more
    )
    training = Training(arguments=arguments, save_dir=args.save_dir)
    if args.dry_run:
        print(training.command_line)
        return
    data_folder(str(args.data))
    training.check_kept()
    was_finished = training.is_finished
    training.run()
    if was_finished:
        ends = "--max-epoch, --max-update or --patience"
        print(f"{args.save_dir} is trained; to train on, give a larger {ends}, whichever ended it")


TRAIN = Command(
    add_arguments=_add_train_arguments,
    run=_train,
    description="""\
Flags that this command does not know go to fairseq-train and override those of the recipe. A recipe's --bf16 is left
out where the processor has no matrix products in bfloat16. The output is shown and appended to DIR/train.log. The exit
status is that of fairseq-train. Repeat the command to resume. With other flags than those of the first time it is
refused.""",
    example="ptb_small doc data-bin/ptb --save-dir checkpoints/doc",
    passes_on=True,
)


def recipe_as_text(recipe: Recipe) -> str:
    """Description of a recipe: systems, published figures and notes."""
    lines = [f"{recipe.name}: {recipe.title}", f"  DATA from: {recipe.corpus}"]
    figures = {name: system.published for name, system in recipe.systems.items()}
    columns = list(dict.fromkeys(column for published in figures.values() for column in published))
    if columns:
        lines.append(f"  Published: {recipe.metric}")
    rows = [
        [name, *([recipe.label(name)] if any(system.label for system in recipe.systems.values()) else [])]
        + [figures[name].get(column, "") for column in columns]
        for name in recipe.systems
    ]
    header = ["SYSTEM", *[""] * (len(rows[0]) - 1 - len(columns)), *columns]
    lines.append(textwrap.indent(tabulate([header, *rows], tablefmt="plain", disable_numparse=True), "    "))
    notes = [textwrap.indent(recipe.notes, "  ")] if recipe.notes else []
    if recipe.compared_by != "perplexity":
        notes.append(f"  Score: {recipe.decoding.scoring_command(f'evaluate {recipe.compared_by}')}")
    if recipe.averaged_epochs:
        epochs = "one epoch" if recipe.averaged_epochs == 1 else f"{recipe.averaged_epochs} epochs"
        more = f"SYSTEM{AVERAGED} continues any system except a gate for {epochs} of averaged SGD:"
        notes.append(f"  {more} --finetune-from-model CKPT.")
    return "\n".join([*lines, *notes])


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
        help="runs, each with its decoding, at once; on CPUs give each a core by OMP_NUM_THREADS=1 "
        "in the environment, and a shared GPU goes further under NVIDIA's multi-process service (default: 1)",
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
        data=str(args.data),
        baseline=None if args.baseline is None else recipe.label(args.baseline),
        command=args.command_line,
    )
    print(report.write(args.out, name="table", figures="runs.json", picture="learning_curves.png"))
    print(f"written to {args.out}: table.md, runs.json, learning_curves.png")


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
this command does not know go to every fairseq-train and override those of the recipe.""",
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
    return plan_trainings(recipe, args.systems, args.seeds, data=str(args.data), save_dir=args.save_dir, more=more)


def _metric(recipe: Recipe, args: argparse.Namespace) -> Metric:
    if recipe.compared_by == "perplexity":
        for split in ("valid", "test"):
            if not is_binarised(args.data / split):
                raise UserError(f"{args.data} has no {split}.bin and {split}.idx, on which models are compared")
        return PerplexityMetric(device=choose_device(args))
    if ":" in str(args.save_dir):
        raise UserError(f"--save-dir {args.save_dir}: a colon separates the models of an ensemble, give one without")
    given = values_by_flag(args.more)
    source, target = value_of(given, "-s", "--source-lang"), value_of(given, "-t", "--target-lang")
    languages = complete_languages((source or None, target or None), str(args.data))
    check_split(args.data, args.split, languages)
    remedy = "prepare the data again, which also writes raw/"
    reference, split = raw_reference(args.data, args.split, languages[1], remedy=remedy), args.split
    subword_kind(args.data)  # an error before training, not after
    return text_metric(recipe.compared_by, reference, data=args.data, split=split, language=languages[1])


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
    statuses = run_side_by_side(jobs, num=args.jobs)
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


def _add_fine_tune_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s DATA --path CKPT --save-dir DIR [--arch ARCH [--rounds N]] [--cpu] [fairseq-train flags]"
    with_training = sorted(name for name, preset in ARCHITECTURES.items() if preset.training)
    tuned = [name for name in with_training if ARCHITECTURES[name].fine_tuning is not None]
    add_data(parser)
    parser.add_argument(
        "--arch",
        choices=with_training,
        metavar="ARCH",
        help="fine-tune a language model on its own corpus by averaged SGD, in rounds, as in the paper of its "
        f"architecture: {', '.join(tuned)}",
    )
    parser.add_argument(
        "--path",
        type=checkpoint,
        required=True,
        metavar="CKPT",
        help="model to start from, such as SAVE_DIR/checkpoint_best.pt",
    )
    parser.add_argument(
        "--save-dir", type=output_folder, required=True, metavar="DIR", help="directory for what is written"
    )
    parser.add_argument(
        "--rounds",
        type=count,
        metavar="N",
        help="with --arch: at most this many, 1 for the papers' single fine-tuning (default: until one brings no gain)",
    )
    add_cpu(parser)


def _fine_tune(args: argparse.Namespace) -> None:
    check_leaves_a_model(args.more)
    more = [*(["--cpu"] if args.cpu else []), *args.more]
    options: Dict[str, Any] = dict(data=str(args.data), save_dir=args.save_dir, device=choose_device(args), more=more)
    if args.arch is not None:
        fine_tune_in_rounds(args.arch, args.path, max_rounds=args.rounds, **options)
    elif args.rounds is not None:
        raise UserError(f"--rounds {args.rounds}: give --arch as well, or leave it out")
    else:
        fine_tune(args.path, **options)


FINE_TUNE = Command(
    add_arguments=_add_fine_tune_arguments,
    run=_fine_tune,
    description="""\
Trains a translator or a language model on another corpus. Prepare the corpus with the model's vocabulary, by --codes,
--source-dict and --target-dict of data-prep/own/prepare.sh. Model, criterion, optimizer and batches are those of the
checkpoint's run. The learning rate is constant, a tenth of the first one of that run. Training ends after 10 epochs
(--max-epoch), or after 2 in which valid has not improved (--patience). DIR/run.json records the checkpoint.

With --arch, a language model is trained on with its own corpus ("fin" in Takase et al. 2018): rounds of averaged SGD,
each with a fresh average from its first update, and each from the best model so far. DIR gets round1, round2, ... and
the best model as checkpoint_fin.pt. Flags that shaped the model, such as --hidden-sizes, must be given again.

Flags that this command does not know go to fairseq-train and override all others. Repeat the command to resume.""",
    example="data-bin/other.en-de --path checkpoints/multi30k_doc --save-dir checkpoints/other",
    passes_on=True,
)


def _add_average_arguments(parser: argparse.ArgumentParser) -> None:
    add_folders(parser, help="two or more checkpoints, or with --last one --save-dir", metavar="CKPT")
    parser.add_argument(
        "--last",
        type=whole_number(at_least=2),
        metavar="N",
        help="average the last N epoch checkpoints of a --save-dir",
    )
    add_output_file(parser, "--out", help="checkpoint to write", required=True)


def _average(args: argparse.Namespace) -> None:
    paths = [Path(path) for path in args.path]
    if args.last is not None:
        if len(paths) > 1:
            raise UserError(f"--last takes one --save-dir after --path; there are {len(paths)} paths")
        paths = last_epoch_checkpoints(paths[0], args.last)
    elif len(paths) == 1 and paths[0].is_dir():
        raise UserError(f"{paths[0]} is a folder: give --last N to average its last N epoch checkpoints")
    else:
        paths = [checkpoint_of(path) for path in paths]
    check_not_read(args.out, paths, flag="--out")
    mean = average_checkpoints(paths)
    write_tensors(args.out, mean)
    updates = ", ".join(f"{num_updates:,}" for _, num_updates in mean["averaged_checkpoints"])
    print(f"mean of {len(paths)} checkpoints, of updates {updates}, written to {args.out}")


AVERAGE = Command(
    add_arguments=_add_average_arguments,
    run=_average,
    description="""\
All commands take the result like any checkpoint. It has the flags of the latest of the checkpoints and no optimiser
state. To train it further, give it to fairseq-train --finetune-from-model.

With --last N, --path is one --save-dir, whose last N epoch checkpoints (checkpoint3.pt and so on) are averaged. Recipes
keep them with --keep-last-epochs N.""",
    example="--path checkpoints/doc --last 5 --out checkpoints/doc/checkpoint_mean.pt",
)
