"""What is done with a trained model at test time: caches, adaptation, samples of dropout masks, mixtures."""
