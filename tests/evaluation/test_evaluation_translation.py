"""Translators of fairseq's own models, and folders that hold no pairs."""

import shutil
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from fairseq.models.fconv import FConvModel, base_architecture
from fairseq.tasks.translation import TranslationConfig, TranslationTask

import fairseq_plugins
from fairseq_plugins.evaluation.raw_text import SubwordNMT, load_text_preparation
from fairseq_plugins.evaluation.translation import EXTRA_PIECES, TranslatedSentence, Translator, word_attention

FIXTURES = Path(__file__).parents[1] / "fixtures/small_models"


@pytest.fixture
def pair_data(tmp_path):
    folder = shutil.copytree(
        FIXTURES / "data/translation", tmp_path / "pairs", ignore=shutil.ignore_patterns("digests.json")
    )
    (folder / "bpe.codes").write_text("#version: 0.2\nx a</w>\n")
    return folder


@pytest.fixture
def build_translator(pair_data):
    """``build_translator(max_positions)`` of fairseq's convolutional model; equal weights every time."""

    def build(max_positions=50):
        task = TranslationTask.setup_task(TranslationConfig(data=str(pair_data), source_lang="src", target_lang="tgt"))
        args = Namespace(encoder_layers="[(8, 3)]", decoder_layers="[(8, 3)]", encoder_embed_dim=8)
        args.decoder_embed_dim = args.decoder_out_embed_dim = 8
        args.max_source_positions = args.max_target_positions = max_positions
        base_architecture(args)
        torch.manual_seed(3)
        model = FConvModel.build_model(args, task).eval()
        preparation = load_text_preparation(pair_data, source="en", target="de")
        return Translator(models=[model], task=task, preparation=preparation)

    return build


def test_convolutional_models_translate_with_any_beam(build_translator):
    lines, translator = ["i c k", "a h l e"], build_translator()
    for beam in (3, 5, 1):
        found = translator.translate(lines, beam=beam)
        assert [one.score for one in found] == pytest.approx(
            [one.score for one in build_translator().translate(lines, beam=beam)], rel=1e-5
        )


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(beam=2.0), "beam 2.0: give a whole number"),
        (dict(beam=2, nbest=1.5), "nbest 1.5: give a whole number"),
        (dict(beam=2, nbest=3), "nbest 3 of a beam of 2: give 1 to 2, or a larger beam"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(options, message, build_translator):
    with pytest.raises(ValueError, match=message):
        build_translator().translate(["i c"], **options)


@pytest.mark.parametrize("num_words", [3, 250])
def test_a_translation_that_does_not_end_is_cut_beyond_the_length_of_its_source(num_words, build_translator):
    translator = build_translator(max_positions=600)
    (model,) = translator.models
    model.decoder.fc3.bias.data[translator.task.target_dictionary.eos()] = -1e9
    (found,) = translator.translate([" ".join(["i"] * num_words)], beam=1)
    assert len(found.target) == len(found.source) + 1 + EXTRA_PIECES and len(found.source) >= num_words


@pytest.mark.parametrize(
    "languages, message",
    [
        (("src", "tgt"), "lm has no dictionaries of src and tgt: give the folder that data-prep"),
        ((None, None), "lm holds no sentence pairs: give the directory that data-prep"),
    ],
    ids=["known", "of the data"],
)
def test_a_folder_without_pairs_is_told(languages, message, tmp_path):
    state = torch.load(FIXTURES / "lstm_encdec_doc.pt", weights_only=True)
    state["cfg"]["task"]["source_lang"], state["cfg"]["task"]["target_lang"] = languages
    torch.save(state, tmp_path / "model.pt")
    with pytest.raises(ValueError, match=message):
        fairseq_plugins.load(tmp_path / "model.pt", FIXTURES / "data/lm")


@pytest.fixture
def subwords(tmp_path):
    (tmp_path / "bpe.codes").write_text("#version: 0.2\nx a</w>\n")
    return SubwordNMT(tmp_path / "bpe.codes")


def test_weights_of_pieces_are_added_over_the_source_and_averaged_over_the_target(subwords):
    attention = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.5, 0.1, 0.2, 0.2], [0.0, 0.6, 0.2, 0.2]])
    sentence = TranslatedSentence(
        text="", source=["Ha@@", "us", "&apos;s"], target=["ho@@", "use"], attention=attention
    )
    found = word_attention(sentence, subwords)
    assert found.source == ["Haus", "'s", "</s>"] and found.target == ["house", "</s>"]
    expected = [[(0.1 + 0.2 + 0.5 + 0.1) / 2, (0.3 + 0.2) / 2, (0.4 + 0.2) / 2], [0.6, 0.2, 0.2]]
    torch.testing.assert_close(found.weights, torch.tensor(expected))


def test_a_model_without_attention_is_told(subwords):
    with pytest.raises(ValueError, match="the model has no attention"):
        word_attention(TranslatedSentence(text="a", source=["a"], target=["a"]), subwords)
