"""Members of a group: who is there (`membership`), who has which queues (`rebalance`), locks of queues."""
