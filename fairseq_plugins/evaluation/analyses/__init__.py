"""What is inside trained language models."""
