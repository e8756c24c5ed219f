"""Decide who may connect: passwords, SCRAM, programs that decide, and slowing down guesses.

Start with `authentication`.
"""
