"""``fairseq-generate --replace-unk`` with the models here: unknown words are copied from where the attention is."""

import re

import fairseq_cli.generate
import fairseq_cli.train
import pytest
from translation_commands import TRANSFORMER, parse, preprocess_pairs, training_flags

pytestmark = pytest.mark.slow

MODELS = {
    "recurrent": dict(model=("--arch", "lstm_encdec_doc")),
    "transformer": TRANSFORMER,
}
RAW = ["--dataset-impl", "raw"]


@pytest.fixture(scope="module")
def rare_words(pairs, tmp_path_factory):
    """The corpus as text, with three words of the translations in the dictionary."""
    return preprocess_pairs(pairs, tmp_path_factory.mktemp("raw") / "data", *RAW, "--nwordstgt", 7)


@pytest.mark.parametrize("model", MODELS)
def test_they_are_replaced_by_the_word_with_the_highest_attention(model, rare_words, pairs, tmp_path, run_here):
    run_here(fairseq_cli.train, *training_flags(rare_words, tmp_path, *RAW, "--max-epoch", 1, **MODELS[model]))
    decoding = [rare_words, *RAW, "--path", tmp_path / "checkpoint_last.pt", "--max-len-b", 10, "--print-alignment"]
    (tmp_path / "table.txt").write_text("a AAA\nb BBB\n")
    plain, copied, translated = (
        parse(run_here(fairseq_cli.generate, *decoding, *flags))
        for flags in ([], ["--replace-unk"], ["--replace-unk", tmp_path / "table.txt"])
    )
    table, sources = {"a": "AAA", "b": "BBB"}, (pairs / "test.src").read_text().splitlines()
    num_replaced = 0
    for number, sentence in plain.items():
        (hypothesis,), words = sentence.hypotheses, sources[number].split()
        places = dict(tuple(map(int, reversed(pair.split("-")))) for pair in hypothesis.alignment)
        expected = [words[places[i]] if word == "<unk>" else word for i, word in enumerate(hypothesis.words)]
        assert copied[number].hypotheses[0].words == expected
        looked_up = [table.get(word, word) if word in words else word for word in expected]
        assert translated[number].hypotheses[0].words == looked_up
        num_replaced += hypothesis.words.count("<unk>")
    assert num_replaced > 20 and not re.search("<unk>", str(copied))
    (tmp_path / "bpe.codes").write_text("#version: 0.2\nx y</w>\n")
    joining = ["--bpe", "subword_nmt", "--bpe-codes", tmp_path / "bpe.codes", "--bpe-separator", "a"]
    with pytest.raises(ValueError, match="--replace-unk copies words that the model reads: it read [1-8] and the sou"):
        run_here(fairseq_cli.generate, *decoding, "--replace-unk", *joining)
