"""Translators of fairseq's own models, and folders that hold no pairs."""

import io
from argparse import Namespace

import pytest
import torch
from builders import build_tiny_encdec, build_tiny_transformer
from fairseq.models.fconv import FConvModel, base_architecture
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from paths import SMALL_MODELS
from sentencepiece import SentencePieceTrainer

import fairseq_plugins
from fairseq_plugins.evaluation.raw_text import SentencePiece, SubwordNMT, load_pair_texts
from fairseq_plugins.evaluation.translation import SearchOptions, TranslatedSentence, Translator, word_attention
from fairseq_plugins.options import UserError


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
        source, target = load_pair_texts(pair_data, source="en", target="de")
        return Translator(models=[model], task=task, source=source, target=target)

    return build


def test_convolutional_models_translate_whatever_the_beam_of_the_call_before(build_translator):
    lines, translator = ["i c k", "a h l e"], build_translator()
    for beam in (3, 5, 1):
        found = translator.translate(lines, beam=beam)
        assert [one.score for one in found] == pytest.approx(
            [one.score for one in build_translator().translate(lines, beam=beam)], rel=1e-5
        )


MODELS = {
    "recurrent": lambda: [build_tiny_encdec("doc", source_size=16, vocab_size=16)],
    "transformer": lambda: [build_tiny_transformer("transformer_drill", source_size=16, vocab_size=16)],
    "copying": lambda: [build_tiny_encdec("full", source_size=16, vocab_size=16, copying="attention")],
    "ensemble": lambda: [
        build_tiny_encdec("mos", source_size=16, vocab_size=16),
        build_tiny_encdec("full", source_size=16, vocab_size=16, seed=1),
    ],
}


@pytest.fixture(params=MODELS)
def translator(request, build_translator):
    """Models with random weights, so that their translations are of many lengths."""
    plain = build_translator()
    models = [model.eval() for model in MODELS[request.param]()]
    return Translator(models=models, task=plain.task, source=plain.source, target=plain.target)


LINES = ["i c k", "", "a h l e b d", "g", "q q", "a h l e b d", "c"]


SEARCHES = {
    "beam": dict(beam=3, nbest=3, lenpen=0.5, max_len=9),
    "sampling": dict(sampling=True, seed=7, top_k=9, top_p=0.9, temperature=1.5, beam=2, nbest=2, max_len=12),
    "lengths": dict(flags=["--max-len-a", "1.5", "--max-len-b=2", "--min-len", "2", "--no-repeat-ngram-size", "2"]),
    "diverse": dict(beam=4, flags=["--diverse-beam-groups", "2"], max_len=6),
    "match": dict(flags=["--match-source-len"]),
}
MODELS_AND_SEARCHES = [(model, search) for model in MODELS for search in ("beam", "sampling")]
MODELS_AND_SEARCHES += [("recurrent", search) for search in ("lengths", "diverse", "match")]


@pytest.mark.parametrize("translator, search", MODELS_AND_SEARCHES, indirect=["translator"])
def test_a_line_is_translated_alike_whatever_the_others(search, translator):
    options = SEARCHES[search]

    def found(lines, **batching):
        hypotheses = [[one, *one.others] for one in translator.translate(lines, **batching, **options)]
        return {
            line: [(h.text, pytest.approx(h.score, abs=1e-4)) for h in each] for line, each in zip(lines, hypotheses)
        }

    expected = found(LINES, batch_size=1)
    assert found(LINES[::-1], batch_size=3) == expected
    assert found(LINES[2:3])[LINES[2]] == expected[LINES[2]]
    assert all(len(each) == options.get("nbest", 1) for each in expected.values())
    assert expected[""] == [("", 0)] * options.get("nbest", 1)


@pytest.mark.parametrize("options", [dict(lenpen=0.3), dict(sampling=True)], ids=str)
def test_scores_are_those_of_the_models(options, translator):
    """Against models that read the whole translation at once."""

    def log2_prob(one):
        task = translator.task
        source, target = (
            dictionary.encode_line(" ".join(pieces), add_if_not_exist=False).long()
            for dictionary, pieces in ((task.source_dictionary, one.source), (task.target_dictionary, one.target))
        )
        probs = []
        for model in translator.models:
            output = model(source[None], torch.tensor([len(source)]), target.roll(1)[None])
            probs.append(model.get_normalized_probs(output, log_probs=False)[0].double())
        return float(torch.stack(probs).mean(0).gather(1, target[:, None]).log2().sum())

    for line in ("i c k", "g"):
        (best,) = translator.translate([line], beam=4, nbest=4, max_len=5, **options)
        scores = [one.score for one in (best, *best.others)]
        assert scores == sorted(scores, reverse=True)
        for one in (best, *best.others):
            length = (len(one.target) + 1) ** options.get("lenpen", 1)
            assert one.score * length == pytest.approx(log2_prob(one), rel=1e-4)


def test_samples_repeat_with_their_seed(translator):
    def drawn(seed, **options):
        (best,) = translator.translate(["a h l e"], beam=8, nbest=8, sampling=True, seed=seed, max_len=8, **options)
        return [one.text for one in (best, *best.others)]

    assert drawn(1) == drawn(1) == drawn(None) != drawn(2)
    assert len(set(drawn(1))) > 3 and len(set(drawn(1, top_k=1))) == 1 == len(set(drawn(1, temperature=1e-6)))


@pytest.mark.parametrize(
    "options, flag",
    [
        (dict(beam=0), "--beam 0: give at least 1"),
        (dict(beam=2.0), "--beam 2.0: give a whole number"),
        (dict(nbest=0), "--nbest 0: give at least 1"),
        (dict(beam=2, nbest=3), "--nbest 3 of a beam of 2: give 1 to 2, or a larger --beam"),
        (dict(lenpen=float("nan")), "--lenpen nan"),
        (dict(lenpen=400), "--lenpen 400: give -10 to 10"),
        (dict(max_len=0), "--max-len 0"),
        (dict(top_k=3), "--sampling: add it"),
        (dict(seed=1), "--sampling: add it"),
        (dict(sampling=True, seed=-1), "--seed -1"),
        (dict(sampling=True, top_p=2), "top-p 2"),
        (dict(sampling=True, flags=["--match-source-len"]), "--sampling and --match-source-len are different searches"),
        (dict(max_len=9, flags=["--max-len-a", "1"]), "--max-len 9 and --max-len-a"),
        (dict(flags=["--diverse-beam-groups", "3"]), "--diverse-beam-groups 3: --beam must be a multiple"),
        (dict(flags=["--beam", "3"]), "--beam after the --: give --beam before the --"),
        (dict(flags=["--sampling-topk=3"]), "--sampling-topk after the --: give --top-k before"),
        (dict(flags=["--max-tokens", "9"]), "--max-tokens after the --: translate takes --max-len-a, "),
        (dict(flags=["--min-len", "x"]), "--min-len: invalid int value"),
        (dict(flags=["--unkpen", "1e308"]), r"--unkpen 1e\+308: give -1,000,000"),
        (dict(flags=["--max-len-b", "0"]), "--max-len-a, --max-len-b: they allow translations no subword"),
        (dict(flags=["--min-len", "9"], max_len=3), "--min-len 9: a translation has at most 3 subwords"),
        (dict(replace_unk="nowhere"), "nowhere does not exist"),
        (dict(batch_size=0), "--batch-size 0"),
        (dict(unknown=1), "unknown"),
    ],
    ids=str,
)
def test_options_that_do_not_fit_are_refused(options, flag, build_translator):
    with pytest.raises(TypeError if "unknown" in options else UserError, match=flag):
        build_translator().translate(["i c"], **options)


@pytest.fixture(params=[SubwordNMT, SentencePiece])
def split_source(request, tmp_path, build_translator):
    """A translator whose subwords split the word ``zoq`` after ``z``."""
    path = tmp_path / "subwords"
    if request.param is SubwordNMT:
        path.write_text("#version: 0.2\no q</w>\n")
    else:
        model, lines = io.BytesIO(), iter(["i z oq c"] * 20)
        SentencePieceTrainer.train(
            sentence_iterator=lines, model_writer=model, vocab_size=13, model_type="bpe", minloglevel=2
        )
        path.write_bytes(model.getvalue())
    translator, subwords = build_translator(), request.param(path)
    translator.source.subwords = translator.target.subwords = subwords
    assert list(map(len, translator.source.group(translator.source.split("i zoq c")))) == [1, 2, 1]
    return translator


@pytest.mark.parametrize(
    "target, reads, table, text",
    [
        ("<unk> xc", [1, 3], None, "<unk> xc"),
        ("xi <unk> <s> xc", [0, 1, 2, 3], "", "xi zoq xc"),
        ("xi <unk> xc", [0, 2, 3], "", "xi zoq xc"),
        ("xi <unk> <unk> xc", [0, 1, 2, 3], "", "xi zoq xc"),
        ("xi <unk> <unk> xc", [0, 2, 3, 3], "", "xi zoq c xc"),
        ("xi <unk> xc", [0, 1, 3], "zoq ZOQ\n", "xi ZOQ xc"),
    ],
)
def test_an_unknown_word_is_replaced_by_a_whole_word(target, reads, table, text, split_source, tmp_path, monkeypatch):
    """The model writes these words and reads one position of the source before each."""
    (tmp_path / "words").write_text(table or "")
    (mark,) = {piece[:-1] for piece in split_source.source.split("i c")}
    dictionary = split_source.task.target_dictionary
    pieces = [word if word.startswith("<") else f"{mark}{word}" for word in target.split()]
    tokens = torch.tensor([*map(dictionary.add_symbol, pieces), dictionary.eos()])
    attention = torch.nn.functional.one_hot(torch.tensor([*reads, 4]), 5).t()
    found = [[{"tokens": tokens, "attention": attention, "score": 0.0}]]
    monkeypatch.setattr(split_source.task, "inference_step", lambda *_: found)
    replace_unk = {None: False, "": True}.get(table, tmp_path / "words")
    (one,) = split_source.translate(["i zoq c"], replace_unk=replace_unk)
    assert one.text == text and one.target == pieces


def test_a_table_of_unknown_words_has_two_words_a_line(build_translator, tmp_path):
    (tmp_path / "words").write_text("a b\nc\n")
    with pytest.raises(UserError, match="words, line 2: give two words"):
        build_translator().translate(["i c"], replace_unk=tmp_path / "words")


def test_lines_before_a_line_that_is_too_long_are_translated(build_translator):
    translator, found = build_translator(max_positions=20), []
    with pytest.raises(UserError, match="corpus: line 3 has 18 subwords, the model reads up to 17: divide it"):
        for one in translator.translate_stream(["i", "c", "i " * 18, "k"], SearchOptions(), name="corpus"):
            found.append(one.source)
    assert found == [["i"], ["c"]]
    assert translator.translate(["i " * 17])[0].source == ["i"] * 17


@pytest.mark.parametrize("options, longest", [(dict(), 250), (dict(max_len=7), 7), (dict(flags=["--max-len-b=9"]), 9)])
def test_a_translation_that_does_not_end_is_cut(options, longest, build_translator):
    translator = build_translator(max_positions=600)
    (model,) = translator.models
    model.decoder.fc3.bias.data[translator.task.target_dictionary.eos()] = -1e9
    for num_words, cut in ((3, longest), (250, 500 if longest == 250 else longest)):
        (found,) = translator.translate([" ".join(["i"] * num_words)], beam=1, **options)
        assert len(found.target) == cut


@pytest.mark.parametrize(
    "languages, message",
    [
        (("src", "tgt"), "lm has no dictionaries of src and tgt: give the folder that data-prep"),
        ((None, None), "lm holds no sentence pairs: give the directory that data-prep"),
    ],
    ids=["known", "of the data"],
)
def test_a_folder_without_pairs_is_told(languages, message, tmp_path):
    state = torch.load(SMALL_MODELS / "lstm_encdec_doc.pt", weights_only=True)
    state["cfg"]["task"]["source_lang"], state["cfg"]["task"]["target_lang"] = languages
    torch.save(state, tmp_path / "model.pt")
    with pytest.raises(ValueError, match=message):
        fairseq_plugins.load(tmp_path / "model.pt", SMALL_MODELS / "data/lm")


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
