"""Commands, one a module: ``python -m fairseq_plugins.cli`` lists them."""
