"""Who may connect: passwords, SCRAM, programs that decide, and guesses that are slowed down.

Start with `authentication`.
"""
