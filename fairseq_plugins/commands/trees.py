"""Reranking of a parser's candidates."""

import argparse
import itertools
from collections import Counter
from pathlib import Path
from typing import Collection, Dict, List, Mapping, Sequence, Tuple, get_args

from torch import Tensor

from fairseq_plugins.command_line import add_checkpoints, add_cpu, add_data, add_out, choose_device
from fairseq_plugins.commands.report import report_command
from fairseq_plugins.data.text import load_dictionary
from fairseq_plugins.evaluation.checkpoints import load_language_models
from fairseq_plugins.files import check_file, check_not_read, distinct_digests, given_path, write_lines
from fairseq_plugins.metrics.bootstrap import NUM_BOOTSTRAP_SAMPLES
from fairseq_plugins.options import UserError, check_choice, count, optionally_named_paths
from fairseq_plugins.reports.report import Report
from fairseq_plugins.reports.reranking import by_run, reranking_report, row_names
from fairseq_plugins.trees.reranking import (
    ORACLE,
    PARSER,
    Combination,
    Sentence,
    best_by_models,
    ensembles_of,
    read_gold_sentences,
    read_parse_lists,
    read_sentences,
    score_hypotheses,
    score_systems,
)
from fairseq_plugins.trees.trees import PunctuationOf, read_linearisation

SCORES_COLUMNS = ("sentence", "candidate")
"""The first columns of the file of scores."""


def _add_rerank_arguments(parser: argparse.ArgumentParser) -> None:
    add_data(parser)
    add_checkpoints(
        parser,
        help="one language model or several, each alone and all together; or NAME=CKPT for each, with one NAME "
        "for models that differ in their seed",
    )
    parser.add_argument(
        "--lists",
        nargs="+",
        action="extend",
        type=given_path,
        required=True,
        metavar="FILE",
        help="candidates, a file for each split",
    )
    parser.add_argument(
        "--gold",
        nargs="+",
        action="extend",
        type=given_path,
        required=True,
        metavar="FILE",
        help="gold trees, a file for each of --lists",
    )
    parser.add_argument(
        "--ensemble",
        choices=get_args(Combination),
        default="sum",
        help="several models together: sum of log-probabilities of a tree, or mean of probabilities of a symbol "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--punctuation",
        choices=get_args(PunctuationOf),
        default="gold",
        help="parts of speech that tell which words are punctuation: the gold tree's, or each tree's own as in "
        "EVALB; a tree whose other words are not those of the gold tree is skipped (default: %(default)s)",
    )
    parser.add_argument(
        "--max-tokens",
        type=count,
        default=4096,
        metavar="N",
        help="symbols of a batch; not part of the result (default: %(default)s)",
    )
    parser.add_argument(
        "--baseline",
        metavar="NAME",
        help=f"what the others are tested against: {PARSER}, a NAME or CKPT, or several models together as the "
        f"table calls them; differences with 95 %% intervals from {NUM_BOOTSTRAP_SAMPLES:,} samples of the "
        "sentences, each with what all seeds chose (default: none)",
    )
    add_out(parser, help="write the tables, chosen trees and scores of all candidates here", required=False)
    add_cpu(parser)


def _rerank(args: argparse.Namespace) -> Report:
    named = optionally_named_paths(args.path)
    paths = [path for _, path in named]
    distinct_digests(paths, flag="--path")
    groups: Dict[str, List[str]] = {}
    for name, path in named:
        groups.setdefault(name, []).append(path)
    ensembles = ensembles_of(groups, combination=args.ensemble)
    check_names(groups, ensembles)
    if args.baseline is not None:
        check_choice(args.baseline, [PARSER, *groups, *ensembles], flag="--baseline")
    splits = paired_files(args.lists, args.gold)
    for name, kind in itertools.product(splits if args.out else (), ("reranked.trees", "scores.tsv")):
        check_not_read(args.out / f"{name}.{kind}", [*args.lists, *args.gold], flag="--out")
    device = choose_device(args)
    linearisation = read_linearisation(args.data)
    loaded = dict(zip(paths, load_language_models(paths, args.data)))
    models = {name: [loaded[path].to(device) for path in members] for name, members in groups.items()}
    dictionary = load_dictionary(args.data)
    sentences = {
        name: read_sentences(
            read_parse_lists(lists),
            read_gold_sentences(gold),
            linearisation=linearisation,
            dictionary=dictionary,
            punctuation_of=args.punctuation,
        )
        for name, (lists, gold) in splits.items()
    }
    reports: Dict[str, Report] = {}
    for name, of_split in sentences.items():
        nll = score_hypotheses(models, of_split, combination=args.ensemble, max_tokens=args.max_tokens)
        if args.out:
            write_choices(of_split, by_run(nll), folder=args.out, name=name)
        systems = score_systems(of_split, nll)
        reports[name] = reranking_report(name, of_split, systems, checkpoints=by_run(groups), baseline=args.baseline)
    rule = f"punctuation by {RULES[args.punctuation]} (--punctuation {args.punctuation})"
    texts = [*(one.text for one in reports.values()), f"Brackets as EVALB has them, {rule}."]
    report = Report({"splits": {name: one.figures for name, one in reports.items()}}, "\n\n".join(texts))
    if args.out:
        report.write(args.out, command=args.command_line, name="table")
    return report


RERANK = report_command(
    _rerank,
    _add_rerank_arguments,
    description="""\
Models read each candidate as symbols from a fresh state, end mark included, and choose the most probable one.
Candidates with the same symbols count once. Failed parses, which are empty, are left out. Recall, precision, F1 and
exact match are EVALB's with the parameters of Collins, for all lengths, with one difference: the gold tree decides
which words are punctuation. --punctuation own is EVALB's rule. The table also has the parser's own choice and the best
possible one, the oracle.

Models of one NAME differ in their seed only. The table has their mean, their standard deviation, and what they choose
together. --baseline tests all other rows except the oracle against one of them by a paired bootstrap over sentences. p
is two-sided.

--out DIR writes table.md and table.json. For each split, named after its file of gold trees, it writes
SPLIT.reranked.trees, the tree of each sentence that all models together choose, and SPLIT.scores.tsv, a line for each
candidate: the parser's log-probability, then -log p in nats by each model and by models together (the lowest wins).

Lists have one of two forms. Charniak's parser writes COUNT<TAB>ID and then, for each candidate, a line with its
log-probability and a line with its tree; lists are in the order of the gold trees. The other is a line
ID<TAB>SCORE<TAB>TREE for each candidate, in any order. Gold trees are one a line, ID<TAB>TREE or TREE. Without IDs, the
ID of a gold tree is the number of its line, from 0. Files may be compressed by gzip.""",
    example="data-bin/wsj --path checkpoints/wsj --lists nbest.test.gz --gold gold.test.trees",
)


RULES: Dict[PunctuationOf, str] = {
    "gold": "the parts of speech of the gold tree",
    "own": "each tree's own parts of speech, as EVALB",
}
"""Meaning of the values of ``--punctuation``, for the table."""


def check_names(groups: Mapping[str, Sequence[str]], ensembles: Collection[str]) -> None:
    """Check that names of models are unique in the results.

    Raises:
        UserError: if a model has the name of another row or column.
    """
    rows = {name: row_names(name, members) for name, members in groups.items()}
    every_row = [row for of_name in rows.values() for row in of_name]
    taken = Counter([*SCORES_COLUMNS, PARSER, ORACLE, *ensembles, *every_row])
    for name, of_name in rows.items():
        if any(taken[row] > 1 for row in of_name):
            raise UserError(
                f"--path {name}: another row or column of the results has this name: give another NAME, or write ./ "
                "before a path"
            )


def paired_files(lists: Sequence[Path], gold: Sequence[Path]) -> Dict[str, Tuple[Path, Path]]:
    """Files of candidate lists and of gold trees of each split, by the name of the gold file.

    Raises:
        UserError: if their numbers differ, one is missing, or two have the same name.
    """
    for path in lists:
        check_file(path, wanted="a file of a parser's candidates")
    for path in gold:
        check_file(path, wanted="a file of gold trees")
    if len(lists) != len(gold):
        raise UserError(f"--lists names {len(lists)} files and --gold {len(gold)}: give as many, in the same order")
    names = [path.name.removesuffix(".gz").removesuffix(".trees") for path in gold]
    if len(set(names)) < len(names):
        raise UserError("--gold: two files have the same name, and results are named after them")
    return dict(zip(names, zip(lists, gold)))


def write_choices(
    sentences: Sequence[Sentence], nll_of: Mapping[str, Sequence[Tensor]], *, folder: Path, name: str
) -> None:
    """Write the trees that the last column chooses, a line each, and all scores. A line without a candidate is empty.

    Args:
        sentences: sentences of a split.
        nll_of: NLL of hypotheses by column.
        folder: directory of the files, which is created if missing.
        name: name of the split.
    """
    folder.mkdir(parents=True, exist_ok=True)
    trees: List[str] = []
    rows = ["\t".join([*SCORES_COLUMNS, PARSER, *nll_of])]
    *_, last = nll_of.values()
    for number, (sentence, choice) in enumerate(zip(sentences, best_by_models(last))):
        trees.append("" if choice is None else sentence.hypotheses[choice].candidate.bracketed)
        columns = [nll[number].tolist() for nll in nll_of.values()]
        for hypothesis, *nll in zip(sentence.hypotheses, *columns):
            figures = [f"{hypothesis.candidate.score:.9g}", *(f"{one:.6f}" for one in nll)]
            rows.append("\t".join([sentence.name, str(hypothesis.rank), *figures]))
    write_lines(folder / f"{name}.reranked.trees", trees)
    write_lines(folder / f"{name}.scores.tsv", rows)
