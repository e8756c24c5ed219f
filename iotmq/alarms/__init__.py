"""Alarms: conditions over numbers, what is told of them to whom, and what operators say to them."""
