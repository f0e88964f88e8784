"""Parse reranking: ``python -m fairseq_plugins.cli.rerank_trees --help``."""

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple, get_args

import fairseq_plugins  # noqa: F401  registers the architectures
from fairseq_plugins.data.corpus import load_dictionary
from fairseq_plugins.data.text_files import check_file
from fairseq_plugins.evaluation.checkpoints import load_scoring_models
from fairseq_plugins.flags.command import Command
from fairseq_plugins.flags.common_arguments import (
    add_checkpoints,
    add_cpu,
    add_data,
    add_json,
    add_out,
    choose_device,
)
from fairseq_plugins.flags.values import check_at_least_one
from fairseq_plugins.flags.written_file import write_text
from fairseq_plugins.reports.json_text import json_text
from fairseq_plugins.reports.provenance import with_origin
from fairseq_plugins.reports.tables import as_table
from fairseq_plugins.trees.bracket_scores import PunctuationOf
from fairseq_plugins.trees.choices import SystemScore, best_by_gold, best_by_models, best_by_parser, score_choices
from fairseq_plugins.trees.gold_sentences import read_gold_sentences
from fairseq_plugins.trees.hypothesis_scores import Ensemble, ModelScores, check_lengths, score_hypotheses
from fairseq_plugins.trees.linearisation import read_linearisation
from fairseq_plugins.trees.parse_lists import read_parse_lists
from fairseq_plugins.trees.sentences import Sentence, read_sentences

PARSER, ORACLE = "parser", "oracle"


class RerankTrees(Command):
    """Reranks the trees of a parser."""

    name = "rerank_trees"
    summary = "Bracket scores of the trees that language models choose among a parser's candidates."
    description = """\
Each candidate is read as symbols from a fresh state; the one with the highest probability, end mark included, is
chosen. Candidates with the same symbols are one; failed parses, which are empty, are none. Recall, precision, F1 and
exact match are EVALB's with the parameters of Collins, for all lengths, but that the gold tree tells which words are
punctuation; --punctuation own is EVALB's rule. The parser's own choice and the best possible one, the oracle, stand
beside.

Lists are in the form of Charniak's parser (COUNT<TAB>ID, then a line of log-probability and a line of tree for each
candidate), in the order of the gold trees; or a line ID<TAB>SCORE<TAB>TREE for each candidate, in any order. Gold trees
stand one a line, as ID<TAB>TREE or as TREE; without IDs, the ID of a list in any order is the number of the gold tree's
line, from 0. Files may be compressed by gzip."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_data(parser, written_by="data-prep/wsj/prepare.sh")
        add_checkpoints(parser, help="one language model or several, each alone and all together")
        parser.add_argument(
            "--lists",
            nargs="+",
            action="extend",
            type=Path,
            required=True,
            metavar="FILE",
            help="candidates, a file for each split",
        )
        parser.add_argument(
            "--gold",
            nargs="+",
            action="extend",
            type=Path,
            required=True,
            metavar="FILE",
            help="gold trees, a file for each of --lists",
        )
        parser.add_argument(
            "--ensemble",
            choices=get_args(Ensemble),
            default="sum",
            help="several models together: sum of log-probabilities of a tree, or mean of probabilities of a symbol "
            "(default: %(default)s)",
        )
        parser.add_argument(
            "--punctuation",
            choices=get_args(PunctuationOf),
            default="gold",
            help="parts of speech that tell which words are punctuation: the gold tree's, or each tree's own as in "
            "EVALB, which then skips trees that have other words left (default: %(default)s)",
        )
        parser.add_argument(
            "--max-tokens",
            type=int,
            default=4096,
            metavar="N",
            help="symbols of a batch; not part of the result (default: %(default)s)",
        )
        add_out(parser, help="write the chosen trees and the scores of all candidates here", required=False)
        add_cpu(parser)
        add_json(parser)

    def run(self, args: argparse.Namespace) -> None:
        check_at_least_one(args.max_tokens, flag="--max-tokens")
        check_names(args.path, ensemble=args.ensemble)
        splits = paired_files(args.lists, args.gold)
        device = choose_device(args)
        shows_progress = sys.stderr.isatty()
        linearisation = read_linearisation(args.data)
        models = [model.to(device) for model in load_scoring_models(args.path, args.data)]
        dictionary = load_dictionary(args.data)
        sentences = {
            name: read_sentences(
                read_parse_lists(lists),
                read_gold_sentences(gold),
                linearisation=linearisation,
                dictionary=dictionary,
                punctuation_of=args.punctuation,
                show_progress=shows_progress,
            )
            for name, (lists, gold) in splits.items()
        }
        for of_split in sentences.values():
            check_lengths(models, of_split)
        results = {}
        for name, of_split in sentences.items():
            scores = score_hypotheses(
                models,
                of_split,
                ensemble=args.ensemble,
                max_tokens=args.max_tokens,
                device=device,
                show_progress=shows_progress,
            )
            results[name] = systems(of_split, scores, paths=args.path, ensemble=args.ensemble)
            if args.out:
                write_choices(of_split, scores, paths=args.path, folder=args.out, name=name)
        if args.json:
            figures = {name: as_figures(sentences[name], results[name]) for name in splits}
            print(json_text(with_origin({"splits": figures}, command=args.command_line)))
        else:
            print("\n\n".join(as_text(name, sentences[name], results[name]) for name in splits))
            rule = RULES[args.punctuation]
            print(f"\nBrackets as EVALB has them, punctuation by {rule} (--punctuation {args.punctuation}).")


RULES: Dict[PunctuationOf, str] = {
    "gold": "the parts of speech of the gold tree",
    "own": "each tree's own parts of speech, as EVALB",
}
"""What ``--punctuation`` means, for the table."""


def check_names(paths: Sequence[str], *, ensemble: Ensemble) -> None:
    """Refuse paths of models that the rows of the results cannot be told apart by.

    Raises:
        ValueError: if a path stands there twice, or has the name of another row.
    """
    for path in paths:
        if paths.count(path) > 1:
            raise ValueError(f"--path names {path} twice: give each model once")
        if path in (PARSER, ORACLE, together_name(paths, ensemble=ensemble)):
            raise ValueError(f"--path {path}: another row of the results has this name: write ./{path}")


def together_name(paths: Sequence[str], *, ensemble: Ensemble) -> str:
    """The name of all models together."""
    return f"{ensemble} of {len(paths)}"


def paired_files(lists: Sequence[Path], gold: Sequence[Path]) -> Dict[str, Tuple[Path, Path]]:
    """File of lists and file of gold trees of each split, by the name of the latter.

    Raises:
        ValueError: if they are not as many, one is missing, or two have the same name.
    """
    for path in lists:
        check_file(path, wanted="a file of a parser's candidates")
    for path in gold:
        check_file(path, wanted="a file of gold trees")
    if len(lists) != len(gold):
        raise ValueError(f"--lists names {len(lists)} files and --gold {len(gold)}: give as many, in the same order")
    names = [path.name.removesuffix(".gz").removesuffix(".trees") for path in gold]
    if len(set(names)) < len(names):
        raise ValueError("--gold: two files have the same name, which the results are told apart by")
    return dict(zip(names, zip(lists, gold)))


def systems(
    sentences: Sequence[Sentence], scores: ModelScores, *, paths: Sequence[str], ensemble: Ensemble
) -> Dict[str, SystemScore]:
    """The score of each way to choose, by its name."""
    choices = {PARSER: best_by_parser(sentences)}
    choices.update((path, best_by_models(nll)) for path, nll in zip(paths, scores.alone))
    if len(paths) > 1:
        choices[together_name(paths, ensemble=ensemble)] = best_by_models(scores.together)
    scores_of_choices = {name: score_choices(sentences, chosen) for name, chosen in choices.items()}
    return {**scores_of_choices, ORACLE: score_choices(sentences, best_by_gold(sentences), counted="best")}


def as_figures(sentences: Sequence[Sentence], results: Dict[str, SystemScore]) -> Dict[str, Any]:
    """All figures of a split, rates as parts of one."""
    rates = ("recall", "precision", "f1", "exact")
    return {
        **sizes(sentences),
        "systems": {
            name: {
                **asdict(result.counts),
                **{rate: getattr(result.counts, rate) for rate in rates},
                "skipped": result.skipped,
            }
            for name, result in results.items()
        },
    }


def sizes(sentences: Sequence[Sentence]) -> Dict[str, int]:
    """How much there was to choose from."""
    return {
        "sentences": len(sentences),
        "candidates": sum(sentence.num_candidates for sentence in sentences),
        "different": sum(len(sentence.hypotheses) for sentence in sentences),
    }


def as_text(name: str, sentences: Sequence[Sentence], results: Dict[str, SystemScore]) -> str:
    """A table of percentages, and the sentences that a row leaves out."""
    counts = sizes(sentences)
    rows = [
        (system, *(f"{100 * rate:.2f}" for rate in (one.recall, one.precision, one.f1, one.exact)), one.num_trees)
        for system, one in ((system, result.counts) for system, result in results.items())
    ]
    lines = [
        f"{name}: {counts['sentences']:,} sentences, {counts['candidates']:,} candidates, "
        f"{counts['different']:,} different",
        "",
        as_table(["system", "recall", "precision", "F1", "exact", "sentences scored"], rows),
    ]
    for system, result in results.items():
        if result.skipped:
            shown = ", ".join(result.skipped[:5]) + (", ..." if len(result.skipped) > 5 else "")
            lines.append(
                f"{system} leaves out {len(result.skipped)} (no candidate, other words than the gold tree, or "
                f"punctuation alone): {shown}"
            )
    return "\n".join(lines)


def write_choices(
    sentences: Sequence[Sentence], scores: ModelScores, *, paths: Sequence[str], folder: Path, name: str
) -> None:
    """Write the chosen trees, one a line and empty where there is no candidate, and the scores of all hypotheses."""
    folder.mkdir(parents=True, exist_ok=True)
    trees: List[str] = []
    rows = ["\t".join(["sentence", "candidate", "parser", *paths, "together"])]
    for number, (sentence, choice) in enumerate(zip(sentences, best_by_models(scores.together))):
        trees.append("" if choice is None else sentence.hypotheses[choice].candidate.bracketed)
        columns = [nll[number].tolist() for nll in (*scores.alone, scores.together)]
        for hypothesis, *nll in zip(sentence.hypotheses, *columns):
            figures = [f"{hypothesis.candidate.score:.9g}", *(f"{one:.6f}" for one in nll)]
            rows.append("\t".join([sentence.name, str(hypothesis.place), *figures]))
    write_text(folder / f"{name}.reranked.trees", "".join(f"{tree}\n" for tree in trees))
    write_text(folder / f"{name}.scores.tsv", "".join(f"{row}\n" for row in rows))


if __name__ == "__main__":
    RerankTrees().main()
