"""A message that is delivered only when a row is in the database.

python examples/transaction.py 127.0.0.1:9876
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys

import iotmq
from iotmq.client import Message, ReceivedMessage, TransactionState

database = sqlite3.connect("payments.sqlite")
database.execute("CREATE TABLE IF NOT EXISTS payments (message_id TEXT PRIMARY KEY)")


def check(message: ReceivedMessage) -> TransactionState:
    """Answer the broker, which asks about transactions that were left open, also after a restart."""
    found = database.execute("SELECT 1 FROM payments WHERE message_id = ?", (message.message_id,)).fetchone()
    return TransactionState.COMMIT if found else TransactionState.ROLLBACK


def pay(message_id: str) -> TransactionState:
    """Do the local part between prepare and commit."""
    with database:
        database.execute("INSERT INTO payments VALUES (?)", (message_id,))
    return TransactionState.COMMIT


async def main(registry: str) -> None:
    """Send one receipt together with its payment."""
    async with iotmq.connect(f"iotmq://{registry}") as client:
        producer = await client.transaction_producer("payments", check, topics=("receipts",))
        done = await producer.send_in_transaction(Message("receipts", b"paid: 7 EUR"), pay)
        print(done.state.name)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
