"""The people and programs that ask the HTTP port, and what they may do."""
