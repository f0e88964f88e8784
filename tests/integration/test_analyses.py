"""The commands that look into models: frequencies, rank, layers, memory, attention and experts."""

import json
import re
import shutil

import fairseq_cli.train
import pytest
from binarised_data import copy_data
from commands import training_arguments
from paths import SMALL_MODELS
from short_trainings import FAMILIES
from translation_commands import translate

from fairseq_plugins.commands import experts
from fairseq_plugins.data.text import load_token_stream
from fairseq_plugins.evaluation.analyses import layers
from fairseq_plugins.evaluation.analyses.experts import expert_use
from fairseq_plugins.evaluation.checkpoints import load_language_models
from fairseq_plugins.evaluation.scoring import score_windows


@pytest.fixture
def figures_of(call):
    """``figures_of(command, *arguments)``: figures of a command in JSON, which name it."""

    def figures_of(command, *arguments):
        status, printed, told = call(command, *arguments, "--json")
        assert (status, told) == (0, "")
        figures = json.loads(printed)
        assert {"date", "code", "machine"} < set(figures) and f"fairseq-plugins {command} " in figures["command"]
        return figures

    return figures_of


def test_a_model_against_itself_gains_nothing_at_any_frequency(trained, data, printed_by, figures_of, tmp_path):
    checkpoint, plot = trained / "checkpoint_best.pt", tmp_path / "bands.png"
    given = [data, "--path", f"A={checkpoint}", f"B={checkpoint}"]
    printed = printed_by("analyze frequency", *given, "--plot", plot)
    rows = re.findall(r"^\| [\d,]+ .*\| +([\d,]+) \| +0.00 \| +0.00 \|$", printed, re.M)
    bands = figures_of("analyze frequency", *given)["bands"]
    assert rows == [f"{band['num_tokens']:,}" for band in bands] and len(rows) > 2
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_the_rank_of_a_mixture_is_above_that_of_its_features(trained, data, figures_of):
    given = [data, "--path", trained / "checkpoint_best.pt"]
    figures = figures_of("analyze rank", *given, "--positions", 100)
    assert figures["positions"] == 100 and 0 < figures["rank"] <= 100
    assert figures_of("analyze rank", *given, "--threshold", 1e-6)["rank"] > 16 + 2


def test_masked_layers_of_a_model_under_two_names_lose_the_same(
    trained, data, printed_by, figures_of, evaluate_here, tmp_path
):
    checkpoint, plot = trained / "checkpoint_best.pt", tmp_path / "masking.png"
    given = [data, "--path", f"A={checkpoint}", f"B={checkpoint}", "--probabilities", 0, 0.5, "--runs", 2, "--rows", 2]
    printed = printed_by("analyze masking", *given, "--plot", plot)
    figures = figures_of("analyze masking", *given)["curves"]
    assert len(figures) == 2 * 3 * 2 and {len(figure["perplexities"]) for figure in figures} == {1, 2}
    by_model = [[f["perplexities"] for f in figures if f["model"] == name] for name in "AB"]
    assert by_model[0] == by_model[1]
    plain = evaluate_here(data, "--path", checkpoint, "--rows", 2)["perplexity"]
    assert all(figure["perplexity"] == plain for figure in figures if figure["probability"] == 0)
    masked = [figure["perplexity"] for figure in figures if figure["probability"] == 0.5]
    assert plain not in masked  # which a model so young hardly notices
    assert printed.count(f" {plain:.2f} |") == 6 and plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("flags, kind", [([], "element"), (["--mask", "locked"], "locked")])
def test_layers_are_masked_as_asked_for(flags, kind, figures_of, monkeypatch):
    kinds = []
    monkeypatch.setattr(layers, "masked_perplexity", lambda *_, kind, **__: kinds.append(kind) or 2.0)
    model = ["--path", f"A={SMALL_MODELS / 'lstm_lm_doc.pt'}", "--probabilities", "0.5"]
    curves = figures_of("analyze masking", SMALL_MODELS / "data/lm", *model, *flags)["curves"]
    assert set(kinds) == {kind} and [curve["mask"] for curve in curves] == [kind] * 3


def test_correlations_are_shown_by_layer(trained, data, printed_by, figures_of):
    given = [data, "--path", f"DOC={trained / 'checkpoint_best.pt'}"]
    figures = figures_of("analyze correlation", *given)["layers"]
    assert [(figure["layer"], figure["width"]) for figure in figures] == [(1, 16), (2, 16)]
    assert all(0 < figure["mean"] < 1 and figure["major"] is None for figure in figures)
    printed = printed_by("analyze correlation", *given)
    assert all(f" {figure['mean']:.4f} |" in printed for figure in figures)


@pytest.mark.parametrize(
    "command, family, column, values",
    [
        ("analyze timescales", "FPNN", "longest, tokens", "values"),
        ("analyze spectrum", "rectifier network, noise contrastive", "most negative real", "eigenvalues"),
    ],
)
def test_the_memory_of_the_units_is_shown(command, family, column, values, run_here, printed_by, figures_of, tmp_path):
    run_here(fairseq_cli.train, *FAMILIES[family], "--max-update", 1, "--save-dir", tmp_path)
    given = [SMALL_MODELS / "data/lm", "--path", f"A={tmp_path}"]
    assert column in printed_by(command, *given, "--plot", tmp_path / "memory.png")
    assert (tmp_path / "memory.png").read_bytes().startswith(b"\x89PNG")
    (layer,) = figures_of(command, *given)["models"][0]["layers"]
    assert layer["layer"] == 1 and 0 < len(layer[values]) <= 8


def test_models_of_different_depth_are_not_masked_together(refuse, run_here, tmp_path):
    flags = ["--hidden-sizes", 16, "--output-layer", "full", "--balance", 0, "--max-update", 1]
    run_here(fairseq_cli.train, *training_arguments(SMALL_MODELS / "data/lm", tmp_path, *flags))
    models = f"two={SMALL_MODELS / 'lstm_lm_doc.pt'}", f"one={tmp_path / 'checkpoint_last.pt'}"
    assert "models with 1 and 2 layers" in refuse("analyze masking", SMALL_MODELS / "data/lm", "--path", *models)


# pictures of attention and of experts


def pictures(folder):
    found = sorted(folder.glob("*"))
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in found)
    return [path.name for path in found]


def test_every_sentence_has_a_picture_of_its_attention(prepared, translator, call, tmp_path):
    (tmp_path / "lines.txt").write_text("a b\n\nc d e\nf\n")
    given = [prepared, "--path", translator / "checkpoint_best.pt", "--input", tmp_path / "lines.txt"]
    status, printed, told = call("analyze attention", *given, "--num", 2, "--out", tmp_path / "out")
    assert (status, told) == (0, "")
    assert printed.splitlines() == [
        f"{tmp_path}/out/sentence_{n}.png\t{translate(line)}" for n, line in ((1, "a b"), (2, "c d e"))
    ]
    assert pictures(tmp_path / "out") == ["sentence_1.png", "sentence_2.png"]
    (tmp_path / "out/sentence_pair.png").write_bytes(b"\x89PNG of the user")
    call("analyze attention", *given, "--num", 1, "--out", tmp_path / "out")
    assert pictures(tmp_path / "out") == ["sentence_1.png", "sentence_pair.png"]


def test_a_language_models_experts_and_their_balance(data, trained, printed_by, figures_of, tmp_path):
    paths = [trained / f"checkpoint_{name}.pt" for name in ("best", "last")]
    (tmp_path / "lines.txt").write_text("the nowhere\nthe the the\n")
    given = [data, "--path", *paths, "--split", "valid", "--out", tmp_path / "out"]
    found = figures_of("analyze experts", *given, "--num", 2)["models"]
    (model,) = load_language_models(paths[:1], data)
    use = expert_use(model, score_windows([model], load_token_stream(data, "valid", model.decoder.dictionary)))
    assert [one["path"] for one in found] == [one["name"] for one in found] == [str(path) for path in paths]
    assert found[0]["balance"] == pytest.approx(use.balance) and found[0]["layers"] == [1, 2, 2, 2]
    assert found[0]["sample_balance"] == pytest.approx(use.balance * (4 / 3) ** 0.5)
    assert pictures(tmp_path / "out") == ["sentence_1.png", "sentence_2.png"]
    printed = printed_by("analyze experts", *given, "--input", tmp_path / "lines.txt", "--tokenised", "--rows", 2)
    assert len(re.findall(r"\| layer 1, 1 +\| +[\d.]+% \|", printed)) == 2


def test_a_language_model_reads_raw_sentences_as_score_text_does(data, trained, printed_by, tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(experts, "word_experts", lambda _, scored: read.append(scored.target[0].tolist()))
    monkeypatch.setattr(experts, "draw_expert_map", lambda _: None)
    monkeypatch.setattr(experts, "save_picture", lambda *_: None)
    corpus = copy_data(data, tmp_path / "data", tokenizer="moses", language="en", case="lower lines")
    (tmp_path / "raw.txt").write_text("The THE nowhere.\n")
    (tmp_path / "tokenised.txt").write_text("the the nowhere .\n")
    for name, flags in (("raw", []), ("tokenised", ["--tokenised"])):
        given = [corpus, "--path", trained / "checkpoint_best.pt", "--input", tmp_path / f"{name}.txt"]
        printed_by("analyze experts", *given, "--split", "valid", "--out", tmp_path / "out", *flags)
    assert read[0] == read[1] and len(read[0]) == 5


def test_an_encoder_decoders_experts(prepared, translator, figures_of, tmp_path):
    (tmp_path / "lines.txt").write_text("a b\n")
    given = [prepared, "--path", translator / "checkpoint_best.pt", "--split", "valid", "--out", tmp_path / "out"]
    for flags in ([], ["--input", tmp_path / "lines.txt"]):
        (found,) = figures_of("analyze experts", *given, "--num", 1, *flags)["models"]
        assert sum(found["shares"]) == pytest.approx(1) and found["words"] > 60
        assert pictures(tmp_path / "out") == ["sentence_1.png"]


def history(trained, folder):
    """A save directory with checkpoints of updates."""
    folder.mkdir()
    for num_updates, name in ((5, "last"), (20, "best")):
        shutil.copy(trained / f"checkpoint_{name}.pt", folder / f"checkpoint_1_{num_updates}.pt")
    return folder


def test_the_history_of_experts(data, trained, prepared, translator, printed_by, figures_of, tmp_path):
    for given, folder, num_layers in ((data, trained, 3), (prepared, translator, 4)):
        path = f"A={history(folder, tmp_path / folder.name)}"
        flags = [given, "--path", path, "--num", 3, "--plot", tmp_path / f"{folder.name}.png"]
        (run,) = figures_of("analyze expert-history", *flags)["runs"]
        assert (run["name"], run["split"]) == ("A", "valid")
        assert [one["updates"] for one in run["checkpoints"]] == [5, 20]
        for one in run["checkpoints"]:
            assert len(one["shares"]) == len(one["gradients"]) == num_layers and sum(one["shares"]) == pytest.approx(1)
        assert (tmp_path / f"{folder.name}.png").read_bytes().startswith(b"\x89PNG")
        assert re.search(r"^\| A +\| +20 \|", printed_by("analyze expert-history", *flags), re.MULTILINE)
