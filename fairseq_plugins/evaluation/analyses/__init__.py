"""What is inside trained models."""
