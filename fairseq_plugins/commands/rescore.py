"""Rescoring of n-best lists by language models and encoder-decoders."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence

import numpy as np
from fairseq.models import BaseFairseqModel, FairseqEncoderDecoderModel

from fairseq_plugins.command_line import add_checkpoints, add_cpu, add_data, add_input, add_json, choose_device
from fairseq_plugins.commands.report import print_report
from fairseq_plugins.console import Command
from fairseq_plugins.data.pairs import Languages, languages_of
from fairseq_plugins.data.tasks import task_config
from fairseq_plugins.evaluation.checkpoints import load_with_task, one_pair
from fairseq_plugins.evaluation.nbest import LIST_FORMATS, NBestLists, read_nbest, write_nbest
from fairseq_plugins.evaluation.raw_text import LANGUAGES, check_language, compared_case, read_record
from fairseq_plugins.evaluation.rescoring import (
    CandidateFeatures,
    CandidateTexts,
    candidate_features,
    read_weights,
    unknown_share,
    weights_of_models,
)
from fairseq_plugins.files import (
    STANDARD_INPUT,
    check_not_read,
    distinct_digests,
    given_path,
    name_of,
    output_file,
)
from fairseq_plugins.metrics.corpus import CORPUS_METRICS, SACREBLEU_METRICS, bleu_of_text, check_script
from fairseq_plugins.models.checkpoints import check_checkpoints, naming_checkpoint
from fairseq_plugins.options import UserError, count, flag_of, whole_number
from fairseq_plugins.reports.report import Report, write_figures
from fairseq_plugins.reports.tables import as_table

OUTPUTS = ("text", "lists", "scores")

DEFAULT_METRIC = "bleu"

RESTARTS, SEED = 4, 1
"""Defaults of the search for weights."""


def _add_rescore_arguments(parser: argparse.ArgumentParser) -> None:
    add_data(parser)
    add_checkpoints(parser, help="language models and encoder-decoders, a feature each")
    add_input(parser, help="the lists, read as one; - is the standard input (default)")
    parser.add_argument(
        "--input-format",
        choices=LIST_FORMATS,
        default="generate",
        help=f"{'; '.join(f'{name}: {one.form}' for name, one in LIST_FORMATS.items())} (default: %(default)s)",
    )
    parser.add_argument(
        "--source",
        type=given_path,
        metavar="FILE",
        help="sources that encoder-decoders read, tokens of DATA (default: those in the lists)",
    )
    parser.add_argument(
        "--reference",
        type=given_path,
        metavar="FILE",
        help="references: raw text with --target-lang, otherwise tokens as in the lists (default: those in the "
        "lists, if they have any)",
    )
    parser.add_argument(
        "--target-lang",
        metavar="LANGUAGE",
        help="undo the tokenisation of DATA, in this language, in texts and metrics (default: texts are taken as "
        "they are)",
    )
    weights = parser.add_mutually_exclusive_group(required=True)
    weights.add_argument(
        "--tune",
        type=output_file,
        metavar="FILE",
        help="tune weights to the references and write them to this file",
    )
    weights.add_argument(
        "--weights", type=given_path, metavar="FILE", help="weights that --tune wrote, for these models"
    )
    parser.add_argument(
        "--metric",
        choices=CORPUS_METRICS,
        help="metric to tune to, and metrics to print: BLEU and chrF, or ROUGE (default: the metric of --weights; with "
        f"--tune {DEFAULT_METRIC})",
    )
    parser.add_argument(
        "--restarts",
        type=whole_number(at_least=0),
        metavar="N",
        help=f"random starts of the search (default: {RESTARTS})",
    )
    parser.add_argument("--seed", type=whole_number(at_least=0), help=f"seed of the search (default: {SEED})")
    parser.add_argument(
        "--output",
        choices=OUTPUTS,
        help="text: the best candidate of each sentence; lists: all, reordered, with the new scores; scores: the "
        "metrics before and after, with --weights the significance as well (default: scores with --tune, otherwise "
        "text)",
    )
    parser.add_argument(
        "--max-tokens", type=count, default=4096, metavar="N", help="tokens of a batch (default: %(default)s)"
    )
    add_cpu(parser)
    add_json(parser)


def _rescore(args: argparse.Namespace) -> None:
    args.output = args.output or ("text" if args.tune is None else "scores")
    _check(args)
    digests = distinct_digests(args.path, flag="--path")
    given = None if args.weights is None else read_weights(args.weights)
    weights = None if given is None else weights_of_models(given, digests)
    metric = args.metric or (DEFAULT_METRIC if given is None else given["metric"])
    texts = _read_texts(args, metric=metric)
    features = _compute_features(args, texts.lists)
    if weights is None:
        weights = _tune(args, texts, features, metric=metric, digests=digests)
    sums = features.weighted_sums(np.array(weights))
    chosen = sums.argmax(1).tolist()
    if args.output == "scores":
        is_tested = args.tune is None  # on text that weights are tuned to, p would be invalid
        gains = {
            one.metric: {"before": one.other_value, "after": one.value, **({"p": one.p} if is_tested else {})}
            for one in texts.gains(chosen, metric=metric)
        }
        weights_by_feature = dict(zip(features.names, weights))
        figures = {"scores": gains, "weights": weights_by_feature}
        print_report(Report(figures, _gains_text(gains, weights_by_feature)), args)
    elif args.output == "text":
        print("\n".join(texts.chosen(chosen)))
    else:
        scores = [row[: len(found)] for row, found in zip(sums, texts.lists.candidates)]
        print(write_nbest(texts.lists, scores, form=args.input_format), end="")


RESCORE = Command(
    add_arguments=_add_rescore_arguments,
    run=_rescore,
    description="""\
The score of a candidate is a weighted sum of its score in the list, its number of tokens, and its log-probability in
nats by each model. --tune searches the weights on lists of a validation set and writes them. --weights applies them to
other lists with the same models.

Models read the texts as they are in the lists, split at white space. So lists and DATA must have the same tokens and
subwords. Language models use DATA/dict.txt, encoder-decoders the two dictionaries of DATA and the sources of the lists.
Marked subwords are joined in printed texts and for metrics. Printed lists keep them.""",
    example="data-bin/tatoeba.de-en --path checkpoints/lm --input test.nbest --weights weights.json",
)


def _check(args: argparse.Namespace) -> None:
    for flag, value in (("--restarts", args.restarts), ("--seed", args.seed)):
        if value is not None and args.tune is None:
            raise UserError(f"{flag} {value} only applies with --tune: leave it out")
    if args.json and args.output != "scores":
        raise UserError(f"--json only applies with --output scores, not {args.output}: leave it out")
    if args.tune is None:
        unread = {"text": ("reference", "metric"), "lists": ("reference", "metric", "target_lang"), "scores": ()}
        for name in unread[args.output]:
            if getattr(args, name) is not None:
                raise UserError(f"{flag_of(name)} has no effect on --output {args.output}: leave it out")
    if args.target_lang is not None:
        check_language(args.target_lang, flag="--target-lang")
    if args.tune is not None:
        read = [*(args.input or []), *map(Path, args.path), *filter(None, [args.source, args.reference])]
        check_not_read(args.tune, [*read, *args.data.iterdir()], flag="--tune")
    check_checkpoints(args.path)


def _read_texts(args: argparse.Namespace, *, metric: str) -> CandidateTexts:
    """Read the candidates, and check their references if ``metric`` is computed."""
    paths: List[Path] = args.input or [STANDARD_INPUT]
    lists = read_nbest(paths, form=args.input_format, unicode=read_record(args.data).unicode)
    if args.source is not None:
        lists = replace(lists, sources=lists.lines_of(args.source))
    texts = CandidateTexts(
        lists, reference=args.reference, language=args.target_lang, case=compared_case(args.data), data=args.data
    )
    if args.tune is not None or args.output == "scores":
        if not texts.references:
            raise UserError(f"{name_of(*paths)} has no references: give --reference FILE")
        check_script(metric, texts.references, flag="--metric")
        if metric in SACREBLEU_METRICS:  # BLEU is printed beside chrF
            bleu_of_text(language=args.target_lang or "")
    return texts


def _compute_features(args: argparse.Namespace, lists: NBestLists) -> CandidateFeatures:
    """Features of all candidates. Warns if a model does not know all of their tokens."""
    device, models = choose_device(args), _load(args.path, args.data, language=args.target_lang)
    if args.source is not None and not any(isinstance(one, FairseqEncoderDecoderModel) for one in models.values()):
        raise UserError("--source is read by encoder-decoders, and --path has language models alone: leave it out")
    moved = {path: model.to(device) for path, model in models.items()}
    features = candidate_features(lists, moved, max_tokens=args.max_tokens)
    for path, model in moved.items():
        if (share := unknown_share(lists, model)) > 0:
            print(
                f"{path} does not know {share:.1%} of the tokens of its texts: if that is more than DATA lacks, give "
                "tokens of DATA, subwords with their marks (fairseq-generate without --remove-bpe)",
                file=sys.stderr,
            )
    return features


def _load(paths: Sequence[str], data: Path, *, language: Optional[str]) -> Dict[str, BaseFairseqModel]:
    """Models by path. ``language`` is the language of the candidates, if it is given."""
    models: Dict[str, BaseFairseqModel] = {}
    pairs: Dict[str, Languages] = {}
    for path in paths:
        with naming_checkpoint(path):
            models[path], task = load_with_task(path, data)
        if isinstance(models[path], FairseqEncoderDecoderModel):
            source, target = languages_of(task_config(task))
            pairs[path] = (str(source), str(target))
    if pairs:
        _, target = one_pair(pairs.values())
        if language is not None and target in LANGUAGES and language != target:
            raise UserError(f"--target-lang {language}: {next(iter(pairs))} translates into {target}: give that")
    return models


def _tune(
    args: argparse.Namespace,
    texts: CandidateTexts,
    features: CandidateFeatures,
    *,
    metric: str,
    digests: Mapping[str, str],
) -> List[float]:
    """Tune the weights of the features and write them to ``--tune``."""
    weights: List[float] = texts.tune(
        features,
        metric=metric,
        num_restarts=RESTARTS if args.restarts is None else args.restarts,
        seed=SEED if args.seed is None else args.seed,
    ).tolist()
    found = {"metric": metric, "weights": dict(zip(features.names, weights)), "digests": digests}
    write_figures(args.tune, found, command=args.command_line)
    return weights


def _gains_text(gains: Mapping[str, Mapping[str, float]], weights: Mapping[str, float]) -> str:
    """A table of the metrics and a table of the weights."""
    formats = {"before": ".2f", "after": ".2f", "p": ".4f"}
    heads = {"p": "p (paired bootstrap, two-sided)"}
    columns = list(next(iter(gains.values())))
    rows = [[title, *(f"{gain[column]:{formats[column]}}" for column in columns)] for title, gain in gains.items()]
    scores = as_table(["", *(heads.get(column, column) for column in columns)], rows)
    return f"{scores}\n\n{as_table(['feature', 'weight'], [[name, f'{one:.4f}'] for name, one in weights.items()])}"
