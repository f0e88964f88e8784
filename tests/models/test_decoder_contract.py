"""Every decoder keeps to the contract of decoders, below every output layer. For cells see cell_contract.py."""

import pytest
import torch
from builders import (
    build_lm,
    build_tiny_encdec,
    build_tiny_lm,
    build_tiny_transformer,
    never_shares,
    randomise,
    tiny_transformer_lm_flags,
)
from decoder_contract import SOURCES, DecoderContract, Decoding, T, TranslatorContract, V

from fairseq_plugins.modules.attention import ATTENTIONS
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS
from fairseq_plugins.output_layers.copying import NoCopying

pytestmark = pytest.mark.usefixtures("gates_of_the_examples")

LAYERS = sorted(OUTPUT_LAYERS)
ATTENTION_CASES = [(name, feeding) for name in sorted(ATTENTIONS) for feeding in ("on", "off")] + [("none", "off")]

SKIPPING = "rectifier --word-skip"
GATED = "doc, gate with a state"
"""DOC under a gate that only the tests have."""
LANGUAGE_MODELS = [*(("lstm", layer) for layer in LAYERS), (SKIPPING, "doc"), ("lstm", GATED)]
ENCODER_DECODERS = [(*pair, "general", "on") for pair in LANGUAGE_MODELS if pair[1] in ("doc", "tied", GATED)]
ENCODER_DECODERS += [("lstm", "doc", *case) for case in ATTENTION_CASES if case != ("general", "on")]


def gate_of(name):
    """The name of an output layer and the flag of its gate, if it has one."""
    return ("doc", {"output_gate": "trace"}) if name == GATED else (name, {})


def flags_of(cell):
    """Of a cell, with another matrix between the first letters of words where its name says so."""
    name, _, skips = cell.partition(" ")
    return {"rnn_cell": name, **({"word_skip": "w0"} if skips else {})}


class TestRecurrentLanguageModel(DecoderContract):
    dropouts = {f"dropout_{place}": 0.5 for place in ("embedding", "input", "hidden", "output")}

    @pytest.fixture(params=LANGUAGE_MODELS, ids=" ".join)
    def build(self, request):
        cell, (name, flags) = request.param[0], gate_of(request.param[1])
        flags.update(flags_of(cell), **({"experts_per_layer": "1 1 2"} if name == "doc" else {}))
        return lambda **others: Decoding(build_tiny_lm(name, **flags, **others), [], num_layers=3)


class TestRecurrentLanguageModelWithAFeedForwardLayer(DecoderContract):
    dropouts = TestRecurrentLanguageModel.dropouts

    @pytest.fixture
    def build(self):
        flags = {"rnn_cell": "diagonal", "output_hidden_size": 8, "experts_per_layer": "1 0 1 2"}
        return lambda **others: Decoding(build_tiny_lm("doc", **flags, **others), [], num_layers=4)


class TestRecurrentEncoderDecoder(TranslatorContract):
    @pytest.fixture(params=ENCODER_DECODERS, ids=" ".join)
    def build(self, request, sentences):
        cell, name, attention, feeding = request.param
        name, gate = gate_of(name)
        experts = "1 1 2" if attention == "none" else "1 1 2 2"
        flags = {**flags_of(cell), **gate, "attention": attention, "input_feeding": feeding}
        flags.update({"experts_per_layer": experts} if name == "doc" else {})
        num_layers = len(experts.split())

        def build(**others):
            return Decoding(build_tiny_encdec(name, source_size=SOURCES, **flags, **others), sentences, num_layers)

        return build


class TestTransformer(TranslatorContract):
    # fairseq reorders what it keeps of the source only where the number of rows changes: the rows of a beam share
    # one sentence. So every order here changes that number.
    orders = [order for order in TranslatorContract.orders if order != [1, 3, 0, 2]]

    @pytest.fixture(params=[*LAYERS, GATED])
    def build(self, request, sentences):
        name, flags = gate_of(request.param)
        flags.update({} if never_shares(name) else {"share_decoder_input_output_embed": True})
        flags.update({"latent_dropout": 0.0} if name in ("mos", "doc") else {})
        flags.update({"experts_per_layer": "1 1 2"} if name == "doc" else {})

        def build(**others):
            model = build_tiny_transformer("transformer_full", output_layer=name, vocab_size=V, **flags, **others)
            return Decoding(model, sentences, num_layers=3)

        return build


class TestTransformerLanguageModel(DecoderContract):
    @pytest.fixture(params=LAYERS)
    def build(self, request):
        def build(*, seed=0, **others):
            model = build_lm(vocab_size=V, **tiny_transformer_lm_flags(request.param, **others))
            return Decoding(randomise(model, 0.5, seed=seed), [], num_layers=3)

        return build


class CopyingContract(TranslatorContract):
    """Tests of a decoder that copies source words, each of which is another word of the target."""

    @staticmethod
    def decoding(model, sentences, *, num_layers):
        copying = model.decoder.output.copying
        copying.target_words = copying.target_words.roll(3)
        return Decoding(model, sentences, num_layers)

    def log_probs_and_mean(self, decoding, tokens):
        output, log_probs = decoding.model.decoder.output, decoding(tokens)[0]
        copying, output.copying = output.copying, NoCopying()
        mean = super().log_probs_and_mean(decoding, tokens)[1]
        output.copying = copying
        return log_probs, mean

    def test_every_word_of_the_source_is_more_probable_by_what_is_copied(self, build, tokens):
        decoding = build()
        copied, copying = decoding(tokens), decoding.model.decoder.output.copying
        decoding.model.decoder.output.copying = NoCopying()
        own, extra = decoding(tokens)
        share = torch.sigmoid(copying.copy_gate(extra["states"].layers[-1]))
        source = copying.target_words[decoding.source[0]].unsqueeze(1).expand(-1, T, -1)
        expected = ((1 - share) * own.exp()).scatter_add(-1, source, share * extra["attn"][0])
        torch.testing.assert_close(copied[0].exp(), expected, rtol=1e-4, atol=1e-6)


class TestCopyingEncoderDecoder(CopyingContract):
    @pytest.fixture(params=[("doc", "on"), ("doc", "off"), ("full", "on")], ids=" ".join)
    def build(self, request, sentences):
        name, feeding = request.param
        flags = {"experts_per_layer": "1 1 2 2"} if name == "doc" else {}
        flags.update(copying="attention", input_feeding=feeding, source_size=SOURCES)
        return lambda **others: self.decoding(build_tiny_encdec(name, **flags, **others), sentences, num_layers=4)


class TestCopyingTransformer(CopyingContract):
    orders = TestTransformer.orders

    @pytest.fixture
    def build(self, sentences):
        flags = dict(output_layer="drill", share_decoder_input_output_embed=True, vocab_size=V, copying="attention")

        def build(**others):
            return self.decoding(build_tiny_transformer("transformer_full", **flags, **others), sentences, num_layers=3)

        return build
