"""What trained models are compared by."""
