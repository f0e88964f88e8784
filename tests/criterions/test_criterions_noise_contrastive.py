"""The loss by which targets are told from noise, and its gradients, against its formula in float64."""

import copy
import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from binarised_data import write_split
from builders import (
    build_tiny_encdec,
    build_tiny_gated_lm,
    build_tiny_lm,
    build_tiny_transformer,
    make_dictionary,
    make_task,
)
from fairseq.logging import metrics
from fairseq.models import FairseqLanguageModel
from fairseq.models.lstm import LSTMDecoder
from fairseq.optim import OPTIMIZER_REGISTRY
from torch import distributed, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fairseq_plugins.criterions import noise_contrastive
from fairseq_plugins.criterions.noise_contrastive import NoiseContrastive, UnigramNoise
from fairseq_plugins.criterions.regularized_cross_entropy import RegularizedCrossEntropy

V, B, T, S = 20, 3, 4, 5
LOG_V = math.log(V)
SIZES = dict(vocab_size=V)
SOURCE = dict(SIZES, source_size=19)
LAYERS = ["full", "tied", "bilinear", "dual", "drill"]
MODELS = {
    **{layer: lambda layer=layer: build_tiny_lm(layer, **SIZES) for layer in LAYERS},
    **{f"no biases, {layer}": lambda layer=layer: build_tiny_lm(layer, output_bias="off", **SIZES) for layer in LAYERS},
    "encoder-decoder": lambda: build_tiny_encdec("full", **SOURCE),
    "encoder-decoder, shared": lambda: build_tiny_encdec("tied", share_embeddings="output", **SOURCE),
    "Transformer": lambda: build_tiny_transformer("transformer_drill", label_depth=2, label_dropout=0.0, **SOURCE),
    "Transformer, shared": lambda: build_tiny_transformer(
        "transformer_full", output_layer="tied", share_decoder_input_output_embed=True, **SOURCE
    ),
}


@pytest.fixture
def task(tmp_path):
    """A task with a training text in which every second word occurs."""
    write_split(tmp_path, "train", [[2 * (word % 5) + 4] * (word + 1) for word in range(10)], vocab_size=V)
    task = make_task(V)
    task.cfg = SimpleNamespace(data=str(tmp_path))
    return task


def make_sample(model, *, padding=None):
    """Targets are words that occur or not; the last steps of two rows may be padding."""
    tokens = torch.randint(4, V, (B, T + 1))
    target = tokens[:, 1:].clone()
    if padding is not None:
        target[1, -1:] = target[2, 1:] = padding
    num_tokens = target.numel() if padding is None else int(target.ne(padding).sum())
    inputs = {"src_tokens": tokens[:, :-1]}
    if hasattr(model, "encoder"):
        source = torch.randint(4, 19, (B, S))
        inputs = {"src_tokens": source, "src_lengths": torch.tensor([S] * B), "prev_output_tokens": tokens[:, :-1]}
    return {"net_input": inputs, "target": target, "ntokens": num_tokens}


@pytest.fixture
def make_criterion(task):
    return lambda **flags: NoiseContrastive(task, **{"noise_samples": 3, **flags})


def drawn(criterion, target):
    """The noise that the criterion draws after a seed, which is set again."""
    torch.manual_seed(3)
    noise = criterion.noise(target)
    torch.manual_seed(3)
    return noise


def by_hand(model, criterion, sample, words, *, log_z=LOG_V, hits="left-out"):
    """The loss of every token, (B, T), by logits of all words; noise words (B, T, k)."""
    counts = torch.zeros(V, dtype=torch.double)
    for word in range(10):
        counts[2 * (word % 5) + 4] += word + 1
    q = counts.clamp_min(1) / counts.clamp_min(1).sum()
    _, extra = model(**sample["net_input"])
    output = model.decoder.output
    logits = output.projection(output.encode_hidden(extra["states"].layers[-1]))
    scores = torch.sigmoid(logits - log_z - torch.log(words.size(-1) * q))
    losses = torch.zeros(B, T, dtype=torch.double)
    for b, t in itertools.product(range(B), range(T)):
        target = int(sample["target"][b, t])
        loss = -torch.log(scores[b, t, target])
        for word in words[b, t].tolist():
            if word != target or hits == "counted":
                loss = loss - torch.log(1 - scores[b, t, word])
        losses[b, t] = loss
    return losses


def gradients(model, loss):
    """By name, dense, None where there is none."""
    model.zero_grad()
    loss.backward()
    return {
        name: param.grad.to_dense() if param.grad is not None and param.grad.is_sparse else param.grad
        for name, param in model.named_parameters()
    }


@pytest.mark.parametrize(
    "name, sharing, hits",
    [*((name, "none", "left-out") for name in MODELS)]
    + [
        (name, *case)
        for name in ("tied", "drill", "Transformer")
        for case in (("batch", "left-out"), ("none", "counted"))
    ],
)
def test_loss_and_gradients(name, sharing, hits, make_criterion):
    model = MODELS[name]().double()
    criterion = make_criterion(noise_sharing=sharing, accidental_hits=hits)
    sample = make_sample(model, padding=criterion.padding_idx)
    words = drawn(criterion, sample["target"]).words
    assert words.shape == ((3,) if sharing == "batch" else (B, T, 3))
    loss, sample_size, logged = criterion(model, sample)
    losses = by_hand(model, criterion, sample, words.expand(B, T, 3), hits=hits)
    expected = losses[sample["target"] != criterion.padding_idx].sum()
    assert sample_size == sample["ntokens"] == T + T - 1 + 1
    assert logged["objective"].item() == loss.item() == pytest.approx(expected.item(), rel=1e-10)
    assert (
        logged.keys() == {"objective", "ntokens", "nsentences", "sample_size"} and not logged["objective"].requires_grad
    )
    torch.testing.assert_close(gradients(model, loss), gradients(model, expected), rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("name", ["full", "tied", "drill", "Transformer, shared"])
def test_sparse_gradients_are_the_dense_ones_in_the_rows_that_occur(name, make_criterion):
    model = MODELS[name]().double()
    sample = make_sample(model)
    found = {}
    for kind in ("on", "off"):
        criterion = make_criterion(sparse_gradients=kind)
        words = drawn(criterion, sample["target"]).words
        loss, _, _ = criterion(model, sample)
        found[kind] = gradients(model, loss)
        is_sparse = [param.grad.is_sparse for param in model.parameters() if param.grad is not None]
        assert any(is_sparse) == (kind == "on")
    torch.testing.assert_close(found["on"], found["off"], rtol=1e-12, atol=1e-14)
    read = {*words.flatten().tolist(), *sample["target"].flatten().tolist()}
    if name == "full":
        assert set(found["on"]["decoder.output.projection.weight"].any(dim=1).nonzero().flatten().tolist()) == read


def test_a_model_that_was_trained_with_sparse_gradients_has_dense_ones_where_they_are_off(make_criterion):
    model = MODELS["full"]()
    sample = make_sample(model)
    make_criterion()(model, sample)
    make_criterion(sparse_gradients="off")(model, sample)[0].backward()
    assert not model.decoder.embedding.weight.grad.is_sparse


@pytest.mark.parametrize("hits", ["left-out", "counted"])
def test_the_mean_over_all_draws_is_the_sum_over_the_vocabulary(hits, make_criterion):
    """E[loss] = -log sigma(m_y) - k sum over w of q(w) log(1 - sigma(m_w)), with k = 2 and all 400 draws.

    Without hits w = y is left out of the sum.
    """
    model = MODELS["tied"]().double()
    criterion = make_criterion(noise_samples=2, noise_sharing="batch", accidental_hits=hits)
    sample = make_sample(model)
    everything = criterion.noise(sample["target"])
    log_expected = criterion.distribution.log_expected(torch.arange(V))
    q = torch.exp(log_expected) / 2
    mean = 0.0
    with torch.no_grad():
        for pair in itertools.product(range(V), repeat=2):
            words = torch.tensor(pair)
            noise = replace(everything, words=words, offsets=log_expected[words] + LOG_V)
            found = model(**sample["net_input"], target=sample["target"], noise=noise)[0]
            mean += (q[words].prod() * found).item()
        states = model(**sample["net_input"])[1]["states"].layers[-1]
        log_odds = model.decoder.output.projection(states) - LOG_V - log_expected
    is_target = nn.functional.one_hot(sample["target"], V).bool()
    noise_losses = -torch.log(1 - torch.sigmoid(log_odds)) * torch.exp(log_expected)
    counted = noise_losses if hits == "counted" else noise_losses[~is_target]
    exact = -torch.log(torch.sigmoid(log_odds[is_target])).sum() + counted.sum()
    assert q.sum().item() == pytest.approx(1) and mean == pytest.approx(exact.item(), rel=1e-10)


def test_words_that_do_not_occur_are_counted_once():
    counts = torch.tensor([0, 5, 0, 3])
    noise = UnigramNoise(counts, num_samples=4)
    expected = 4 * torch.tensor([1, 5, 1, 3], dtype=torch.double) / 10
    torch.testing.assert_close(torch.exp(noise.log_expected(torch.arange(4))), expected)


def test_draws_have_the_distribution_by_a_chi_square_test():
    """With 100 words, 99 degrees of freedom, a sum above 148.2 has a chance of 0.1 %."""
    torch.manual_seed(0)
    counts = 10_000 // torch.arange(1, 101)
    drawn = UnigramNoise(counts, num_samples=4).draw((400, 500), device=torch.device("cpu"))
    expected = drawn.numel() * counts / counts.sum()
    found = torch.bincount(drawn.flatten(), minlength=100)
    assert drawn.shape == (400, 500) and drawn.dtype == torch.long
    assert 60 < ((found - expected).square() / expected).sum() < 148.2


def test_a_learned_normaliser(make_criterion):
    model = MODELS["full"]().double()
    criterion = make_criterion(normaliser="learned")
    sample = make_sample(model)
    criterion.load_state_dict(None, strict=True)  # what fairseq gives where a checkpoint has none
    assert criterion.log_normaliser.item() == pytest.approx(LOG_V)
    assert not list(make_criterion().parameters()) and not make_criterion().state_dict()
    criterion.normaliser_shift.data.fill_(2.5 - LOG_V)
    log_z = criterion.log_normaliser.detach().squeeze().requires_grad_()
    words = drawn(criterion, sample["target"]).words
    loss, _, logged = criterion(model, sample)
    loss.backward()
    expected = by_hand(model, criterion, sample, words, log_z=log_z).sum()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-10)
    (gradient,) = torch.autograd.grad(expected, log_z)
    assert criterion.normaliser_shift.grad.item() == pytest.approx(gradient.item(), rel=1e-5)
    assert logged["log_normaliser"].item() == pytest.approx(2.5 * B * T)
    assert not logged["log_normaliser"].requires_grad


def test_a_learned_normaliser_is_exact_in_16_bits(make_criterion):
    criterion = make_criterion(normaliser="learned").bfloat16()
    assert criterion.log_normaliser.item() == pytest.approx(LOG_V, rel=1e-12)
    criterion.normaliser_shift.data.fill_(0.001)
    assert criterion.log_normaliser.item() == pytest.approx(LOG_V + 0.001, abs=1e-5)


@pytest.mark.parametrize("reduce", [True, False])
def test_evaluation_is_normalised(reduce, make_criterion, task):
    model = MODELS["full"]().double().eval()
    sample = make_sample(model, padding=task.target_dictionary.pad())
    with torch.no_grad():
        loss, size, logged = make_criterion().eval()(model, sample, reduce)
        expected, expected_size, expected_logged = RegularizedCrossEntropy(task).eval()(model, sample, reduce)
    assert torch.equal(loss, expected) and size == expected_size and logged == expected_logged


def test_metrics():
    outputs = [
        {"objective": 30.0 * n, "log_normaliser": 20.0 * n, "ntokens": 10 * n, "sample_size": 10 * n} for n in (1, 2)
    ]
    with metrics.aggregate(new_root=True) as aggregated:
        NoiseContrastive.reduce_metrics(outputs)
    assert aggregated.get_smoothed_values() == {"loss": pytest.approx(3.0), "log_normaliser": pytest.approx(2.0)}


# no pass over all words


class WholeMatrices(TorchDispatchMode):
    """Names of the operations that take, and that return, a dense matrix of so many elements or more."""

    def __init__(self, numel):
        super().__init__()
        self.numel, self.taking, self.returning = numel, set(), set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if any(isinstance(x, torch.Tensor) and x.is_sparse for x in tree_leaves(args)):
            name = f"{name} sparse"
        for names, values in ((self.taking, (args, kwargs)), (self.returning, result)):
            tensors = [x for x in tree_leaves(values) if isinstance(x, torch.Tensor)]
            if any(x.layout == torch.strided and x.numel() >= self.numel for x in tensors):
                names.add(name)
        return result


@pytest.mark.parametrize(
    "output_layer, sharing, optimizer",
    [*((layer, "none", "sgd") for layer in ("full", "tied", "bilinear", "dual", "drill"))]
    + [("tied", "batch", "sgd"), ("full", "none", "adagrad")],
)
def test_an_update_passes_over_no_matrix(output_layer, sharing, optimizer, tmp_path):
    size = 1000
    write_split(tmp_path, "train", [list(range(4, size))], vocab_size=size)
    task = make_task(size)
    task.cfg = SimpleNamespace(data=str(tmp_path))
    model = build_tiny_lm(output_layer, vocab_size=size, rnn_cell="diagonal")
    criterion = NoiseContrastive(task, noise_samples=3, noise_sharing=sharing)
    sample = make_sample(model)
    criterion(model, sample)  # counts the words
    settings = SimpleNamespace(lr=[0.1], momentum=0.0, weight_decay=0.0)
    optimizer = OPTIMIZER_REGISTRY[optimizer](settings, list(model.parameters()))
    with WholeMatrices(size * 8) as whole:
        for _ in range(2):
            optimizer.zero_grad()
            loss, sample_size, _ = criterion(model, sample)
            optimizer.backward(loss)
            optimizer.multiply_grads(1 / sample_size)
            optimizer.clip_grad_norm(0.1)
            optimizer.step()
    assert whole.taking <= {"embedding", "new_empty", "detach", "add_ sparse", "sparse_mask sparse"}
    assert whole.returning <= {"detach", "add_ sparse"} and "add_ sparse" in whole.returning


def test_with_sentence_avg_fairseq_divides_by_sentences_in_validation_too(make_criterion):
    criterion, model = make_criterion(sentence_avg=True), MODELS["full"]()
    sample = make_sample(model)
    assert [criterion.train(training)(model.train(training), sample)[1] for training in (True, False)] == [B, B]


@pytest.mark.parametrize(
    "flags, named",
    [({"noise_samples": 0}, "--noise-samples 0")]
    + [({name: True}, "--sparse-gradients off, or --amp") for name in ("fp16", "bf16")],
)
def test_flags_that_are_refused(flags, named, make_criterion):
    with pytest.raises(ValueError, match=named):
        make_criterion(**flags)
    if "noise_samples" not in flags:
        make_criterion(sparse_gradients="off", **flags)


@pytest.mark.parametrize("sharing, refused", [("none", True), ("batch", False)])
def test_more_noise_than_memory_holds_is_refused(sharing, refused, make_criterion, monkeypatch):
    model = MODELS["full"]()
    sample = make_sample(model)
    monkeypatch.setattr(noise_contrastive, "MOST_WORDS", 5 * sample["target"].numel() - 1)
    criterion = make_criterion(noise_samples=5, noise_sharing=sharing)
    if refused:
        with pytest.raises(ValueError, match="--noise-samples 5: "):
            criterion(model, sample)
    else:
        criterion(model, sample)


def model_of_fairseq():
    decoder = LSTMDecoder(make_dictionary(V), embed_dim=8, hidden_size=8, out_embed_dim=8, attention=False)
    return FairseqLanguageModel(decoder)


@pytest.mark.parametrize(
    "build, named",
    [
        (lambda: build_tiny_lm("mos", **SIZES), "--output-layer mos"),
        (lambda: build_tiny_lm("doc", **SIZES), "--output-layer doc"),
        (lambda: build_tiny_lm("full", output_gate="iog", gate_dim=5, **SIZES), "leave --output-gate iog out"),
        (lambda: build_tiny_gated_lm("full", **SIZES), "--arch gated_lm with --criterion reg"),
        (lambda: build_tiny_lm("full", adversarial_epsilon=0.1, **SIZES), "--adversarial-epsilon 0.1"),
        (model_of_fairseq, "--criterion noise_contrastive needs an --arch of fairseq_plugins"),
    ],
)
def test_models_without_logits_of_single_words_are_refused(build, named, make_criterion):
    model = build()
    with pytest.raises(ValueError, match=named):
        make_criterion()(model, make_sample(model))


def test_the_words_of_the_subset_that_is_trained_on_count(task, tmp_path):
    elsewhere = copy.copy(task)
    elsewhere.cfg = SimpleNamespace(data=str(tmp_path))
    write_split(tmp_path, "train", [[4] * 3], vocab_size=len(task.target_dictionary))
    write_split(tmp_path, "half", [[5] * 7], vocab_size=len(task.target_dictionary))
    noise = NoiseContrastive(elsewhere, noise_samples=1, train_subset="half").distribution
    frequent, rare = noise.log_expected(torch.tensor([5, 4])).exp()
    assert frequent == pytest.approx(7 * rare.item())


def test_without_word_counts_it_is_refused(task, tmp_path):
    model = MODELS["full"]()
    elsewhere = copy.copy(task)
    elsewhere.cfg = SimpleNamespace(data=str(tmp_path / "nowhere"))
    criterion = NoiseContrastive(elsewhere)
    with pytest.raises(ValueError, match="word counts of the training text, and there is none beside this data"):
        criterion(model, make_sample(model))
    with torch.no_grad():
        assert criterion.eval()(model.eval(), make_sample(model))[0] > 0


def test_several_processes_have_dense_gradients(make_criterion, monkeypatch):
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    with pytest.raises(
        ValueError, match="several processes can only add up dense gradients: give --sparse-gradients off"
    ):
        make_criterion()
    make_criterion(sparse_gradients="off")
