from iotmq.mqtt_front.permissions.rule import Rule
from iotmq.mqtt_front.permissions.topic_template import Subject, TemplateLevels

class Clause:
    rule: Rule
    levels: TemplateLevels
    is_deny: bool
    def __init__(self, rule: Rule, levels: TemplateLevels) -> None: ...

def fitting(clauses: tuple[Clause, ...], wanted: list[str], subject: Subject) -> list[Clause]: ...
