"""Training by a recipe, fine-tuning, and averages of checkpoints."""

import argparse
import textwrap
from pathlib import Path
from typing import Any, Dict, Optional, Sequence, Union

from tabulate import tabulate

from fairseq_plugins.command_line import add_cpu, add_data, add_folders, add_output_file, checkpoint, choose_device
from fairseq_plugins.console import Command
from fairseq_plugins.evaluation.average import AVERAGED, average_checkpoints
from fairseq_plugins.files import (
    check_not_read,
    checkpoint_of,
    data_folder,
    given_path,
    is_saved_by_run,
    output_folder,
    write_tensors,
)
from fairseq_plugins.models.checkpoints import last_epoch_checkpoints, read_state
from fairseq_plugins.models.presets import ARCHITECTURES
from fairseq_plugins.options import UserError, count, whole_number
from fairseq_plugins.recipes import RECIPES, Recipe, find_recipe, training_arguments
from fairseq_plugins.recipes.fine_tuning import fine_tune, fine_tune_in_rounds
from fairseq_plugins.recipes.training import Training, check_leaves_a_model


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
    training = Training(arguments=arguments)
    if args.dry_run:
        print(training.command_line)
        return
    data_folder(str(args.data))
    training.check_kept()
    was_finished = training.is_finished
    training.run()
    if was_finished:
        ends = "--max-epoch, --max-update or --patience"
        print(f"training of {args.save_dir} has ended; to continue, raise the one of {ends} that ended it")


TRAIN = Command(
    add_arguments=_add_train_arguments,
    run=_train,
    description="""\
Flags that this command does not know go to fairseq-train and override the recipe's. A recipe's --bf16 is left
out where the processor has no matrix products in bfloat16. The output is shown and appended to DIR/train.log. The exit
status is that of fairseq-train. Repeat the command with the same flags to resume. Other flags are refused.""",
    example="ptb_small doc data-bin/ptb --save-dir checkpoints/doc",
    passes_on=True,
)


def recipe_as_text(recipe: Recipe) -> str:
    """Description of a recipe: systems, published figures and notes."""
    lines = [f"{recipe.name}: {recipe.title}", f"  DATA from: {recipe.corpus}"]
    systems = recipe.systems.items()
    columns = list(dict.fromkeys(column for _, system in systems for column in system.published))
    if columns:
        lines.append(f"  Published: {recipe.metric}")
    has_labels = any(system.label for _, system in systems)
    header = ["SYSTEM", *([""] if has_labels else []), *columns]
    rows = [
        [
            name,
            *([recipe.label(name)] if has_labels else []),
            *(system.published.get(column, "") for column in columns),
        ]
        for name, system in systems
    ]
    lines.append(textwrap.indent(tabulate([header, *rows], tablefmt="plain", disable_numparse=True), "    "))
    notes = [textwrap.indent(recipe.notes, "  ")] if recipe.notes else []
    if recipe.compared_by != "perplexity":
        notes.append(f"  Score: {recipe.decoding.scoring_command(f'evaluate {recipe.compared_by}')}")
    return "\n".join([*lines, *notes])


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
        help="with --arch: maximum number of rounds, 1 as in the papers (default: until a round brings no gain)",
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
checkpoint's run. The learning rate is constant, a tenth of that run's first. Training ends after 10 epochs
(--max-epoch), or after 2 in which valid has not improved (--patience). DIR/run.json records the checkpoint.

With --arch, a language model is trained on with its own corpus ("fin" in Takase et al. 2018): rounds of averaged SGD.
Each starts from the best model so far and averages from its first update. DIR gets round1, round2, ... and
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
    if is_saved_by_run(args.out) and AVERAGED not in read_state(args.out):
        raise UserError(f"--out {args.out} is a checkpoint of a run: give another name, such as checkpoint_mean.pt")
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
