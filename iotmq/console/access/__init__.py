"""Who asks the HTTP port, and what they may do."""
