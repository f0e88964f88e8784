"""Trained models in one table, and learning curves."""

import argparse
import sys
from pathlib import Path

from fairseq_plugins.command_line import add_cpu, add_data, add_folders, add_out, choose_device
from fairseq_plugins.commands.report import report_command
from fairseq_plugins.console import Command
from fairseq_plugins.data.pairs import Languages, check_split, raw_reference, split_languages
from fairseq_plugins.evaluation.checkpoints import one_pair, translation_languages
from fairseq_plugins.evaluation.decoding import decoding_record
from fairseq_plugins.files import given_path, regular_files
from fairseq_plugins.metrics.bootstrap import NUM_BOOTSTRAP_SAMPLES
from fairseq_plugins.metrics.rouge import DEFAULT_SETTINGS, add_rouge_settings, read_rouge_settings
from fairseq_plugins.options import UserError, named_paths
from fairseq_plugins.reports.comparison import Metric, PerplexityMetric, compare_runs, text_metric
from fairseq_plugins.reports.learning_curves import learning_report
from fairseq_plugins.reports.report import Report
from fairseq_plugins.reports.training_log import TrainingLog, best_checkpoint, check_seeds

METRICS = ("perplexity", "bleu", "rouge")


def _add_runs_arguments(parser: argparse.ArgumentParser) -> None:
    add_data(parser)
    add_folders(parser, help="runs to compare")
    parser.add_argument(
        "--metric", choices=METRICS, default="perplexity", help="what is compared (default: %(default)s)"
    )
    parser.add_argument(
        "--split", "--gen-subset", metavar="SPLIT", help="for bleu and rouge: what was decoded (default: test)"
    )
    parser.add_argument(
        "--reference",
        type=given_path,
        metavar="FILE",
        help="raw reference text of the split, for bleu and rouge (default: DATA/raw/SPLIT.TARGET)",
    )
    parser.add_argument(
        "--text",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=FILE",
        help="texts of other origin, a sentence a line, for bleu and rouge",
    )
    parser.add_argument(
        "--baseline",
        metavar="NAME",
        help="name of the runs, or text, that the others are tested against. Differences have 95 %% intervals: for "
        f"bleu and rouge from {NUM_BOOTSTRAP_SAMPLES:,} samples of the sentences, each with the outputs of all seeds; "
        "for perplexity from the seeds, at least two of each name (default: none)",
    )
    add_rouge_settings(parser.add_argument_group("of --metric rouge"))
    add_cpu(parser)
    add_out(parser, help="directory for the results")


def _compare(args: argparse.Namespace) -> None:
    report = compare_runs(
        named_paths(args.path),
        _metric(args),
        texts=named_paths(args.text),
        baseline=args.baseline,
    )
    write_comparison(report, args)


def write_comparison(report: Report, args: argparse.Namespace) -> None:
    """Write the files of a comparison to ``--out``, and print its table."""
    names = dict(name="table", figures="runs.json", picture="learning_curves.png")
    print(report.write(args.out, command=args.command_line, **names))
    print(f"written to {args.out}: table.md, runs.json, learning_curves.png")


RUNS = Command(
    add_arguments=_add_runs_arguments,
    run=_compare,
    description="""\
A run is a --save-dir of fairseq-train with checkpoint_best.pt, or another checkpoint in it. It must have the log
train.log that recipes write. Runs of one name differ in their seed only. The metrics:

  perplexity  of language models, as lm eval computes it: one row, carried state; for characters also bits
  bleu        BLEU and chrF of what evaluate bleu wrote into SAVE_DIR/SPLIT
  rouge       ROUGE of what evaluate rouge wrote into SAVE_DIR/SPLIT

bleu and rouge need the log and the decoded text, but no checkpoint. The table says if there was none.

If a run decoded its validation set (--task scored_translation), the table has its best score and the picture the scores
by epoch.

--text adds texts of other origin, such as the first words of articles. --baseline tests all others against the runs of
one name: texts by a paired bootstrap over sentences, perplexities by Welch's t-test over seeds. p is two-sided.

Writes table.md, runs.json and learning_curves.png.""",
    example="data-bin/ptb --path doc=checkpoints/doc-1 doc=checkpoints/doc-2 tied=checkpoints/tied --out results/mine",
)


def _languages(run: Path, data: Path, split: str) -> Languages:
    """Source and target language of a run, from its decoded text, its checkpoint or DATA, whichever exists."""
    checkpoint = best_checkpoint(run)
    if record := decoding_record(checkpoint.parent / split):
        source, target = record["languages"]
        return source, target
    return translation_languages([checkpoint], data, split) if checkpoint.exists() else split_languages(data, split)


def _metric(args: argparse.Namespace) -> Metric:
    rouge = read_rouge_settings(args)
    if args.metric != "rouge" and rouge != DEFAULT_SETTINGS:
        raise UserError("--stemming, --tokenizer, --max-bytes and --max-words go with --metric rouge")
    if args.metric == "perplexity":
        if args.reference or args.text or args.split:
            raise UserError("--reference, --split and --text go with --metric bleu or rouge")
        return PerplexityMetric(args.data, device=choose_device(args))
    split = args.split or "test"
    languages = one_pair(_languages(run, args.data, split) for _, run in named_paths(args.path))
    check_split(args.data, split, languages)
    (reference,) = regular_files([args.reference or raw_reference(args.data, split, languages[1])])
    regular_files([path for _, path in named_paths(args.text)], flag="--text")
    return text_metric(args.metric, reference, data=args.data, split=split, language=languages[1], rouge=rouge)


def _add_curves_arguments(parser: argparse.ArgumentParser) -> None:
    add_folders(parser, help="runs, finished or not")


def _compare_curves(args: argparse.Namespace) -> Report:
    logs = [(name, TrainingLog(path)) for name, path in named_paths(args.path)]
    validated = [(name, log) for name, log in logs if log.has_validation]
    if validated and len(validated) < len(logs):
        early = ", ".join(str(log.path) for _, log in logs if not log.has_validation)
        print(f"left out, because they have no validation yet: {early}", file=sys.stderr)
    shown = validated or logs  # if none is, the first log raises the error
    runs = [{"name": name, "seed": log.seed, **log.figures()} for name, log in shown]
    check_seeds((name, log.seed, log.path.parent) for name, log in shown)
    return learning_report(runs)


CURVES = report_command(
    _compare_curves,
    _add_curves_arguments,
    plot="draw the curves, such as learning_curves.png",
    description="""\
Reads only train.log, so runs may still train, be stopped, or have lost their checkpoints. Runs before their first
validation are left out. Prints the last and the lowest validation perplexity, the best scores if the run decoded its
validation set, speed and hours. --plot and --json have every epoch. Runs of one name differ in their seed only and get
a mean and standard deviation. Date, code and machine in --json describe this command. For finished runs, compare runs
also measures the test set.""",
    example="--path doc=checkpoints/doc tied=checkpoints/tied --plot curves.png",
)
