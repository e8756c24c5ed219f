"""Functions for compiled modules only."""
