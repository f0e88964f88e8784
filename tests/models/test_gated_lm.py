"""Trained language models under one gate: the contract of decoders, equations, what is frozen, memory."""

import shutil
from argparse import Namespace

import pytest
import torch
from builders import (
    VOCAB_SIZE,
    build_model,
    build_tiny_encdec,
    build_tiny_gated_lm,
    build_tiny_lm,
    dictionary_of,
    make_task,
    randomise,
    tiny_base_flags,
    tiny_transformer_lm_flags,
)
from decoder_contract import B, DecoderContract, Decoding, T, V
from example_parts import OwnSoftmax
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from operations import TensorSizes

from fairseq_plugins.criterions.regularized_cross_entropy import RegularizedCrossEntropy
from fairseq_plugins.output_layers.base import OUTPUT_LAYERS, OutputPrecision

KINDS = ["iog", "iog-hidden", "iog-lstm"]
RATES = {f"dropout_{place}": 0.5 for place in ("embedding", "input", "hidden", "output", "weight")}
BASES = {
    "one": [tiny_base_flags("doc", experts_per_layer="1 1 2")],
    "several": [
        "tied",
        tiny_base_flags("mos", rnn_cell="mmlstm", embed_dim=10, hidden_sizes="6 7 9"),
        tiny_base_flags("full", rnn_cell="variational", hidden_sizes="11"),
    ],
}

TRANSFORMERS = {
    "transformer": [tiny_transformer_lm_flags("doc")],
    "transformer and LSTM": [tiny_transformer_lm_flags("mos"), "tied"],
}


class TestGatedLanguageModel(DecoderContract):
    dropouts = {"gate_dropout": 0.5}

    @pytest.fixture(
        params=[
            *(("one", kind) for kind in KINDS),
            ("several", "iog-lstm"),
            *((name, "iog-hidden") for name in TRANSFORMERS),
        ],
        ids=" ".join,
    )
    def build(self, request):
        name, kind = request.param
        bases = {**BASES, **TRANSFORMERS}[name]
        num_layers = 3 if len(bases) == 1 else 2  # of several models, embeddings and last layers
        return lambda **flags: Decoding(build_tiny_gated_lm(*bases, output_gate=kind, **flags), [], num_layers)

    def test_token_weights_and_label_smoothing_reach_the_output_layer(self, build, tokens):
        if len(build().model.decoder.members) == 1:
            super().test_token_weights_and_label_smoothing_reach_the_output_layer(build, tokens)
            return
        target, weights = torch.randint(V, (B, T)), torch.rand(B, T).double()
        weights[1] = 0
        model = build().model.double()
        nll = -model(tokens)[0].gather(-1, target.unsqueeze(-1)).squeeze(-1)
        loss, extra = model(tokens, target=target, token_weights=weights)
        torch.testing.assert_close(loss, (nll * weights).sum(), rtol=1e-10, atol=1e-10)
        assert torch.equal(extra["scores"].nll != 0, weights != 0)
        with pytest.raises(ValueError, match="^--label-smoothing 0.2 does not work with several base models: leave"):
            model(tokens, target=target, label_smoothing=0.2)


@pytest.fixture
def tokens():
    return torch.randint(4, V, (B, T))


@pytest.fixture
def target():
    return torch.randint(4, V, (B, T))


def gated_and_base(name, kind):
    """A gated model of one base model without dropout, and a model of the same architecture with a gate of its own."""
    gated = build_tiny_gated_lm(tiny_base_flags(name), output_gate=kind).eval()
    joint = build_tiny_lm(name, output_gate=kind, gate_dim=5, gate_dropout=0.0).eval()
    member = {key: value for key, value in gated.decoder.members[0].state_dict().items() if "output.gate." not in key}
    gate = {f"output.gate.{key}": value for key, value in gated.decoder.gate.state_dict().items()}
    joint.decoder.load_state_dict({**joint.decoder.state_dict(), **member, **gate})
    return gated, joint


def gradients_of_gate(gate, loss):
    return dict(zip(dict(gate.named_parameters()), torch.autograd.grad(loss, list(gate.parameters()))))


@pytest.mark.parametrize(
    "name, kind", [*((name, "iog") for name in sorted(OUTPUT_LAYERS)), *(("doc", kind) for kind in KINDS[1:])]
)
def test_one_base_model_is_exactly_its_output_layer_with_the_gate(name, kind, tokens, target):
    gated, joint = gated_and_base(name, kind)
    with torch.no_grad():  # with gradients torch takes another kernel for the product with a frozen matrix
        assert torch.equal(gated(tokens)[0], joint(tokens)[0])
    losses = [model(tokens, target=target, label_smoothing=0.1) for model in (gated, joint)]
    assert torch.equal(losses[0][0], losses[1][0])
    assert torch.equal(losses[0][1]["scores"].nll, losses[1][1]["scores"].nll)
    ours = gradients_of_gate(gated.decoder.gate, losses[0][0])
    theirs = gradients_of_gate(joint.decoder.output.gate, losses[1][0])
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)


@pytest.mark.parametrize("kind", KINDS)
def test_an_ensemble_is_the_mean_of_the_gated_distributions(kind, tokens, target):
    """P = (1/M) sum_m softmax(g * s_m), with gradients by autograd through the probabilities."""
    model = build_tiny_gated_lm(*BASES["several"], output_gate=kind).double()
    decoder, joint = model.decoder, model(tokens)[1]["states"]
    state = decoder.initial_state(B)
    given, _ = decoder.gate(joint, state["gate"])
    g = torch.sigmoid(given.features @ given.weight.T + given.bias).unsqueeze(-2)
    total = 0.0
    for member, layers in zip(decoder.members, state["members"]):
        states, _ = member.read(tokens, layers, incremental=False)
        latents, log_prior = member.output.mixture(states)
        softmaxes = torch.softmax(g * member.output.projection(latents), dim=-1)
        total = total + (log_prior.exp().unsqueeze(-1) * softmaxes).sum(-2) / 3
    torch.testing.assert_close(model(tokens)[0].exp(), total, rtol=1e-11, atol=1e-13)
    weights = torch.rand(B, T).double()
    weights[0, :2] = 0
    nll = -total.gather(-1, target.unsqueeze(-1)).squeeze(-1).log()
    loss, extra = model(tokens, target=target, token_weights=weights)
    torch.testing.assert_close(loss, (weights * nll).sum(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(extra["scores"].nll, nll.detach().masked_fill(weights == 0, 0), rtol=1e-12, atol=1e-12)
    ours, theirs = (gradients_of_gate(decoder.gate, y) for y in (loss, (weights * nll).sum()))
    for key in ours:
        torch.testing.assert_close(ours[key], theirs[key], rtol=1e-9, atol=1e-12)


# what is frozen


@pytest.mark.parametrize("others", [[], BASES["several"]], ids=["one", "several"])
def test_only_the_gate_learns_and_its_dropout_alone_acts(others, tokens, target):
    base = tiny_base_flags("doc", experts_per_layer="1 1 2", latent_dropout=0.5, **RATES)
    model = build_tiny_gated_lm(base, *others)
    model.train()
    assert all(module.training for module in model.decoder.gate.modules())
    frozen = [m for m in model.decoder.members.modules() if not isinstance(m, OutputPrecision)]
    assert not any(module.training for module in frozen)
    losses = [model(tokens, target=target)[0].item() for _ in range(2)]
    assert losses[0] == losses[1] == pytest.approx(model.eval()(tokens, target=target)[0].item(), rel=1e-6)
    learning = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert learning == {f"decoder.gate.{name}" for name, _ in model.decoder.gate.named_parameters()}
    model.train().decoder.gate.dropout.rate = 0.5
    assert model(tokens, target=target)[0].item() != model(tokens, target=target)[0].item()


def test_the_precision_of_the_output_layers_is_the_flags_and_follows_the_mode():
    flags = tiny_base_flags("doc", output_precision="bfloat16")
    for given, expected in (({}, "bfloat16"), ({"output_precision": "float32"}, "float32")):
        model = build_tiny_gated_lm(flags, "tied", **given)
        names = [member.output.precision.name for member in model.decoder.members]
        assert names == [expected, "float32"]
        for mode in (True, False):
            model.train(mode)
            assert [member.output.precision.training for member in model.decoder.members] == [mode, mode]


def test_a_criterion_of_fairseq_does_not_train_in_another_precision():
    model = build_tiny_gated_lm("tied", output_precision="bfloat16").train()
    tokens = torch.randint(4, 10, (2, 3))
    model(tokens, target=tokens)
    with pytest.raises(ValueError, match="--output-precision bfloat16 is not for a criterion of fairseq, which"):
        model(tokens)


def test_training_holds_no_logits_of_all_tokens():
    num_rows, num_steps, vocab_size = 8, 20, 3000
    flags = [tiny_base_flags("mos", experts_per_layer="0 0 2"), tiny_base_flags("tied")]
    flags = [{**each, "output_chunk": 16, "output_loss": "plain"} for each in flags]
    tokens, target = torch.randint(4, vocab_size, (2, num_rows, num_steps))
    for bases in (flags, flags[:1]):
        model = build_tiny_gated_lm(*bases, vocab_size=vocab_size).train()
        with TensorSizes() as sizes:
            model(tokens, target=target)[0].backward()
        assert sizes.largest < num_rows * num_steps * vocab_size / 2


def test_labels_of_a_frozen_model_are_encoded_once(tokens, target):
    model = build_tiny_gated_lm("drill").train()
    calls = []
    encoder = model.decoder.members[0].output.projection.label_encoder
    encoder.register_forward_hook(lambda *_: calls.append(1))
    losses = [model.train()(tokens, target=target)[0].item() for _ in range(3)]  # as fairseq does for every update
    assert len(calls) == 1 and len(set(losses)) == 1
    randomise(encoder, seed=5)
    assert model(tokens, target=target)[0].item() != losses[0] and len(calls) == 2


# what others read


def test_windows_of_a_stream_are_one_sequence(tokens):
    for bases in BASES.values():
        model = build_tiny_gated_lm(*bases, output_gate="iog-lstm").double().eval()
        parts = [model(tokens[:, a:b], stream="text", position=a)[0] for a, b in ((0, 2), (2, 3), (3, T))]
        torch.testing.assert_close(torch.cat(parts, dim=1), model(tokens)[0])


@pytest.mark.parametrize(
    "names, num_softmaxes", [(["doc"], 20), (["mos", "mos"], 2 * 15), (["mos", "tied"], None), (["tied"], None)]
)
def test_mixture_weights_are_those_of_all_softmaxes(names, num_softmaxes, tokens):
    experts = {"mos": "0 0 15", "doc": "0 5 15"}
    flags = [tiny_base_flags(n, **({"experts_per_layer": experts[n]} if n in experts else {})) for n in names]
    model = build_tiny_gated_lm(*flags).train()
    weights = model(tokens)[1]["scores"].mixture_weights
    criterion = RegularizedCrossEntropy(make_task(VOCAB_SIZE), balance=0.1, activation_regularization=1.0)
    sample = {"net_input": {"src_tokens": tokens}, "target": tokens, "ntokens": tokens.numel()}
    if num_softmaxes is None:
        assert weights is None
        with pytest.raises(ValueError, match="--balance needs a mixture"):
            criterion(model, sample)
        return
    assert weights.shape == (B, T, num_softmaxes)
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, T))
    penalties = criterion.penalties(model, model(tokens)[1], torch.ones_like(tokens, dtype=torch.bool))
    assert penalties["balance"] > 0 and penalties["activation"] > 0


@pytest.mark.parametrize("num_bases", [1, 2])
@pytest.mark.parametrize("flag", ["--activation-regularization", "--temporal-activation-regularization", "--balance"])
def test_penalties_of_what_is_frozen_are_refused_in_training_alone(flag, num_bases, tokens):
    model = build_tiny_gated_lm(*BASES["one"] * num_bases)
    criterion = RegularizedCrossEntropy(make_task(VOCAB_SIZE), **{flag[2:].replace("-", "_"): 0.1})
    sample = {"net_input": {"src_tokens": tokens}, "target": tokens, "ntokens": tokens.numel()}
    with pytest.raises(ValueError, match=f"^{flag}: what it acts on is frozen and cannot learn; leave it out$"):
        criterion(model.train(), sample)
    loss, _, logged = criterion.eval()(model.eval(), sample)
    assert loss.item() == pytest.approx(logged["loss"].item()) and loss > 0


def save(model, path, **flags):
    """A checkpoint as fairseq writes it, with what is read here."""
    torch.save(
        {
            "args": None,
            "cfg": {"model": Namespace(**flags, data="elsewhere", lr=[1.0], save_dir="checkpoints")},
            "model": model.state_dict(),
            "optimizer_history": [{"num_updates": 3, "optimizer_name": "sgd", "lr_scheduler_state": {}}],
            "extra_state": {"train_iterator": {"epoch": 1}},
            "last_optimizer_state": {},
        },
        path,
    )
    return str(path)


@pytest.fixture
def base(tmp_path):
    """``base(name, layer, **flags)``: the path of a checkpoint, and its model."""

    def base(name, layer, **flags):
        flags = tiny_base_flags(layer, **flags)
        model = build_tiny_lm(layer, **{key: flags[key] for key in flags.keys() - {"arch", "output_layer"}})
        return save(model, tmp_path / name, **flags), model

    return base


def gate(path, task=None, **flags):
    return build_model("gated_lm", task or make_task(V), base_model=path, gate_dim=5, **flags)


def test_weights_and_flags_are_the_checkpoints(base):
    (first, one), (second, two) = base("one.pt", "doc", dropout_input=0.3), base("two.pt", "full", rnn_cell="mmlstm")
    args = Namespace(arch="gated_lm", base_model=f"{first}:{second}", gate_dim=5)
    ARCH_CONFIG_REGISTRY["gated_lm"](args)
    model = ARCH_MODEL_REGISTRY["gated_lm"].build_model(args, make_task(V))
    for member, expected in zip(model.decoder.members, (one, two)):
        assert all(torch.equal(member.state_dict()[name], x) for name, x in expected.decoder.state_dict().items())
    assert [flags["arch"] for flags in args.base_model_flags] == ["lstm_lm_awd"] * 2
    assert args.base_model_flags[0]["dropout_input"] == 0.3 and args.base_model_flags[1]["rnn_cell"] == "mmlstm"
    assert all(set(flags) & {"data", "lr", "save_dir"} == set() for flags in args.base_model_flags)


def test_a_base_model_may_be_trained_from_a_yaml_file(base):
    path, model = base("base.pt", "doc", embed_dim=12, hidden_sizes="7 12")
    state = torch.load(path)
    saved = vars(state["cfg"]["model"])
    state["cfg"]["model"] = {"_name": saved.pop("arch"), **saved, "hidden_sizes": [7, 12]}
    torch.save(state, path)
    (member,) = gate(path).decoder.members
    assert all(torch.equal(member.state_dict()[name], x) for name, x in model.decoder.state_dict().items())


def other_words():
    dictionary = dictionary_of(f"w{i}" for i in reversed(range(V - 4)))
    return Namespace(source_dictionary=dictionary, target_dictionary=dictionary)


@pytest.mark.parametrize("task", [make_task(29), other_words()], ids=["more words", "other words"])
def test_a_base_model_of_another_vocabulary_is_refused(base, task):
    path, _ = base("one.pt", "doc")
    told = r"\A.*one.pt: the vocabulary, dict.txt, is not the one that the checkpoint was trained with.*\Z"
    with pytest.raises(ValueError, match=told):
        gate(path, task)


def test_files_that_are_no_base_models_are_refused(base, tmp_path):
    path, _ = base("one.pt", "doc")
    base("gated.pt", "doc", output_gate="iog")
    content = bytearray((tmp_path / "one.pt").read_bytes())
    (tmp_path / "cut.pt").write_bytes(content[: len(content) // 2])
    content[len(content) // 2] ^= 1
    (tmp_path / "flipped.pt").write_bytes(content)
    torch.save(torch.load(path)["model"], tmp_path / "weights.pt")
    torch.save({**torch.load(path), "cfg": None}, tmp_path / "no flags.pt")
    state = torch.load(path)
    del state["model"]["decoder.embedding.weight"]
    torch.save(state, tmp_path / "unfit.pt")
    for arch in ("lstm_encdec", "gated_lm"):
        save(build_tiny_encdec("full"), tmp_path / f"{arch}.pt", arch=arch)
    for name, told in (
        *((f"{arch}.pt", f"--arch {arch} cannot be a base model: take a lang") for arch in ("lstm_encdec", "gated_lm")),
        ("gated.pt", "gated.pt has a gate already, --output-gate iog: give a model without one"),
        ("two.pt", "two.pt does not exist: give a checkpoint, such as SAVE_DIR"),
        ("cut.pt", "cut.pt is no checkpoint or was cut short"),
        ("flipped.pt", "flipped.pt is damaged"),
        ("no flags.pt", "no flags.pt: --arch None cannot be a base model"),
        ("unfit.pt", "unfit.pt does not fit the model .*embedding"),
        ("weights.pt", "weights.pt holds no checkpoint of fairseq-train: give one, such as SAVE_DIR"),
    ):
        with pytest.raises(ValueError, match=told):
            gate(f"{path}:{tmp_path / name}")


def test_a_repeated_file_is_refused(base, tmp_path):
    path, _ = base("one.pt", "doc")
    again = shutil.copy(path, tmp_path / "again.pt")
    for second in (path, again):
        with pytest.raises(
            ValueError, match=f"^--base-model: {path} and {second} hold the same model: give each model once"
        ):
            gate(f"{path}:{second}")


# a training that is resumed


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
def resume(request, base, tmp_path):
    """``resume(base_model)``: scores of a model that goes on from a gate on one.pt and two.pt, trained in a precision.

    fairseq saves 32 bits of all.
    """
    args = Namespace(arch="gated_lm", base_model=f"{base('one.pt', 'doc')[0]}:{base('two.pt', 'tied')[0]}", gate_dim=5)
    ARCH_CONFIG_REGISTRY["gated_lm"](args)
    saved = ARCH_MODEL_REGISTRY["gated_lm"].build_model(args, make_task(V))
    (tmp_path / "gate").mkdir()
    path = save(saved.to(request.param).float(), tmp_path / "gate/checkpoint_last.pt", **vars(args))

    def resume(base_model, name="checkpoint_last.pt", folder="gate", **flags):
        model = gate(base_model, save_dir=str(tmp_path / folder), restore_file=name, **flags)
        model.load_state_dict(torch.load(path)["model"])
        return model.eval()(torch.arange(4, 14).view(2, 5))[0]

    return resume


@pytest.mark.parametrize("names", [["one", "two"], ["removed", "two"], ["removed", "again"], []])
def test_files_of_a_training_that_is_resumed_are_the_same_or_gone(names, resume, tmp_path):
    paths = ":".join(str(tmp_path / f"{name}.pt") for name in names)
    assert torch.equal(resume(paths), resume("", name=str(tmp_path / "gate/checkpoint_last.pt")))


@pytest.mark.parametrize("flag", ["continue_once", "finetune_from_model"])
def test_a_gate_in_a_new_folder_goes_on_from_a_checkpoint_without_files_of_base_models(flag, resume, tmp_path):
    started = {flag: str(tmp_path / "gate/checkpoint_last.pt")}
    assert torch.equal(resume("", folder="new", **started), resume(""))


@pytest.mark.parametrize("changed", ["weights", "flags", "order", "number"])
def test_other_base_models_of_a_training_that_is_resumed_are_refused(changed, resume, base, tmp_path):
    paths = [str(tmp_path / "one.pt"), str(tmp_path / "two.pt")]
    if changed == "weights":
        state = torch.load(paths[1])
        state["model"]["decoder.embedding.weight"][3, 2] += 0.1
        torch.save(state, paths[1])
    elif changed == "flags":
        base("two.pt", "tied", rnn_cell="mmlstm")
    paths = {"order": paths[::-1], "number": paths[:1]}.get(changed, paths)
    with pytest.raises(ValueError) as error:
        resume(":".join(paths))
    assert str(error.value) == (
        f"{tmp_path}/gate/checkpoint_last.pt holds a gate on other base models than --base-model {':'.join(paths)}: "
        "take another --save-dir, start from other weights, or leave --base-model out to continue with the "
        "checkpoint's"
    )


def test_a_removed_file_is_missing_where_the_save_directory_holds_another_model(base, tmp_path):
    path, _ = base("checkpoint_last.pt", "doc")
    with pytest.raises(ValueError, match="^removed.pt does not exist: give a checkpoint, such as SAVE_DIR"):
        gate("removed.pt", save_dir=str(tmp_path), restore_file="checkpoint_last.pt")


@pytest.mark.parametrize("given", ["", "one.pt:"])
def test_no_path_is_refused(given):
    with pytest.raises(ValueError, match="^--base-model: give the checkpoint of a trained language model, or several"):
        gate(given)


def test_without_a_gate_nothing_would_learn():
    with pytest.raises(ValueError, match="^--output-gate none: nothing would learn; take --output-gate iog"):
        build_tiny_gated_lm("tied", output_gate="none")


def test_a_base_without_logits_takes_no_gate(base, monkeypatch):
    monkeypatch.setitem(OUTPUT_LAYERS, "own", OwnSoftmax)
    paths = [base(f"{layer}.pt", layer)[0] for layer in ("own", "tied")]
    with pytest.raises(ValueError, match="^--output-gate iog: --output-layer own has no logits that a gate could"):
        gate(":".join(paths))
