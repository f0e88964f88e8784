import pytest
import torch

from fairseq_plugins.evaluation.text.subwords import SubwordNMT
from fairseq_plugins.evaluation.translation.translator import TranslatedSentence
from fairseq_plugins.evaluation.translation.word_attention import word_attention


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
