"""n-gram language models: counts, interpolated modified Kneser-Ney smoothing, ARPA files, the model."""
