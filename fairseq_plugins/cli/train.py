"""Training by a recipe: ``python -m fairseq_plugins.cli.train --help``."""

import argparse
import textwrap
from typing import Any, Optional, Sequence, Union

from fairseq_plugins.command_line import TrainingCommand
from fairseq_plugins.options import check_data_folder, given_path
from fairseq_plugins.recipes import RECIPES, Recipe, find_recipe, training_arguments
from fairseq_plugins.recipes.recipe import AVERAGED
from fairseq_plugins.recipes.training import RUN_FILE, Training


class ListRecipes(argparse.Action):
    """Option that prints all recipes, or one, and ends the command."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Union[str, Sequence[Any], None],
        option_string: Optional[str] = None,
    ) -> None:
        try:
            recipes = RECIPES.values() if values is None else [find_recipe(str(values))]
        except ValueError as error:
            parser.exit(2, f"{parser.prog}: error: {error}\n")
        print("\n\n".join(as_text(recipe) for recipe in recipes))
        parser.exit()


class Train(TrainingCommand):
    """Trains a system of a recipe."""

    name = "train"
    summary = "Train a system of a recipe by fairseq-train."
    description = (
        "Flags that this command does not know go to fairseq-train after those of the recipe, and win. The output is\n"
        "shown and appended to DIR/train.log; the exit status is that of the training. Run again to resume; a\n"
        "training that was begun with other flags is refused."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.usage = "%(prog)s RECIPE SYSTEM DATA --save-dir DIR [--seed N] [fairseq-train flags]"
        parser.add_argument("recipe", metavar="RECIPE", help=", ".join(RECIPES))
        parser.add_argument("system", metavar="SYSTEM", help="a row of the recipe's table; --list RECIPE prints them")
        parser.add_argument("data", metavar="DATA", type=given_path, help="directory that data-prep wrote")
        parser.add_argument(
            "--save-dir", type=given_path, required=True, metavar="DIR", help="directory for checkpoints and train.log"
        )
        parser.add_argument("--seed", type=int, metavar="N", help="default: that of the architecture's preset, or 1")
        parser.add_argument(
            "--list",
            action=ListRecipes,
            nargs="?",
            metavar="RECIPE",
            help="print the recipes, or one, with their systems and published figures, and end",
        )
        parser.add_argument("--dry-run", action="store_true", help="print the command line of fairseq-train and end")

    def run(self, args: argparse.Namespace) -> None:
        arguments = training_arguments(
            find_recipe(args.recipe),
            args.system,
            data=args.data,
            save_dir=args.save_dir,
            seed=args.seed,
            more=args.more,
        )
        training = Training(arguments=arguments, save_dir=args.save_dir)
        if args.dry_run:
            print(training.command_line)
            return
        check_data_folder(args.data)
        was_finished = training.is_finished
        training.run()
        if was_finished:
            print(f"{args.save_dir} is trained; to train on, remove {RUN_FILE} there, or give a larger --max-epoch")


def as_text(recipe: Recipe) -> str:
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
    widths = [max(map(len, cells)) for cells in zip(header, *rows)]
    for row in [header, *rows]:
        lines.append("    " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    notes = [textwrap.indent(recipe.notes, "  ")] if recipe.notes else []
    if recipe.compared_by != "perplexity":
        command = "evaluate_translation" if recipe.compared_by == "bleu" else "evaluate_rouge"
        notes.append(f"  Score: {recipe.decoding.scoring_command(command)}")
    if recipe.averaged_epochs:
        epochs = "one epoch" if recipe.averaged_epochs == 1 else f"{recipe.averaged_epochs} epochs"
        more = f"SYSTEM{AVERAGED} trains a system but a gate on for {epochs} of averaged SGD:"
        notes.append(f"  {more} --finetune-from-model CKPT.")
    return "\n".join([*lines, *notes])


if __name__ == "__main__":
    Train().main()
