"""Plain text: its tokens and subwords; lines that language models score or write."""
