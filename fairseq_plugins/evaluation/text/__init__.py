"""Plain text that is scored or written by language models."""
