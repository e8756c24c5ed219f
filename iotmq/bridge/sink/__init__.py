"""Writing with ``format("iotmq")``: rows of Spark to broker topics and devices.

Start with `writers`, which Spark calls. `task` writes one Spark partition: `rows` has the columns, `queues`
where they go, and `link` sends what the core has encoded (`message/records/row_elements`).
"""
