"""Base models from checkpoints: what is read, kept and refused."""

from argparse import Namespace

import pytest
import torch
from builders import build_model, build_tiny_encdec, build_tiny_gated_lm, build_tiny_lm, make_task, tiny_base_flags
from example_layers import OwnSoftmax
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

from fairseq_plugins.output_layers.base import OUTPUT_LAYERS

V = 23


def save(model, path, **flags):
    """A checkpoint as the host writes it, with what is read here."""
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


def test_flags_of_a_checkpoint_build_the_same_model_without_files(base):
    path, _ = base("one.pt", "doc")
    args = Namespace(**tiny_base_flags("doc"))
    saved = gate(path)
    again = build_model("gated_lm", make_task(V), base_model="removed.pt", base_model_flags=[vars(args)], gate_dim=5)
    again.load_state_dict(saved.state_dict())
    tokens = torch.randint(4, V, (2, 5))
    assert torch.equal(again.eval()(tokens)[0], saved.eval()(tokens)[0])


def other_words():
    dictionary = Dictionary()
    for i in reversed(range(V - len(dictionary))):
        dictionary.add_symbol(f"w{i}")
    task = make_task(V)
    task.source_dictionary = task.target_dictionary = dictionary
    return task


@pytest.mark.parametrize(
    "task, told",
    [
        (make_task(29), "one.pt: the checkpoint was trained with 23 vocabulary items but .* gives 29: point to the"),
        (other_words(), "one.pt: the vocabulary, dict.txt, is not the one that the checkpoint was trained with"),
    ],
)
def test_a_base_model_of_another_vocabulary_is_refused(base, task, told):
    path, _ = base("one.pt", "doc")
    with pytest.raises(ValueError, match=told) as error:
        gate(path, task)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("arch", ["lstm_encdec", "transformer_lm", "gated_lm"])
def test_a_model_of_another_kind_is_refused(arch, tmp_path):
    path = save(build_tiny_encdec("full"), tmp_path / "other.pt", arch=arch)
    with pytest.raises(ValueError, match=f"other.pt holds a model of --arch {arch}: --base-model takes recurrent"):
        gate(path)


def test_a_base_model_with_a_gate_is_refused(base):
    path, _ = base("one.pt", "doc", output_gate="iog")
    with pytest.raises(ValueError, match="one.pt has a gate already, --output-gate iog: give a model without one"):
        gate(path)


def test_missing_and_damaged_files_are_refused(base, tmp_path):
    path, _ = base("one.pt", "doc")
    with pytest.raises(ValueError, match="two.pt does not exist: give a checkpoint, such as SAVE_DIR"):
        gate(f"{path}:{tmp_path / 'two.pt'}")
    content = bytearray((tmp_path / "one.pt").read_bytes())
    (tmp_path / "cut.pt").write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match="cut.pt is no checkpoint or was cut short"):
        gate(str(tmp_path / "cut.pt"))
    content[len(content) // 2] ^= 1
    (tmp_path / "flipped.pt").write_bytes(content)
    with pytest.raises(ValueError, match="flipped.pt is damaged"):
        gate(str(tmp_path / "flipped.pt"))
    torch.save(torch.load(path)["model"], tmp_path / "weights.pt")
    with pytest.raises(ValueError, match="weights.pt holds no checkpoint of fairseq-train: give one, such as SAVE_DIR"):
        gate(str(tmp_path / "weights.pt"))


def test_a_repeated_file_is_refused(base, tmp_path):
    path, _ = base("one.pt", "doc")
    again = tmp_path / "again.pt"
    again.symlink_to(path)
    for second in (path, again):
        with pytest.raises(ValueError, match=f"^--base-model: {second} is given twice; give each model of an ensemble"):
            gate(f"{path}:{second}")


# a training that is resumed


@pytest.fixture(params=[torch.float32, torch.bfloat16, torch.float16], ids=str)
def resume(request, base, tmp_path):
    """``resume(base_model)``: scores of a model that goes on from a gate on one.pt and two.pt, trained in a precision.

    The host saves 32 bits of all.
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
        "take another --save-dir, start from other weights, or leave --base-model out to go on with those of the "
        "checkpoint"
    )


def test_a_removed_file_is_missing_where_the_save_directory_holds_another_model(base, tmp_path):
    path, _ = base("checkpoint_last.pt", "doc")
    with pytest.raises(ValueError, match="^removed.pt does not exist: give a checkpoint, such as SAVE_DIR"):
        gate("removed.pt", save_dir=str(tmp_path), restore_file="checkpoint_last.pt")


@pytest.mark.parametrize("given", ["", ":", "one.pt:"])
def test_no_path_is_refused(given):
    with pytest.raises(ValueError, match="^--base-model: give the checkpoint of a trained language model, or several"):
        gate(given)


def test_without_a_gate_nothing_would_learn():
    with pytest.raises(ValueError, match="^--output-gate none: nothing would learn; take --output-gate iog"):
        build_tiny_gated_lm(tiny_base_flags("tied"), output_gate="none")


def test_a_checkpoint_of_another_vocabulary_or_base_is_refused():
    saved = build_tiny_gated_lm(tiny_base_flags("tied")).state_dict()
    with pytest.raises(ValueError, match="23 vocabulary items but the data directory's dictionary gives 29: point to"):
        build_tiny_gated_lm(tiny_base_flags("tied"), vocab_size=29).load_state_dict(saved)
    with pytest.raises(ValueError, match="trained with --output-gate iog, this model has --output-gate iog-lstm"):
        build_tiny_gated_lm(tiny_base_flags("tied"), output_gate="iog-lstm").load_state_dict(saved)


@pytest.mark.parametrize("others", [[], ["tied"]])
def test_a_base_without_logits_takes_no_gate(base, others, monkeypatch):
    monkeypatch.setitem(OUTPUT_LAYERS, "own", OwnSoftmax)
    paths = [base(f"{layer}.pt", layer)[0] for layer in ("own", *others)]
    with pytest.raises(ValueError, match="^--output-gate iog: --output-layer own has no logits that a gate could"):
        gate(":".join(paths))
