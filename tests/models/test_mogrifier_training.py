"""A training of the preset of Melis et al. 2020, small, against the formulas of their program."""

import operator
import sys
from functools import partial

import plain_formulas
import torch
from fairseq import utils
from fairseq_cli.train import cli_main
from forks import in_fork
from paths import PLUGINS, SMALL_MODELS

from fairseq_plugins.criterions.regularized_cross_entropy import RegularizedCrossEntropy
from fairseq_plugins.models.decoder import StreamDecoder
from fairseq_plugins.models.presets import LANGUAGE_MODELS, as_arguments
from fairseq_plugins.modules import layers as layers_module
from fairseq_plugins.optim.adaptive import L2Adam

SMALL = {"embed-dim": 8, "hidden-sizes": "8 8", "mogrifier-rank": 3, "dropout-carried-state": 0.4}
ROWS, STEPS, CLIP, NUM_UPDATES = 4, 10, 1.0, 4
LR, BETA, EPS, L2 = 0.0023, 0.999, 1e-8, 2.52e-4


class Reference:
    """The published program's update by a window, in plain formulas, with weights, moments and state of its own."""

    def __init__(self, weights):
        self.weights = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
        self.moments = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        self.state = [(torch.zeros(ROWS, 8), torch.zeros(ROWS, 8))] * 2
        self.num_updates = 0

    def layer(self, n, x, state, mask):
        own = partial(
            operator.getitem, {name.removeprefix(f"stack.layers.{n}."): w for name, w in self.weights.items()}
        )
        factors = [f"rounds.{i}.factors" for i in range(5)]
        rounds = [(own(f"{f}.1.weight") @ own(f"{f}.0.weight"), own(f"{f}.1.bias")) for f in factors]
        matrices = own("input.weight"), own("recurrent.weight"), own("input.bias")
        return plain_formulas.mogrifier(x, *state, rounds, *matrices, mask=mask)

    def loss(self, tokens, target, masks, dropped):
        """Mean over the rows of the sum over the steps, and the L2 penalty."""
        into, state_1, between, state_2, out = masks
        states = [tuple(part.masked_fill(dropped.unsqueeze(1), 0) for part in state) for state in self.state]
        embedding, bias = self.weights["embedding.weight"], self.weights["output.projection.bias"]
        first, *after_1 = self.layer(0, embedding[tokens] * into, states[0], state_1)
        second, *after_2 = self.layer(1, first * between, states[1], state_2)
        self.state = [tuple(part.detach() for part in after) for after in (after_1, after_2)]
        log_probs = torch.log(plain_formulas.softmax(((first + second) * out) @ embedding.T + bias))
        nll = -log_probs.gather(-1, target.unsqueeze(-1)).sum() / ROWS
        return nll, nll + L2 * sum((w**2).sum() for w in self.weights.values()) / 2

    def gradients(self, loss):
        """Clipped together, the penalty's with the loss's."""
        gradients = torch.autograd.grad(loss, list(self.weights.values()))
        norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
        return dict(zip(self.weights, [gradient * min(1.0, CLIP / norm.item()) for gradient in gradients])), norm

    def update(self, gradients):
        """RMSProp that corrects the start of its second moment and adds epsilon before that."""
        self.num_updates += 1
        correction = (1 - BETA**self.num_updates) ** 0.5
        for name, weight in self.weights.items():
            self.moments[name] = BETA * self.moments[name] + (1 - BETA) * gradients[name] ** 2
            with torch.no_grad():
                weight -= LR * correction * gradients[name] / (self.moments[name].sqrt() + EPS)


def test_windows_of_a_training_are_those_of_the_programs_formulas(tmp_path):
    """Loss, gradients and update of windows that carry their state, with the masks that were drawn."""
    drawn, dropped, windows = [], [], []
    draw, drop = layers_module.dropout_mask, StreamDecoder._drop_rows
    forward, step = RegularizedCrossEntropy.forward, L2Adam.step

    def spy_on_masks(*args, **options):
        drawn.append(draw(*args, **options))
        return drawn[-1]

    def spy_on_states(self, state):
        kept = drop(self, state)
        dropped.append((kept["layers"][0]["h"] == 0).all(dim=1))
        return kept

    def check_window(self, model, sample, *args, **options):
        weights = dict(model.decoder.named_parameters())
        if not windows:
            windows.append(Reference({name: weight.detach() for name, weight in weights.items()}))
        drawn.clear()
        result = forward(self, model, sample, *args, **options)
        (reference,) = windows
        torch.testing.assert_close(dict(weights), reference.weights, rtol=1e-9, atol=1e-11)
        rows = torch.zeros(ROWS, dtype=torch.bool) if reference.num_updates == 0 else dropped[-1]
        nll, reference.window = reference.loss(sample["net_input"]["src_tokens"], sample["target"], drawn, rows)
        torch.testing.assert_close(result[0].detach() / ROWS, reference.window.detach(), rtol=1e-9, atol=0)
        torch.testing.assert_close(result[2]["loss"] / ROWS, nll.detach(), rtol=1e-9, atol=0)
        return result

    def check_step(self, *args, **options):
        (reference,) = windows
        expected, norm = reference.gradients(reference.window)
        assert norm > CLIP
        for weight, gradient in zip(self.params, expected.values()):
            torch.testing.assert_close(weight.grad, gradient, rtol=1e-6, atol=1e-9)  # the norm is taken with 1e-6 more
            gradient.copy_(weight.grad)
        reference.update(expected)
        return step(self, *args, **options)

    def work():
        torch.set_default_dtype(torch.float64)
        utils.clip_grad_norm_ = lambda weights, max_norm, _: torch.nn.utils.clip_grad_norm_(weights, max_norm)
        layers_module.dropout_mask, StreamDecoder._drop_rows = spy_on_masks, spy_on_states
        RegularizedCrossEntropy.forward, L2Adam.step = check_window, check_step
        training = {**LANGUAGE_MODELS["mogrifier_lm_ptb"].training, **SMALL, "arch": "mogrifier_lm_ptb"}
        training.update({"batch-size": ROWS, "tokens-per-sample": STEPS, "clip-norm": CLIP, "max-update": NUM_UPDATES})
        sys.argv = [
            "fairseq-train",
            str(SMALL_MODELS / "data/lm"),
            "--user-dir",
            str(PLUGINS),
            "--cpu",
        ]
        sys.argv += [*as_arguments(training), "--no-save", "--disable-validation", "--num-workers", "0"]
        sys.argv += ["--save-dir", str(tmp_path / "trained")]
        cli_main()
        (reference,) = windows
        assert reference.num_updates == NUM_UPDATES and any(rows.any() for rows in dropped)

    ended = in_fork(work, folder=tmp_path)
    assert ended.status == 0, ended.err[-3000:]
