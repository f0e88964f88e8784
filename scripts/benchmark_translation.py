"""Same as ``python -m fairseq_plugins.cli.benchmark_translation``."""

from fairseq_plugins.cli.benchmark_translation import BenchmarkTranslation

if __name__ == "__main__":
    BenchmarkTranslation().main()
