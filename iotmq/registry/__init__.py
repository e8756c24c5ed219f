"""Route tables and leases: which broker holds which topic."""
