"""Batches after a training was resumed; that it goes on to the bit is tested with the commands."""

import copy
import time
from types import SimpleNamespace

import pytest
import torch
from builders import build_tiny_encdec, build_tiny_gated_lm, build_tiny_lm, build_tiny_transformer, tiny_base_flags
from fairseq.data import FairseqDataset
from fairseq.data.iterators import EpochBatchIterator
from fairseq.dataclass.configs import EMAConfig, FairseqConfig
from fairseq.distributed import utils as distributed_utils
from fairseq.logging import metrics
from fairseq.models.ema.ema import EMA
from omegaconf import OmegaConf

import fairseq_plugins  # noqa: F401
from fairseq_plugins.fairseq_patches.resume import PATIENCE, _train_no_more


def configuration():
    return OmegaConf.structured(FairseqConfig)


def test_batches_are_cut_every_epoch():
    seen = []
    distributed_utils.call_main(configuration(), lambda cfg: seen.append(cfg.dataset.update_epoch_batch_itr))
    assert seen == [True]


def test_fairseq_alone_cuts_batches_once():
    assert configuration().dataset.update_epoch_batch_itr is False


STATE = {"version": 2, "epoch": 1, "iterations_in_epoch": 4, "shuffle": False}


class Numbers(FairseqDataset):
    def __getitem__(self, index):
        return index

    def __len__(self):
        return 12


def batches(size):
    numbers = list(range(12))
    sampler = [numbers[start : start + size] for start in range(0, 12, size)]
    return EpochBatchIterator(Numbers(), collate_fn=list, batch_sampler=sampler, disable_shuffling=True)


def test_an_epoch_that_is_too_short_is_told_with_the_flags():
    told = "after 4 batches, .*--batch-size or --max-tokens.*, beginning at epoch 1 again, with --reset-dataloader$"
    with pytest.raises(ValueError, match=told):
        batches(6).load_state_dict(STATE)


def test_an_epoch_that_is_long_enough_goes_on():
    iterator = batches(2)
    iterator.load_state_dict(STATE)
    assert next(iterator.next_epoch_itr()) == [8, 9]


def test_fairseq_alone_asks_to_report():
    with pytest.raises(RuntimeError, match="please report this to the fairseq developers"):
        EpochBatchIterator.load_state_dict.__wrapped__(batches(6), STATE)


@pytest.fixture
def saved():
    """Meters of a training, as checkpoints have them; the process forgets its own."""
    metrics.reset()
    metrics.log_start_time("wall", priority=790, round=0)
    state = metrics.state_dict()
    yield state
    metrics.reset()


def seconds_after(load, state):
    load(state)
    time.sleep(0.01)
    return metrics.get_meter("default", "wall").elapsed_time


def test_the_clock_of_loaded_meters_runs_from_then_on(saved):
    assert 0.01 <= seconds_after(metrics.load_state_dict, saved) < 10


def test_meters_without_a_clock_are_loaded(saved):
    metrics.reset()
    metrics.load_state_dict(metrics.state_dict())
    assert metrics.get_meter("default", "wall") is None


def test_fairseq_alone_lets_the_clock_stand(saved):
    assert seconds_after(metrics.load_state_dict.__wrapped__, saved) == 0


@pytest.fixture
def start_again():
    """``start_again(**flags)``: epochs that are trained after three of ten, where two were no better."""

    def start(*, num_updates=300, saved=True, **flags):
        checkpoint = dict(save_dir="runs", patience=-1, reset_optimizer=False, reset_meters=False)
        checkpoint.update({name: value for name, value in flags.items() if name in checkpoint})
        optimization = SimpleNamespace(max_epoch=10, max_update=flags.get("max_update", 0))
        trainer = SimpleNamespace(cfg=SimpleNamespace(optimization=optimization), get_num_updates=lambda: num_updates)
        state = {PATIENCE: {"best": 1.0, "num_runs": 2}} if saved else None
        iterator = SimpleNamespace(next_epoch_idx=4)
        found = _train_no_more(lambda *args: (state, iterator), SimpleNamespace(**checkpoint), trainer)
        assert found == (state, iterator)
        max_epoch = optimization.max_epoch or float("inf")  # as fairseq reads it
        return max(0, max_epoch - iterator.next_epoch_idx + 1)

    return start


@pytest.mark.parametrize("flags", [{"max_update": 300}, {"max_update": 200}, {"patience": 2}, {"patience": 1}])
def test_a_finished_training_stays_as_it_is(flags, start_again, caplog):
    with caplog.at_level("INFO"):
        assert start_again(**flags) == 0
    assert "the training in runs is finished" in caplog.text and f"is {[*flags.values()][0]};" in caplog.text


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"max_update": 301},
        {"patience": 3},
        {"patience": 1, "reset_meters": True},
        {"patience": 1, "reset_optimizer": True},
        {"patience": 1, "num_updates": 0},
        {"patience": 1, "max_update": 1, "num_updates": 0, "saved": False},
    ],
    ids=str,
)
def test_what_is_not_finished_is_trained_on(flags, start_again):
    assert start_again(**flags) == 7


DECAY = 0.9
MODELS = {
    "tied language model": lambda: build_tiny_lm("tied"),
    "language model": lambda: build_tiny_lm("full"),
    "one matrix of an encoder-decoder": lambda: build_tiny_encdec("tied", share_embeddings="output"),
    "Transformer": lambda: build_tiny_transformer("transformer_drill"),
    "gate on a tied model": lambda: build_tiny_gated_lm(tiny_base_flags("tied")),
}


def average(model, *, fp32):
    """fairseq's average after two updates, each of which adds one to all weights."""
    ema = EMA(model, EMAConfig(store_ema=True, ema_decay=DECAY, ema_fp32=fp32))
    for _ in range(2):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 1
        ema.step(model)
    return ema


@pytest.mark.parametrize("fp32", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_every_weight_decays_once_an_update(name, fp32):
    model = MODELS[name]()
    before = copy.deepcopy(model.state_dict())
    ema = average(model, fp32=fp32)
    moved = (1 - DECAY) * 2 + DECAY * (1 - DECAY)
    for key, _ in model.named_parameters(remove_duplicate=False):
        torch.testing.assert_close(ema.get_model().state_dict()[key], before[key] + moved)
    for key, weight in ema.fp32_params.items():
        torch.testing.assert_close(weight, ema.get_model().state_dict()[key].float())


def test_the_average_in_32_bits_is_that_of_a_model_in_16():
    model = build_tiny_lm("tied").half()
    before = copy.deepcopy(model.state_dict())
    ema = average(model, fp32=True)
    for name in ("decoder.embedding.weight", "decoder.output.projection.weight"):
        change = ema.fp32_params[name] - before[name].float()
        torch.testing.assert_close(change, torch.full_like(change, 0.29), rtol=0, atol=2e-3)
    restored = EMA(model, EMAConfig(store_ema=True, ema_decay=DECAY, ema_fp32=True))
    restored.restore(ema.fp32_params, build_fp32_params=True)
    for name, weight in restored.get_model().state_dict().items():
        assert torch.equal(weight, ema.get_model().state_dict()[name]), name


def test_columns_keep_their_length():
    model = build_tiny_lm("full", column_norm=3.0, hidden_sizes="8", embed_dim=8)
    ema = average(model, fp32=False)
    for weight in ema.get_model().column_norm.weights:
        torch.testing.assert_close(weight.norm(dim=0), torch.full((weight.size(1),), 3.0))
    held = {id(weight) for weight in ema.get_model().column_norm.weights}
    assert held <= {id(parameter) for parameter in ema.get_model().parameters()} and len(held) == 2


def test_fairseq_alone_decays_a_shared_matrix_twice(monkeypatch):
    monkeypatch.setattr(EMA, "_step_internal", EMA._step_internal.__wrapped__)
    model = build_tiny_lm("tied")
    before = model.decoder.embedding.weight.detach().clone()
    moved = average(model, fp32=False).get_model().decoder.embedding.weight - before
    assert moved.min() > 0.29 + 0.1
