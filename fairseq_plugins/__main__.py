"""``python -m fairseq_plugins`` is the console script ``fairseq-plugins``."""

from fairseq_plugins.commands.app import main

if __name__ == "__main__":
    main()
