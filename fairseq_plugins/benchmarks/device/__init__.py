"""What one device can do: checked against the CPU, and measured, in steps that are resumed."""
