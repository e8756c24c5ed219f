"""Messages that count only once their sender says so.

Start with `transactions`, which knows the pending ones; `transaction_checks` asks senders that say nothing.
"""
