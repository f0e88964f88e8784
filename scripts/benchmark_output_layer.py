"""Same as ``python -m fairseq_plugins.cli.benchmark_output_layer``."""

from fairseq_plugins.cli.benchmark_output_layer import BenchmarkOutputLayer

if __name__ == "__main__":
    BenchmarkOutputLayer().main()
