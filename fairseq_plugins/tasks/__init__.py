"""Ways to read data and to train on it."""
