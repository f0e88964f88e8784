"""The task: carried state in training and validation, and what it tells the optimiser."""

from types import SimpleNamespace

import pytest
import torch
from binarised_data import write_split
from builders import build_lm, build_model, build_tiny_lm, make_dictionary
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks.language_modeling import LanguageModelingTask
from stateful_training import Training, random_tokens

from fairseq_plugins.data.streams import TokenStream
from fairseq_plugins.tasks.stateful_lm import StatefulLanguageModelingConfig, StatefulLanguageModelingTask


@pytest.fixture
def training():
    return Training(build_tiny_lm("tied").train())


def test_accumulated_windows_carry_the_state(training):
    """The gradient of two windows is the gradient of their sum with a detached state between them."""
    first, second = next(training.windows), next(training.windows)
    reference = build_tiny_lm("tied").train()
    gradients, _ = training.update([first, second])
    total = 0
    for sample in (first, second):
        total = total + reference(**sample["net_input"], target=sample["target"])[0].sum()
    (total / (first["ntokens"] + second["ntokens"])).backward()
    for gradient, parameter in zip(gradients, reference.parameters()):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("num_before, num_windows", [(1, 1), (1, 4), (3, 1)])
def test_a_repeated_update_starts_from_the_same_state(training, num_before, num_windows):
    """As under ``--amp`` after an overflow, also where the update before it had fewer or more windows."""
    training.update([next(training.windows) for _ in range(num_before)])
    samples = [next(training.windows) for _ in range(num_windows)]
    losses = []
    for _ in range(3):
        training.optimizer.zero_grad()
        losses.append([training.accumulate(sample)[0].item() for sample in samples])
    assert losses[0] == losses[1] == losses[2]


def losses_of(training, *, splits):
    """Losses of an epoch; after every update the splits are validated."""
    losses, validations = [], []
    for sample in training.windows:
        training.optimizer.zero_grad()
        losses.append(training.accumulate(sample)[0].item())
        validations.append([training.validate(split, seed=seed) for seed, split in enumerate(splits)])
    return losses, validations


def test_batches_by_tokens_are_refused_in_training(training):
    """fairseq's ``fairseq-eval-lm`` names a number of them always."""
    scored, trained = (TokenStream(random_tokens(90), "train", in_training=trains) for trains in (False, True))
    training.task.get_batch_iterator(scored, max_tokens=9, max_sentences=2)
    with pytest.raises(ValueError, match="--max-tokens 9: --task stateful_lm reads --batch-size rows: leave it"):
        training.task.get_batch_iterator(trained, max_tokens=9, max_sentences=2)


def test_training_and_every_validation_subset_have_states_of_their_own():
    """Validating inside an epoch, also several subsets by turns, changes no loss."""

    def train(*splits):
        return losses_of(Training(build_tiny_lm("tied").train()), splits=splits)

    undisturbed, _ = train()
    disturbed, validations = train("valid", "valid1")
    assert disturbed == undisturbed and len(undisturbed) > 5
    assert len(validations[0][0]) == 2, "the state must be carried inside a validation for the test to mean anything"
    assert validations[0][0] != validations[0][1]
    assert all(validation == validations[0] for validation in validations)


def test_a_subset_is_scored_as_one_stream(training):
    """The sum of the losses of its windows is the loss of one long window."""
    losses = training.validate("valid")
    training.task.args.tokens_per_sample = 100
    (loss,) = training.validate("valid")
    assert sum(losses) == pytest.approx(loss, rel=1e-5)


def test_training_reads_the_parts_of_a_split_one_after_the_other(tmp_path):
    task = Training(build_tiny_lm("tied")).task
    task.args.data = str(tmp_path)
    lines = [[4, 5, 6, 2], [7, 8, 2], [9, 2]]
    for part, line in zip(("train", "train1", "train3"), lines):
        write_split(tmp_path, part, [line], vocab_size=23)
    for combine, expected in ((True, lines[0] + lines[1]), (False, lines[0])):
        task.load_dataset("train", combine=combine)
        assert task.datasets["train"].tokens.tolist() == expected
        assert task.datasets["train"].in_training == combine


def test_parts_of_a_validation_split_are_scored_as_one(tmp_path):
    task = Training(build_tiny_lm("tied")).task
    task.args.data = str(tmp_path)
    for part, line in (("valid", [4, 5, 2]), ("valid1", [7, 2])):
        write_split(tmp_path, part, [line], vocab_size=23)
    task.load_dataset("valid", combine=True)
    assert task.datasets["valid"].tokens.tolist() == [4, 5, 2, 7, 2] and task.datasets["valid"].in_training is False


def test_sentences_to_go_on_from_are_refused(training):
    told = "not separate prompts: use --task language_modeling, .*lm generate"
    with pytest.raises(ValueError, match=told):
        training.task.build_dataset_for_inference([torch.tensor([4, 5])], [2])
    windows = training.task.eval_lm_dataloader(TokenStream(random_tokens(90), "test"))
    generator = training.task.build_generator([training.model], SimpleNamespace(beam=2))
    with pytest.raises(ValueError, match=told):
        training.task.inference_step(generator, [training.model], next(iter(windows)))


@pytest.mark.parametrize(
    "flags, told",
    [
        (dict(data="a:b"), "^a:b: --task stateful_lm reads one directory, not shards joined by colons"),
        (dict(valid_subset="valid,train"), "--valid-subset valid,train holds the training split"),
        (dict(row_groups=0), "--row-groups 0: give at least 1"),
        (dict(max_window=30), "--max-window 30 limits random windows: add --window-lengths random"),
    ],
)
def test_flags_that_cannot_be_are_refused(flags, told):
    config = StatefulLanguageModelingConfig(**{"data": "x", "train_subset": "train", "valid_subset": "valid", **flags})
    with pytest.raises(ValueError, match=told):
        StatefulLanguageModelingTask.setup_task(config)


def windows_of(task, split, *, in_training=True, shard_id=0, num_shards=1):
    stream = TokenStream(random_tokens(400), split, in_training=in_training)
    iterator = task.get_batch_iterator(stream, max_sentences=2, num_shards=num_shards, shard_id=shard_id)
    return [window for (window,) in iterator.frozen_batches]


@pytest.mark.parametrize("window_lengths", ["fixed", "random"])
def test_rows_of_the_training_text_alone_are_rotated(window_lengths):
    task = Training(build_tiny_lm("tied"), row_offsets="random", window_lengths=window_lengths).task
    plain = Training(build_tiny_lm("tied"), window_lengths=window_lengths).task
    rotated = windows_of(task, "train")
    assert len({window.row_offsets for window in rotated}) == 1 and any(rotated[0].row_offsets)
    assert [(x.start, x.length) for x in rotated] == [(x.start, x.length) for x in windows_of(plain, "train")]
    for split in ("train", "valid", "test"):  # fairseq-validate may score the training text
        assert windows_of(task, split, in_training=False) == windows_of(plain, split, in_training=False)
    scored, expected = (one.eval_lm_dataloader(TokenStream(random_tokens(90), "train")) for one in (task, plain))
    assert all(torch.equal(x["target"], y["target"]) for x, y in zip(scored, expected, strict=True))


@pytest.mark.parametrize(
    "asked, told",
    [
        (dict(num_shards=2), "one stream, not in 2 shards: leave out --num-shards, or give --distributed-world-size 1"),
        (dict(context_window=5), "--context-window 5: --task stateful_lm carries its state .* leave it out"),
    ],
)
def test_what_fairseqs_evaluation_would_cut_is_refused(asked, told):
    task = Training(build_tiny_lm("tied")).task
    with pytest.raises(ValueError, match=told):
        task.eval_lm_dataloader(TokenStream(random_tokens(90), "test"), **asked)


def test_all_processes_know_the_offsets_of_all_rows():
    task = Training(build_tiny_lm("tied"), row_offsets="random").task
    first, second = (windows_of(task, "train", num_shards=2, shard_id=shard) for shard in range(2))
    assert first == second and len(first[0].row_offsets) == 4


def record(training, loss, *, subsets=1):
    training.task.begin_valid_epoch(1, training.model)
    for i in range(subsets):
        meters = {"loss": SimpleNamespace(avg=torch.tensor(loss + i))}
        training.task.post_validate(training.model, {}, meters)
    return training.optimizer.param_groups[0]["validation_losses"]


def test_only_validations_at_the_end_of_an_epoch_reach_the_optimizer(training):
    training.update([next(training.windows)])
    assert record(training, 1.0) == []
    for sample in training.windows:
        training.update([sample])
    assert record(training, 2.0, subsets=2) == [2.0]


def test_an_optimizer_that_does_not_follow_validation_is_left_alone(training):
    training.optimizer = SimpleNamespace(backward=torch.Tensor.backward)
    for sample in training.windows:
        training.accumulate(sample)
    training.task.begin_valid_epoch(1, training.model)
    training.task.post_validate(training.model, {}, {"loss": SimpleNamespace(avg=1.0)})


@pytest.mark.parametrize("then", ["validated", "saved"])
def test_a_skipped_update_leaves_the_average_to_validation_and_checkpoints(then, training):
    training.optimizer._optimizer.start_averaging()
    for _ in range(3):
        training.update([next(training.windows)])
    average = [parameter.detach().clone() for parameter in training.model.parameters()]
    training.optimizer.zero_grad()
    training.accumulate(next(training.windows))
    assert not all(torch.equal(a, b) for a, b in zip(average, training.model.parameters()))
    if then == "validated":
        training.task.begin_valid_epoch(1, training.model)
    else:
        training.task.get_checkpoint_dict()
    assert all(torch.equal(a, b) for a, b in zip(average, training.model.parameters()))


def test_each_split_is_described_once(training, caplog):
    with caplog.at_level("INFO"):
        for split in ("valid", "valid", "valid1"):
            training.validate(split)
    assert [message.partition(":")[0] for message in caplog.messages] == ["valid", "valid1"]


@pytest.mark.parametrize("arch", ["lstm_encdec_doc", "transformer_doc"])
def test_models_of_pairs_are_refused_by_fairseqs_task_of_one_text(arch):
    dictionary = make_dictionary(20)
    task = LanguageModelingTask(SimpleNamespace(), dictionary, dictionary, targets=["future"])
    model = ARCH_MODEL_REGISTRY[arch]
    with pytest.raises(ValueError, match="this --arch reads sentence pairs, and the task one text: give --task transl"):
        model.build_model(SimpleNamespace(arch=arch), task)


def test_training_with_a_column_norm_needs_this_task(training):
    flags, tokens = dict(column_norm=1.0, embed_dim=8, hidden_sizes="8"), torch.ones(1, 2, dtype=torch.int64)
    model = build_lm("lstm_lm_awd", 9, **flags).train()
    told = "^--column-norm needs --task stateful_lm, which applies it after every update$"
    with pytest.raises(ValueError, match=told):
        model(tokens)
    model.eval()(tokens)
    build_model("lstm_lm_awd", training.task, **flags).train()(tokens)


@pytest.mark.parametrize("arch", ["lstm_encdec_doc", "transformer_doc", "transformer"])
def test_models_of_pairs_are_refused(arch, tmp_path):
    write_split(tmp_path, "train", [[4, 5, 6]])
    make_dictionary(20).save(str(tmp_path / "dict.txt"))
    config = StatefulLanguageModelingConfig(data=str(tmp_path), train_subset="train", valid_subset="valid")
    task = StatefulLanguageModelingTask.setup_task(config)
    with pytest.raises(ValueError, match=f"^--arch {arch} reads sentence pairs, .* one text: give --task translation$"):
        task.build_model(SimpleNamespace(arch=arch))
