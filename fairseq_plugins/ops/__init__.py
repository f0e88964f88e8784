"""Functions of tensors, without parameters."""
