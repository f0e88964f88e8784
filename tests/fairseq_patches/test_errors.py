"""fairseq's commands end with one line after a user error, a divergence, Ctrl-C or the end of who reads their log."""

import inspect
import logging
import math
import os
import shlex
import shutil
import subprocess
import sys
from argparse import Namespace
from functools import partial
from inspect import unwrap
from types import SimpleNamespace
from unittest.mock import Mock

import fairseq_cli.train
import pytest
import torch
from binarised_data import copy_data
from builders import SOURCE_SIZE, VOCAB_SIZE, build_tiny_encdec, make_task
from fairseq import optim, scoring, utils
from fairseq import trainer as fairseq_trainer
from fairseq.data.encoders.subword_nmt_bpe import SubwordNMTBPEConfig
from fairseq.dataclass.configs import FairseqConfig
from fairseq.distributed import utils as distributed_utils
from fairseq.nan_detector import NanDetector
from fairseq.tasks import FairseqTask
from fairseq.trainer import Trainer
from forks import in_fork
from hydra.errors import ConfigCompositionException
from omegaconf import OmegaConf
from paths import SMALL_MODELS
from torch import nn
from warm_process import PYTHON

from fairseq_plugins.fairseq_patches import errors
from fairseq_plugins.fairseq_patches.errors import (
    _check_loss,
    _check_valid_loss,
    _load_and_watch_log,
    _parse_with_one_line_errors,
    show_error,
)
from fairseq_plugins.options import UserError
from fairseq_plugins.processes import COMMAND_VARIABLE


def install_hook():
    """Do what fairseq's programs do first."""
    _parse_with_one_line_errors(lambda: None)


def status_after(raised, monkeypatch, install=install_hook):
    """Run a command of fairseq to this error, show that as Python does at the end of a process, return the status."""
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setattr(sys, "argv", ["bin/fairseq-train"])
    install()
    with pytest.raises(Exception) as error:
        distributed_utils.call_main(OmegaConf.structured(FairseqConfig), Mock(side_effect=raised))
    try:
        sys.excepthook(error.type, error.value, error.tb)
    except SystemExit as end:
        return end.code
    return 1


@pytest.mark.parametrize(
    "error, message",
    [
        (UserError("--width -1: give a value above 0"), "--width -1: give a value above 0"),
        (FileNotFoundError(2, "No such file or directory", "no/such"), "no/such: No such file or directory"),
        (OSError("Model file not found: no/such.pt"), "Model file not found: no/such.pt"),  # as of fairseq
        (
            UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
            "the text is not UTF-8 ('utf-8' codec can't decode byte 0xff in position 0: invalid start byte): "
            "convert it",
        ),
    ],
)
def test_a_user_error_is_one_line(error, message, monkeypatch, capsys):
    assert status_after(error, monkeypatch) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"error: {message}"


def test_other_errors_keep_their_traceback_and_those_of_fairseq_alone_all(monkeypatch, capsys):
    for install, kind in ((install_hook, ValueError), (lambda: None, UserError)):
        assert status_after(kind("what is wrong"), monkeypatch, install) == 1
        message = capsys.readouterr().err
        assert message.startswith("Traceback") and message.endswith("Error: what is wrong\n")


def allow_no_length(cfg):
    task, model = make_task(VOCAB_SIZE, SOURCE_SIZE), build_tiny_encdec("doc").eval()
    generator = FairseqTask.build_generator(task, [model], SimpleNamespace(max_len_a=0, max_len_b=0))
    generator.generate([model], {"net_input": {"src_tokens": torch.tensor([[5, 2]]), "src_lengths": torch.tensor([2])}})


def sample_without_flag(cfg):
    unwrap(FairseqTask.build_generator)(Mock(), [], SimpleNamespace(sampling_topk=5))


@pytest.mark.parametrize(
    "error, message",
    [
        (lambda cfg: fairseq_cli.train.main(cfg), "Must specify batch size either with --max-tokens or --batch-size"),
        (sample_without_flag, "--sampling-topk requires --sampling"),
        (allow_no_length, "min_len cannot be larger than max_len, please adjust these!"),
        (lambda cfg: optim.build_optimizer(Namespace(optimizer=None), []), "optimizer is required!"),
        (lambda cfg: scoring.build_scorer("wer", None), "Please install editdistance to use WER scorer"),
        (lambda cfg: OmegaConf.structured(SubwordNMTBPEConfig).bpe_codes, "--bpe-codes is missing: give it"),
        (
            ConfigCompositionException("Error merging override tokenizer.source_lang=null"),
            "--tokenizer needs --source-lang: give it",
        ),
    ],
)
def test_a_flag_or_package_that_fairseq_asks_for_is_one_line(error, message, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "editdistance", None)
    assert status_after(error, monkeypatch) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"error: {message}"
    for not_of_fairseq in (ValueError("--beam 3"), AssertionError(message)):
        assert status_after(not_of_fairseq, monkeypatch) == 1


def test_a_reader_that_has_gone_ends_it_quietly(monkeypatch, capfd):
    monkeypatch.setattr(os, "dup2", lambda *files: None)
    with pytest.raises(SystemExit) as end:
        show_error(BrokenPipeError, BrokenPipeError(32, "Broken pipe"), None)
    assert end.value.code == 141 and capfd.readouterr().err == ""


def test_an_interrupt_of_a_command_that_saves_nothing_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bin/fairseq-generate"])
    with pytest.raises(SystemExit) as end:
        show_error(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert end.value.code == 130 and capsys.readouterr().err == "fairseq-generate: interrupted\n"


@pytest.mark.parametrize(
    "program, expected",
    [
        ("bin/fairseq-generate", show_error),
        ("site-packages/fairseq_cli/generate.py", show_error),
        ("mine/generate.py", sys.__excepthook__),
        ("mine/fairseq_cli.py", sys.__excepthook__),
    ],
)
def test_a_program_of_ones_own_keeps_its_tracebacks(program, expected, monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setattr(sys, "argv", [program])
    _parse_with_one_line_errors(lambda: None)
    assert sys.excepthook is expected


PAIRS = SMALL_MODELS / "data/translation"


@pytest.mark.slow
def test_a_first_update_that_is_refused_while_batches_are_made(tmp_path):
    data = copy_data(PAIRS, tmp_path / "data")
    for path in data.glob("train.*"):  # many sentences: two data sets, of which the first is read 1500 times
        shutil.copy(path, data / path.name.replace("train", "train1"))
    flags = ["--user-dir", "fairseq_plugins", "--task", "translation", "--arch", "lstm_encdec", "--embed-dim", "8"]
    flags += ["--hidden-sizes", "8", "--criterion", "regularized_cross_entropy", "--balance", "1", "--optimizer", "sgd"]
    flags += ["--cpu", "--num-workers", "0", "--batch-size", "4000", "--upsample-primary", "1500", "--no-save"]
    flags += ["--save-dir", str(tmp_path)]  # fairseq writes crash.pt there nevertheless
    # a process of its own: what dies is the interpreter, at its end
    words = [PYTHON, "-m", "fairseq_cli.train", str(data), *flags]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: --balance needs a mixture")


def make_trainer(gradients, *, fp16=False, clip_norm=0.25):
    """The attributes of a trainer that ``Trainer.clip_grad_norm`` reads; a weight for each gradient."""
    model = nn.ParameterDict({f"weight{place}": nn.Parameter(torch.ones(2)) for place in range(len(gradients))})
    for weight, gradient in zip(model.values(), gradients):
        weight.grad = gradient.clone()
    settings = SimpleNamespace(lr=[0.5], momentum=0.0, weight_decay=0.0)
    return SimpleNamespace(
        cfg=SimpleNamespace(
            common=SimpleNamespace(fp16=fp16, amp=False), optimization=SimpleNamespace(clip_norm=clip_norm)
        ),
        is_fsdp=False,
        device=torch.device("cpu"),
        optimizer=optim.OPTIMIZER_REGISTRY["sgd"](settings, list(model.parameters())),
        get_model=lambda: model,
        get_lr=lambda: 0.5,
        get_num_updates=lambda: 6,
        get_criterion=lambda: SimpleNamespace(penalty_factors={"--balance": 2.0}),
    )


ONES, NAN, INFINITE = (torch.tensor([1.0, value]) for value in (1.0, float("nan"), float("inf")))
SPARSE = torch.sparse_coo_tensor([[1]], [float("nan")], (2,))


@pytest.mark.parametrize("gradient", [NAN, INFINITE, SPARSE, torch.tensor([1.0, 3e38])])
@pytest.mark.parametrize(
    "clip_norm, clip", [(0.25, r", --clip-norm \(now 0.25\), {}"), (0, ", {}, or give --clip-norm")]
)
def test_flags_are_named_where_gradients_are_not_finite(gradient, clip_norm, clip):
    trainer = make_trainer([ONES, gradient], clip_norm=clip_norm)
    lower = rf"lower --lr \(now 0.5\){clip.format(r'--balance .now 2.')}"
    told = f"^the run diverged at update 7: the gradients' norm is inf or NaN; {lower}$"
    with pytest.raises(FloatingPointError, match=told):
        Trainer.clip_grad_norm(trainer, clip_norm)


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
@pytest.mark.parametrize("check, fp16", [(_check_loss, False), (_check_valid_loss, False), (_check_valid_loss, True)])
def test_a_loss_without_a_number_ends_the_training(loss, check, fp16):
    logged = [{"loss": 3.5}, {}, {"loss": loss}]
    step = partial(check, lambda trainer: logged.pop(0))
    trainer = make_trainer([ONES, ONES], fp16=fp16)
    assert step(trainer) == {"loss": 3.5} and step(trainer) == {}
    with pytest.raises(UserError, match="^the run diverged at update 6: the loss.* is inf or NaN; lower --lr"):
        step(trainer)


def test_an_update_that_logs_nothing_or_whose_loss_is_scaled_goes_on():
    assert _check_loss(lambda trainer: None, make_trainer([ONES])) is None
    assert _check_loss(lambda trainer: {"loss": math.inf}, make_trainer([ONES], fp16=True)) == {"loss": math.inf}


def test_what_is_finite_is_clipped_as_by_fairseq(monkeypatch):
    first, second = (make_trainer([ONES, 3 * ONES]) for _ in range(2))
    norm = Trainer.clip_grad_norm(first, 0.25)
    monkeypatch.setattr(utils, "multi_tensor_l2norm_available", False)
    assert torch.equal(norm, Trainer.clip_grad_norm.__wrapped__(second, 0.25))
    for one, other in zip(first.get_model().values(), second.get_model().values()):
        assert torch.equal(one.grad, other.grad) and one.grad.norm() < 0.25


def test_the_norm_is_formed_where_the_gradients_are_and_scaled_ones_are_left_to_fairseq(monkeypatch):
    """fairseq takes it to the GPU wherever there is one."""
    assert Trainer.clip_grad_norm(make_trainer([ONES, INFINITE], fp16=True), 0) == float("inf")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    norm = Trainer.clip_grad_norm(make_trainer([ONES, 3 * ONES]), 0.25)
    assert norm.device.type == "cpu" and norm == pytest.approx(20**0.5)


def test_the_error_of_fairseq_is_told_in_place_of_a_search():
    with pytest.raises(ValueError, match="^Fatal error: inconsistent$"):
        try:
            raise FloatingPointError("Fatal error: inconsistent\nrank 0 = 1")
        except FloatingPointError:
            fairseq_trainer.NanDetector(nn.Linear(2, 2))


class Typed(nn.Module):
    """Returns an object that is no tensor, like the stacks of this package."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self):
        return SimpleNamespace(output=self.weight)


def test_fairseq_alone_ends_in_its_hooks():
    trainer = make_trainer([ONES, NAN])
    Trainer.clip_grad_norm.__wrapped__(trainer, 0.25)
    assert trainer.get_model()["weight0"].grad.isnan().all()
    with pytest.raises(TypeError, match="not subscriptable"), NanDetector(Typed()) as detector:
        assert detector.bhooks
        detector.named_parameters = []
        model = Typed()
        model.register_backward_hook(detector.bhook_fn)
        model()


def log_to_nobody(load_checkpoint):
    """Log like a training that has started, after its reader has gone."""
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, force=True)
    load_checkpoint(lambda: None)
    reader, writer = os.pipe()
    os.dup2(writer, 1)
    os.close(reader)
    os.close(writer)
    logging.info("an update")
    os.write(2, b"trained on")
    os._exit(0)


def test_a_training_ends_as_other_programs_do_and_fairseq_alone_trains_on_without_a_log(tmp_path, monkeypatch):
    ended = in_fork(lambda: log_to_nobody(_load_and_watch_log), folder=tmp_path)
    assert ended.status == 141 and "trained on" not in ended.err
    monkeypatch.setattr(logging.StreamHandler, "handleError", inspect.unwrap(logging.StreamHandler.handleError))
    ended = in_fork(lambda: log_to_nobody(lambda load: load()), folder=tmp_path)
    assert ended.status == 0 and "trained on" in ended.err


def test_errors_of_other_kinds_are_told_as_before(tmp_path):
    def log_wrongly():
        logging.basicConfig(stream=sys.stdout, level=logging.INFO, force=True)
        _load_and_watch_log(lambda: None)
        logging.info("%d", "no number")

    ended = in_fork(log_wrongly, folder=tmp_path)
    assert ended.status == 0 and "Logging error" in ended.err


# Ctrl-C


interrupt = Mock(side_effect=KeyboardInterrupt)
LAST, BEST = "checkpoint_last.pt", "checkpoint_best.pt"
SAVED = "fairseq-train: interrupted; {saved} is from update 1,234"
NONE_SAVED = "fairseq-train: interrupted before the first checkpoint (more of them: --save-interval-updates N)"
TRAIN, STARTED = "bin/fairseq-train d", "a.pt --reset-optimizer --lr 1"
OURS = "fairseq-plugins train ptb doc d"


@pytest.mark.parametrize(
    "program, typed, saved, no_save, lines",
    [
        ("bin/fairseq-generate d", None, [LAST, BEST], False, ["fairseq-generate: interrupted"]),
        (TRAIN, None, [LAST, BEST], True, ["fairseq-train: interrupted"]),
        ("bin/fairseq-train 'my data'", None, [], False, [NONE_SAVED, "start again: fairseq-train 'my data'"]),
        ("fairseq_cli/train.py d --lr=1", None, [LAST, BEST], False, [SAVED, "resume: fairseq-train d --lr=1"]),
        (TRAIN, None, [BEST], False, [SAVED, "resume: fairseq-train d"]),
        (f"{TRAIN} --restore-file {STARTED}", None, [LAST, BEST], False, [SAVED, "resume: fairseq-train d --lr 1"]),
        (f"{TRAIN} --restore-file={STARTED}", None, [LAST, BEST], False, [SAVED, "resume: fairseq-train d --lr 1"]),
        (TRAIN, f"{OURS} --reset-meters", [LAST], False, [SAVED, f"resume: {OURS}"]),
    ],
)
def test_an_interrupt_ends_in_two_lines_with_the_command_that_resumes(
    program, typed, saved, no_save, lines, monkeypatch, tmp_path, capsys
):
    child = Mock()
    for name in saved:
        torch.save({"optimizer_history": [{"num_updates": 1234}]}, tmp_path / name)
    monkeypatch.setattr(sys, "argv", shlex.split(program))
    monkeypatch.setattr(errors.multiprocessing, "active_children", lambda: [child])
    monkeypatch.delenv(COMMAND_VARIABLE, raising=False)
    if typed:
        monkeypatch.setenv(COMMAND_VARIABLE, typed)
    cfg = OmegaConf.structured(FairseqConfig)
    cfg.checkpoint.save_dir, cfg.checkpoint.no_save = str(tmp_path), no_save
    cfg.distributed_training.distributed_world_size = 1
    with pytest.raises(SystemExit) as end:
        distributed_utils.call_main(cfg, interrupt)
    assert end.value.code == 130 and child.terminate.called
    assert capsys.readouterr().err.splitlines() == [
        line.format(saved=tmp_path / (saved or [LAST])[0]) for line in lines
    ]


def test_only_the_first_of_several_processes_prints(monkeypatch, capsys):
    monkeypatch.setattr(errors.multiprocessing, "active_children", list)  # those of other tests go on
    cfg = OmegaConf.structured(FairseqConfig)
    cfg.distributed_training.distributed_world_size, cfg.distributed_training.distributed_rank = 1, 1
    with pytest.raises(SystemExit):
        distributed_utils.call_main(cfg, interrupt)
    assert capsys.readouterr().err == ""


def test_fairseq_alone_handles_no_interrupt():
    with pytest.raises(KeyboardInterrupt):
        unwrap(distributed_utils.call_main)(OmegaConf.structured(FairseqConfig), interrupt)
