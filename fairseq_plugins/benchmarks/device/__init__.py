"""Report on one device: checks against the CPU and measurements of speed, in steps that can be resumed."""
