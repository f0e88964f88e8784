"""Commands, one a module: ``fairseq-plugins`` lists them."""
