"""Same as ``python -m fairseq_plugins.cli.provenance``."""

from fairseq_plugins.cli.provenance import Provenance

if __name__ == "__main__":
    Provenance().main()
