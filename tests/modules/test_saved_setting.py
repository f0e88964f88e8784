"""Settings that checkpoints hold."""

import pytest
import torch

from fairseq_plugins.modules.saved_setting import SavesSettings


class Layer(SavesSettings):
    def __init__(self, value):
        super().__init__()
        self.save_setting("kind_name", flag="--kind", value=value)
        self.inner = torch.nn.Linear(2, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_same_setting_is_loaded_in_any_precision(dtype):
    layer = Layer("variational").to(dtype)
    Layer("variational").load_state_dict(layer.state_dict())


def test_another_setting_is_refused_with_both_values():
    told = "trained with --kind top, this model has --kind layer: give the same --arch and --kind"
    with pytest.raises(ValueError, match=told):
        Layer("layer").load_state_dict(Layer("top").state_dict())


def test_a_checkpoint_without_the_setting_is_loaded():
    saved = {name: value for name, value in Layer("top").state_dict().items() if name != "kind_name"}
    layer = Layer("layer")
    layer.load_state_dict(saved)
    assert layer.state_dict()["kind_name"].tolist() == list(b"layer")


class Note(SavesSettings):
    def __init__(self, text):
        super().__init__()
        self.save_text("note", text, explain=lambda saved: f"{saved} is not {text}")


def test_another_text_is_refused_in_its_own_words():
    Note("a").load_state_dict(Note("a").state_dict())
    with pytest.raises(ValueError, match="^a is not b$"):
        Note("b").load_state_dict(Note("a").state_dict())


@pytest.mark.parametrize("value", [float("nan"), -1.0, 1e9, 204.0])
def test_a_text_that_is_none_is_refused_like_another(value):
    with pytest.raises(ValueError, match=" is not b$"):
        Note("b").load_state_dict({"note": torch.full((3,), value)})
