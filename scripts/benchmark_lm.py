"""Same as ``python -m fairseq_plugins.cli.benchmark_lm``."""

from fairseq_plugins.cli.benchmark_lm import BenchmarkLanguageModels

if __name__ == "__main__":
    BenchmarkLanguageModels().main()
