"""Analyses of trained language models and of runs."""

import argparse
from typing import Callable, Dict, Tuple, TypeVar

from fairseq.data import Dictionary
from fairseq.models import FairseqLanguageModel

from fairseq_plugins.command_line import (
    add_checkpoints,
    add_cpu,
    add_data,
    add_folders,
    add_split,
    choose_device,
)
from fairseq_plugins.commands.report import report_command
from fairseq_plugins.data.text import load_dictionary, load_token_stream, load_training_stream
from fairseq_plugins.evaluation.analyses.experts import singular_values
from fairseq_plugins.evaluation.analyses.layers import (
    LAYER_MASKS,
    layer_correlations,
    masking_curves,
    recurrent_stack,
    spectra,
    timescales,
)
from fairseq_plugins.evaluation.analyses.words import (
    compare_bands,
    losses_by_type,
    raised_words,
    word_gate,
    word_indices,
)
from fairseq_plugins.evaluation.checkpoints import load_language_models
from fairseq_plugins.evaluation.scoring import check_rows, check_vocabularies
from fairseq_plugins.models.checkpoints import naming_checkpoint
from fairseq_plugins.options import UserError, check_not_negative, check_positive, count, named_paths, whole_number
from fairseq_plugins.reports.analyses import (
    correlation_report,
    frequency_report,
    gate_words_report,
    masking_report,
    rank_report,
    spectrum_report,
    timescale_report,
)
from fairseq_plugins.reports.learning_curves import generalization_report, read_generalization
from fairseq_plugins.reports.report import Report

PROBABILITIES = [round(0.05 * i, 2) for i in range(11)]


Found = TypeVar("Found")


def _load_named(args: argparse.Namespace) -> Tuple[Dict[str, FairseqLanguageModel], Dictionary]:
    """Models of ``--path NAME=CKPT...`` by name, and their dictionary."""
    names, paths = zip(*named_paths(args.path, repeated_names="refused"))
    models = load_language_models(paths, args.data)
    return dict(zip(names, models)), check_vocabularies(models)


def _of_each(
    models: Dict[str, FairseqLanguageModel], args: argparse.Namespace, look: Callable[[FairseqLanguageModel], Found]
) -> Dict[str, Found]:
    """Call ``look`` on each model. Return the results by name; errors name the checkpoint."""
    found = {}
    for name, path in named_paths(args.path):
        with naming_checkpoint(path):
            found[name] = look(models[name])
    return found


def _load_one(args: argparse.Namespace) -> Tuple[FairseqLanguageModel, Dictionary]:
    if len(args.path) > 1:
        raise UserError(f"--path: give one checkpoint; there are {len(args.path)}")
    (model,) = load_language_models(args.path, args.data)
    return model, model.decoder.dictionary


def _add_frequency_arguments(parser: argparse.ArgumentParser) -> None:
    add_data(parser)
    add_checkpoints(parser, metavar="NAME=CKPT", help="two models, the baseline first")
    add_split(parser)
    add_cpu(parser)


def _analyze_frequency(args: argparse.Namespace) -> Report:
    if len(args.path) != 2:
        raise UserError(f"--path: give two models, the baseline first; there are {len(args.path)}")
    device = choose_device(args)
    models, dictionary = _load_named(args)
    tokens = load_token_stream(args.data, args.split, dictionary)
    train_tokens = load_training_stream(args.data, dictionary)
    size = len(dictionary)
    baseline, other = (losses_by_type([model.to(device)], tokens, vocab_size=size) for model in models.values())
    bands = compare_bands(
        baseline,
        other,
        train_counts=train_tokens.bincount(minlength=size),
        counts=tokens[1:].bincount(minlength=size),
        excluded=[dictionary.eos()],
    )
    return frequency_report(bands, names=list(models))


FREQUENCY = report_command(
    _analyze_frequency,
    _add_frequency_arguments,
    plot="draw both statistics, such as bands.png",
    description="""\
Words are put into bands by their frequency in the training text. B is the summed loss of the first model, the baseline,
O the second model's. For each band the table has two gains in per cent: the mean of (B - O) / O over word types, as in
figure 3 of Pappas & Henderson 2019, and (B - O) / B of the whole band. The end mark is left out; the unknown
word counts as one word.""",
    example="data-bin/ptb --path tied=checkpoints/tied drill=checkpoints/drill --plot bands.png",
)


def _add_rank_arguments(parser: argparse.ArgumentParser) -> None:
    add_data(parser)
    add_checkpoints(parser, help="one checkpoint")
    add_split(parser, help="split whose positions are taken")
    parser.add_argument("--positions", type=count, help="take the first positions only (default: all)")
    parser.add_argument(
        "--threshold",
        type=float,
        default=1.0,
        help="singular values above it count (default: %(default)s, as in the program published with DRILL)",
    )
    add_cpu(parser)


def _analyze_rank(args: argparse.Namespace) -> Report:
    check_not_negative(args.threshold, flag="--threshold")
    model, dictionary = _load_one(args)
    tokens = load_token_stream(args.data, args.split, dictionary)
    tokens = tokens[: None if args.positions is None else args.positions + 1]
    values = singular_values(model.to(choose_device(args)), tokens)
    return rank_report(values, num_positions=len(tokens) - 1, threshold=args.threshold)


RANK = report_command(
    _analyze_rank,
    _add_rank_arguments,
    description="""\
The matrix of log-probabilities has a row for each position and a column for each word. Its rank is the number of its
singular values above a threshold. The rank of a single softmax of d features is at most d + 2. Memory does not grow
with the positions. It is 16 bytes for each pair of words: 1.6 GB for 10,000 words.""",
    example="data-bin/ptb --path checkpoints/doc --positions 11000",
)


def _add_correlation_arguments(parser: argparse.ArgumentParser) -> None:
    add_data(parser)
    add_checkpoints(parser, metavar="NAME=CKPT", help="trained models")
    add_split(parser, help="split to read")
    add_cpu(parser)


def _analyze_correlation(args: argparse.Namespace) -> Report:
    device = choose_device(args)
    models, dictionary = _load_named(args)
    _of_each(models, args, recurrent_stack)  # all are checked before the first is read
    tokens = load_token_stream(args.data, args.split, dictionary)
    return correlation_report({name: layer_correlations(model.to(device), tokens) for name, model in models.items()})


CORRELATION = report_command(
    _analyze_correlation,
    _add_correlation_arguments,
    description="""\
For each recurrent layer: the mean absolute Pearson correlation, 0 to 1, of pairs of its output features over the
positions of a split. For Major-Minor LSTMs also of pairs within the major part, within the minor part, and between the
two.""",
    example="data-bin/ptb --path doc=checkpoints/doc tied=checkpoints/tied",
)


def _add_masking_arguments(parser: argparse.ArgumentParser) -> None:
    add_data(parser)
    add_checkpoints(parser, metavar="NAME=CKPT", help="models with the same number of layers")
    add_split(parser)
    parser.add_argument(
        "--probabilities",
        nargs="+",
        action="extend",
        type=float,
        metavar="P",
        help="from 0 to 1 (default: 0 to 0.5 in steps of 0.05)",
    )
    parser.add_argument("--runs", type=count, default=5, help="runs for each probability (default: %(default)s)")
    parser.add_argument(
        "--mask",
        choices=LAYER_MASKS,
        default="element",
        help="element: a new mask at every position; locked: one mask for the whole run (default: %(default)s)",
    )
    parser.add_argument(
        "--rows",
        type=count,
        default=10,
        help="parallel rows the stream is cut into, for speed: each starts from zero, its first token unscored; "
        "1 gives the perplexity of lm eval where P is 0 (default: %(default)s)",
    )
    add_cpu(parser)


def _analyze_masking(args: argparse.Namespace) -> Report:
    probabilities = args.probabilities or PROBABILITIES
    wrong = [probability for probability in probabilities if not 0 <= probability <= 1]
    if wrong:
        raise UserError(f"--probabilities {wrong[0]:g}: give numbers from 0 to 1")
    if len(set(probabilities)) < len(probabilities):
        raise UserError("--probabilities: give each number once")
    device = choose_device(args)
    models, dictionary = _load_named(args)
    _of_each(models, args, recurrent_stack)  # all are checked before the first is read
    tokens = load_token_stream(args.data, args.split, dictionary)
    check_rows(tokens, num_rows=args.rows, split=args.split)
    curves = masking_curves(
        {name: model.to(device) for name, model in models.items()},
        tokens,
        probabilities=probabilities,
        kind=args.mask,
        num_runs=args.runs,
        num_rows=args.rows,
    )
    return masking_report(curves)


MASKING = report_command(
    _analyze_masking,
    _add_masking_arguments,
    plot="draw the curves, such as masking.png",
    description="""\
Outputs of recurrent layers are set to zero with probability P, in all layers at once and in each layer alone, as in
figure 5 of Shuang et al. 2020. The other outputs are not rescaled. Prints the mean over runs with different masks.""",
    example="data-bin/ptb --path doc=checkpoints/doc --plot masking.png",
)


def _add_gate_words_arguments(parser: argparse.ArgumentParser) -> None:
    add_data(parser)
    add_checkpoints(parser, help="one checkpoint of a language model with --output-gate iog")
    parser.add_argument("--words", nargs="+", action="extend", required=True, metavar="WORD", help="input words")
    parser.add_argument(
        "--min-count",
        type=whole_number(at_least=0),
        default=100,
        metavar="N",
        help="leave out words that the training text has less often (default: %(default)s)",
    )
    parser.add_argument(
        "--num", type=count, default=5, metavar="N", help="words to show after each input word (default: %(default)s)"
    )


def _analyze_gate_words(args: argparse.Namespace) -> Report:
    word_indices(args.words, load_dictionary(args.data))
    model, dictionary = _load_one(args)
    with naming_checkpoint(args.path[0]):
        gate = word_gate(model)
    raised = raised_words(
        gate,
        args.words,
        dictionary=dictionary,
        counts=load_training_stream(args.data, dictionary).bincount(minlength=len(dictionary)),
        min_count=args.min_count,
        num_words=args.num,
    )
    return gate_words_report(raised)


GATE_WORDS = report_command(
    _analyze_gate_words,
    _add_gate_words_arguments,
    description="""\
The gate multiplies the logits of output words. Ranks the words by it, as table 5 of Takase, Suzuki & Nagata 2017. Words
that are rare in the training text are left out, because their gates hardly learn.""",
    example="data-bin/ptb --path checkpoints/iog --words of in",
)


def _add_spectrum_arguments(parser: argparse.ArgumentParser) -> None:
    add_data(parser)
    add_checkpoints(
        parser,
        metavar="NAME=CKPT",
        help="models with --rnn-cell rectifier, smooth-rectifier, or diagonal with --transition full",
    )


def _analyze_spectrum(args: argparse.Namespace) -> Report:
    models, _ = _load_named(args)
    return spectrum_report(_of_each(models, args, spectra))


SPECTRUM = report_command(
    _analyze_spectrum,
    _add_spectrum_arguments,
    plot="draw them, such as spectrum.png",
    description="""\
Draws the eigenvalues in the complex plane with the unit circle. The table has the most negative real eigenvalue and the
share of its eigenvectors' entries that have the same sign. Pachitariu & Sahani 2013 explain it: such a direction
inhibits all units when many fire, which keeps the network stable.""",
    example="data-bin/ptb --path rectifier=checkpoints/rectifier --plot spectrum.png",
)


def _add_timescales_arguments(parser: argparse.ArgumentParser) -> None:
    add_data(parser)
    add_checkpoints(parser, metavar="NAME=CKPT", help="models with --rnn-cell diagonal")


def _analyze_timescales(args: argparse.Namespace) -> Report:
    models, _ = _load_named(args)
    return timescale_report(_of_each(models, args, timescales))


TIMESCALES = report_command(
    _analyze_timescales,
    _add_timescales_arguments,
    plot="draw them, such as timescales.png",
    description="""\
The timescale of a unit is -1 / log r tokens, after which 1/e of its state is left (Pachitariu & Sahani 2013). Units
with r < 0 change their sign at every token and have no timescale.""",
    example="data-bin/ptb --path fpnn=checkpoints/fpnn --plot timescales.png",
)


def _add_generalization_arguments(parser: argparse.ArgumentParser) -> None:
    add_folders(parser, help="runs, finished or not")
    parser.add_argument(
        "--at",
        nargs="+",
        action="extend",
        type=float,
        default=[],
        metavar="PPL",
        help="training perplexities at which to compare, interpolated between epochs (default: none)",
    )


def _analyze_generalization(args: argparse.Namespace) -> Report:
    for level in args.at:
        check_positive(level, flag="--at")
    runs = [read_generalization(name, path) for name, path in named_paths(args.path, repeated_names="refused")]
    return generalization_report(runs, levels=args.at)


GENERALIZATION = report_command(
    _analyze_generalization,
    _add_generalization_arguments,
    plot="draw the curves, such as generalization.png",
    description="""\
Reads train.log of each run, epoch by epoch. Of two runs with equal training perplexity, the one with the lower
validation perplexity generalizes better. If both are on one curve, one is only faster than the other.

The log's training perplexity is the mean over the updates of an epoch, with dropout. Validation follows the epoch. So
compare runs with equal dropout and epochs, at levels that both pass slowly. A run that learns fast within an epoch, as
in the first epoch or after the learning rate falls, looks better than it is. Noise-contrastive estimation logs no
training perplexity. Date, code and machine in --json describe this command, not the runs.""",
    example="--path doc=checkpoints/doc tied=checkpoints/tied --at 80 60 --plot generalization.png",
)
