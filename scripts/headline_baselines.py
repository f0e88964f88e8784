"""Same as ``python -m fairseq_plugins.cli.headline_baselines``."""

from fairseq_plugins.cli.headline_baselines import HeadlineBaselines

if __name__ == "__main__":
    HeadlineBaselines().main()
