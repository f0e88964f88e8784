"""The commands of a translation model's life: train, resume, translate, combine."""

import math
import re
import shutil
import subprocess

import pytest
import torch
from commands import ENVIRONMENT, PLUGINS, ROOT, assert_same, load, preprocess, run
from fairseq.checkpoint_utils import load_model_ensemble
from fairseq.data import Dictionary
from translation_commands import (
    SIZES,
    WORDS,
    generate,
    interact,
    preprocess_pairs,
    train_to_the_end,
    train_translation,
    translate,
    write_corpus,
)

EPOCHS = ["--max-epoch", "10"]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("pairs"))


@pytest.fixture(scope="module")
def data(pairs, tmp_path_factory):
    return preprocess_pairs(pairs, tmp_path_factory.mktemp("binarised") / "data bin")


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """A DOC model, with train.log."""
    save_dir = tmp_path_factory.mktemp("trained")
    (save_dir / "train.log").write_text(train_to_the_end(data, save_dir, *EPOCHS))
    return save_dir


@pytest.fixture(scope="module")
def other(data, tmp_path_factory):
    """A plain softmax trained with the host's criterion and BLEU, with train.log."""
    save_dir = tmp_path_factory.mktemp("other")
    flags = ["--arch", "lstm_encdec", "--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"]
    flags += ["--eval-bleu", "--eval-bleu-args", '{"beam": 2}', "--eval-bleu-detok", "space"]
    flags += ["--best-checkpoint-metric", "bleu", "--maximize-best-checkpoint-metric"]
    (save_dir / "train.log").write_text(train_to_the_end(data, save_dir, *EPOCHS, *flags))
    return save_dir


@pytest.fixture(scope="module")
def translations(data, trained):
    return generate(data, trained / "checkpoint_best.pt", "--beam", 5, "--nbest", 2, "--print-alignment")


def share_correct(translations):
    first = [sentence.hypotheses[0].words for sentence in translations.values()]
    right = [translate(sentence.source).split() for sentence in translations.values()]
    return sum(found == expected for found, expected in zip(first, right)) / len(first)


# training


def test_validation_improves_until_the_language_is_learnt(trained):
    curve = [
        float(ppl)
        for ppl in re.findall(r"valid on 'valid' subset .*?\| ppl ([\d.]+)", (trained / "train.log").read_text())
    ]
    assert len(curve) == 10 and curve[0] > 5 and curve[-1] < 1.6


def test_the_hosts_criterion_trains_and_measures_bleu(other):
    log = (other / "train.log").read_text()
    losses = [float(loss) for loss in re.findall(r"valid on 'valid' subset .*?\| nll_loss ([\d.]+)", log)]
    bleus = [float(bleu) for bleu in re.findall(r"valid on 'valid' subset .*?\| bleu ([\d.]+)", log)]
    assert losses[-1] < losses[0] / 2 and bleus[-1] > 50
    assert float(re.findall(r"\| best_bleu ([\d.]+)", log)[-1]) == max(bleus)


def test_a_stop_inside_an_epoch_changes_nothing(data, trained, tmp_path):
    expected = load(trained / "checkpoint_last.pt")
    num_updates = expected["optimizer_history"][-1]["num_updates"]
    assert num_updates % 10 == 0 and (num_updates // 2 + 7) % (num_updates // 10)
    train_to_the_end(data, tmp_path, *EPOCHS, "--max-update", num_updates // 2 + 7)
    log = train_to_the_end(data, tmp_path, *EPOCHS)
    assert f"@ {num_updates // 2 + 7} updates" in log
    resumed = load(tmp_path / "checkpoint_last.pt")
    assert_same(resumed["model"], expected["model"], "model")
    assert_same(resumed["last_optimizer_state"], expected["last_optimizer_state"], "optimizer")
    for key in ("train_iterator", "val_loss"):
        assert_same(resumed["extra_state"][key], expected["extra_state"][key], key)


@pytest.mark.parametrize(
    "flags, message",
    [
        (
            ["--share-embeddings", "all"],
            r"--share-embeddings all needs one dictionary: run fairseq-preprocess --joined",
        ),
        (["--attention", "none"], r"--input-feeding on feeds the attention's output back: take an --attention, or off"),
    ],
)
def test_flags_that_do_not_fit_end_with_their_name_and_the_remedy(data, tmp_path, flags, message):
    result = train_translation(data, tmp_path, "--max-update", 1, *flags)
    line = result.stderr.strip().splitlines()[-1]
    assert result.returncode != 0 and line.startswith("ValueError: ") and re.search(message, line), line
    assert not list(tmp_path.glob("*.pt"))


# translating


def test_beam_search_translates(translations):
    assert sorted(translations) == list(range(SIZES["test"]))
    assert share_correct(translations) > 0.7


def test_the_n_best_hypotheses_are_in_order_and_differ(translations):
    for sentence in translations.values():
        first, second = sentence.hypotheses
        assert first.score >= second.score and first.words != second.words
        for hypothesis in (first, second):
            assert len(hypothesis.positional_scores) == len(hypothesis.words) + 1
            mean = sum(hypothesis.positional_scores) / len(hypothesis.positional_scores)
            assert hypothesis.score == pytest.approx(mean, abs=1e-3)


def test_alignments_name_a_source_word_for_each_target_word(translations):
    num_reversed = num_words = 0
    for sentence in translations.values():
        length = len(sentence.source.split())
        for hypothesis in sentence.hypotheses:
            pairs = [tuple(map(int, pair.split("-"))) for pair in hypothesis.alignment]
            assert [t for _, t in pairs] == list(range(len(hypothesis.words)))
            assert all(0 <= s < length for s, _ in pairs)
        num_words += len(pairs)
        num_reversed += sum(abs(length - 1 - t - s) <= 1 for s, t in pairs)
    assert num_reversed > 0.8 * num_words


def test_a_prefix_is_kept(data, trained):
    for sentence in generate(data, trained / "checkpoint_best.pt", "--prefix-size", 1).values():
        assert sentence.hypotheses[0].words[0] == translate(sentence.source).split()[0]


def test_interactive_translates_whatever_comes_in(data, trained):
    long = " ".join(WORDS[i % 10] for i in range(300))
    lines = ["a b c", "", "a", "zebra a yak", long, "a b c\r", "  a   b c "]
    text = "\n".join(lines).encode() + b"\n"
    path = trained / "checkpoint_best.pt"
    results = [interact(data, path, text, "--buffer-size", size, "--beam", 3) for size in (1, len(lines))]
    for found in results:
        assert sorted(found) == list(range(len(lines)))
        assert all(len(sentence.hypotheses) == 1 for sentence in found.values())
        assert found[0].hypotheses[0].words == ["xc", "xb", "xa"] and found[2].hypotheses[0].words == ["xa"]
        assert found[3].source == "<unk> a <unk>" and len(found[4].source.split()) == 300
        assert found[0].hypotheses[0].words == found[5].hypotheses[0].words == found[6].hypotheses[0].words
    for one_by_one, together in zip(*(found.values() for found in results)):
        assert one_by_one.hypotheses[0].words == together.hypotheses[0].words


# scores of several models together


@torch.no_grad()
def positional_scores(data, paths, sentence, *, lm=None, lm_weight=0.0):
    """Of the first hypothesis: log of the models' mean probability plus that of the language model, in bits."""
    dictionaries = [Dictionary.load(str(data / f"dict.{language}.txt")) for language in ("src", "tgt")]
    source, target = (
        dictionary.encode_line(line, add_if_not_exist=False).long().unsqueeze(0)
        for dictionary, line in zip(dictionaries, (sentence.source, " ".join(sentence.hypotheses[0].words)))
    )
    previous = target.roll(1, dims=1)
    models, _ = load_model_ensemble([str(path) for path in paths])
    outputs = [model.eval()(source, torch.tensor([source.size(1)]), previous)[0] for model in models]
    log_probs = torch.stack(outputs).exp().mean(0).log()
    if lm is not None:
        log_probs = log_probs + lm_weight * lm.eval()(previous)[0]
    return (log_probs.gather(-1, target.unsqueeze(-1))[0, :, 0] / math.log(2)).tolist()


def assert_scores(data, paths, translations, **language_model):
    for sentence in list(translations.values())[:5]:
        expected = positional_scores(data, paths, sentence, **language_model)
        assert sentence.hypotheses[0].positional_scores == pytest.approx(expected, abs=2e-4)


def test_two_checkpoints_vote_with_their_probabilities(data, trained, other, translations):
    paths = [trained / "checkpoint_best.pt", other / "checkpoint_best.pt"]
    assert_scores(data, paths[:1], translations)
    combined = generate(data, ":".join(map(str, paths)), "--beam", 5, "--batch-size", 7)
    assert share_correct(combined) > 0.7
    assert_scores(data, paths, combined)


@pytest.fixture(scope="module")
def lm_data(pairs, data, tmp_path_factory):
    """The target side, binarised with the translation's target dictionary."""
    root = tmp_path_factory.mktemp("target side")
    for split in SIZES:
        shutil.copy(pairs / f"{split}.tgt", root / f"{split}.txt")
    return preprocess(root, root / "bin", "--srcdict", data / "dict.tgt.txt")


@pytest.mark.slow
@pytest.mark.parametrize(
    "task",
    [
        ["stateful_lm", "--criterion", "regularized_cross_entropy", "--optimizer", "nt_asgd", "--lr", "10"],
        ["language_modeling", "--sample-break-mode", "eos", "--optimizer", "adam", "--lr", "0.01"],
    ],
    ids=lambda task: task[0],
)
def test_a_language_model_votes_with_its_weight(task, data, trained, lm_data, tmp_path):
    flags = [*("--user-dir", PLUGINS, "--cpu", "--num-workers", 0, "--save-dir", tmp_path / "lm")]
    flags += ["--arch", "lstm_lm_doc", "--embed-dim", 12, "--hidden-sizes", "16 12", "--batch-size", 4]
    flags += ["--tokens-per-sample", 20, "--max-epoch", 2, "--no-epoch-checkpoints"]
    result = run("fairseq_cli.train", lm_data, *flags, "--task", *task)
    assert result.returncode == 0, result.stderr[-3000:]
    both = shutil.copytree(data, tmp_path / "bin")
    shutil.copy(data / "dict.tgt.txt", both / "dict.txt")  # where the host looks for the language model's
    path, lm_path = trained / "checkpoint_best.pt", tmp_path / "lm/checkpoint_best.pt"
    found = generate(both, path, "--beam", 5, "--lm-path", lm_path, "--lm-weight", 0.4)
    (lm,), _ = load_model_ensemble([str(lm_path)], arg_overrides={"data": str(both)})
    assert_scores(data, [path], found, lm=lm, lm_weight=0.4)


def evaluate_bleu(*args):
    script = ROOT / "scripts/evaluate_bleu.sh"
    return subprocess.run(["bash", script, *map(str, args)], env=ENVIRONMENT, capture_output=True, text=True)


@pytest.mark.slow
def test_bleu_of_a_split_in_a_folder_with_spaces(data, trained, other, pairs, tmp_path):
    out, checkpoint = tmp_path / "my results", trained / "checkpoint_last.pt"
    asked = (data, checkpoint, "test", pairs / "test.tgt", out)
    result = evaluate_bleu(*asked, "--", "--cpu")
    assert result.returncode == 0, result.stderr[-3000:]
    bleu = float(re.search(r"BLEU, detokenised \(sacreBLEU\) +([\d.]+) \+-", result.stdout).group(1))
    assert bleu > 80 and "tok:13a" in result.stdout and "tok:none" in result.stdout
    assert len((out / "hypotheses.txt").read_text().splitlines()) == len((pairs / "test.tgt").read_text().splitlines())
    again = evaluate_bleu(*asked, "--", "--cpu")
    assert again.stdout == result.stdout and "== translate" in result.stderr and "== translate" not in again.stderr
    worse = tmp_path / "worse"
    evaluate_bleu(data, other / "checkpoint_last.pt", "test", pairs / "test.tgt", worse, "--", "--cpu")
    compared = evaluate_bleu(*asked, "--against", worse, "--", "--cpu")
    assert "paired bootstrap" in compared.stdout, compared.stderr[-3000:]


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"checkpoint": "nowhere.pt"}, "error: nowhere.pt does not exist"),
        ({"reference": "nowhere.tgt"}, "error: nowhere.tgt does not exist"),
        ({"more": ["--beam", "3"]}, "flags of fairseq-generate come after --"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(changes, told, data, trained, pairs, tmp_path):
    checkpoint = changes.get("checkpoint", trained / "checkpoint_last.pt")
    reference = changes.get("reference", pairs / "test.tgt")
    result = evaluate_bleu(data, checkpoint, "test", reference, tmp_path / "out", *changes.get("more", []))
    assert result.returncode == 2 and told in result.stderr
