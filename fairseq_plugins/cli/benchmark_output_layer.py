"""Time and memory of an output layer's loss: ``python -m fairseq_plugins.cli.benchmark_output_layer --help``."""

import argparse
import sys

import torch
from tqdm import tqdm

from fairseq_plugins.benchmarks.output_layer import DEFAULT_CASES, Case, as_markdown, draw, measure
from fairseq_plugins.command_line import Command, add_cpu, add_out, choose_device
from fairseq_plugins.options import check_at_least_one
from fairseq_plugins.reports.tables import Report


class BenchmarkOutputLayer(Command):
    """Measures the loss of an output layer."""

    name = "benchmark_output_layer"
    summary = "Time and memory of the loss of an output layer: fused, as published, plain."
    description = """\
Compares, forward and backward, on random inputs of each CASE = VOCABULARY,EXPERTS,WIDTH,TOKENS:

  fused      fairseq_plugins.ops.mixture_loss
  published  softmax of every expert, times the prior, summed, logarithm, by autograd, as the papers' programs do it
             (one expert: cross-entropy of all logits)
  plain      the same with the weighted sum as a matrix product, the fastest form we know without a fused loss
  floor      the three matrix products of the fused method alone, chunk by chunk, by the same kernels
  tied       one softmax over the same words for the same tokens, fused
  torch      one expert only: torch.nn.functional.linear_cross_entropy, chunked, where torch has it

With --dtype float32, where the processor has products in bfloat16, there are two more: "fused, bfloat16 chunks", as
--output-precision bfloat16 trains, and "floor, bfloat16 chunks", its products alone, with the cast of their operands.

Times are medians of repetitions that are interleaved in both orders. Memory is the peak while one method runs
once in a process of its own, less what is there before; what is left without the gradients of the inputs is given
beside it for the fused method. Writes output_layer_DEVICE_DTYPE.md, .json and .png."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "cases",
            nargs="*",
            type=Case.parse,
            metavar="CASE",
            default=[Case.parse(text) for text in DEFAULT_CASES],
            help=f"VOCABULARY,EXPERTS,WIDTH,TOKENS (default: {' '.join(DEFAULT_CASES)})",
        )
        add_cpu(parser)
        parser.add_argument(
            "--dtype",
            choices=["float32", "bfloat16", "float16"],
            default="float32",
            help="of vectors, matrices and gradients (default: %(default)s)",
        )
        parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="CPU threads (default: all)")
        parser.add_argument("--repetitions", type=int, default=9, help="timed repetitions (default: %(default)s)")
        add_out(parser, help="directory for the report", default="results/benchmarks")

    def run(self, args: argparse.Namespace) -> None:
        check_at_least_one(args.repetitions, flag="--repetitions")
        check_at_least_one(args.threads, flag="--threads")
        torch.set_num_threads(args.threads)
        device, dtype = torch.device(choose_device(args)), getattr(torch, args.dtype)
        results = [
            measure(case, device=device, dtype=dtype, num_repetitions=args.repetitions)
            for case in tqdm(args.cases, unit="case", disable=not sys.stderr.isatty())
        ]
        hardware = torch.cuda.get_device_name() if device.type == "cuda" else f"{args.threads} CPU threads"
        report = Report(
            text=f"{as_markdown(results)}\n\nForward and backward, {args.dtype} on {device.type}, {args.threads} CPU "
            f"threads, medians of {args.repetitions} interleaved repetitions; memory at the peak beyond the inputs.",
            figures={
                "device": device.type,
                "dtype": args.dtype,
                "num_threads": args.threads,
                "repetitions": args.repetitions,
                "cases": results,
            },
            command=args.command_line,
            picture=draw(results, hardware=f"{hardware}, {args.dtype}"),
        )
        print(report.write(args.out, name=f"output_layer_{device.type}_{args.dtype}"), end="")


if __name__ == "__main__":
    BenchmarkOutputLayer().main()
