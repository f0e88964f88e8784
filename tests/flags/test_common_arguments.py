"""Flags that several commands share."""

import argparse

import pytest
import torch

from fairseq_plugins.flags.common_arguments import add_cpu, choose_device


@pytest.mark.parametrize(
    "has_gpu, typed, device",
    [(True, [], "cuda"), (True, ["--cpu"], "cpu"), (False, [], "cpu"), (False, ["--cpu"], "cpu")],
)
def test_the_gpu_is_taken_where_there_is_one_unless_the_cpu_is_asked_for(has_gpu, typed, device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    parser = argparse.ArgumentParser()
    add_cpu(parser)
    assert choose_device(parser.parse_args(typed)) == device
