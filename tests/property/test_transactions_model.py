"""Transactions against a slow model: any order of ends, checks, kills between two writes, and old cursors."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from transaction_bench import COMMIT, ROLLBACK, UNKNOWN, Bench, open_bench

from iotmq.remoting.command import Command

STEPS = 80


class Expected:
    """What one transaction should be."""

    def __init__(self, prepared: Command, *, may_be_asked: bool) -> None:
        # By which its producer can name it: the answer to the half, and every question.
        self.names = [prepared]
        self.first_offset = int(prepared.ext["queueOffset"])
        self.may_be_asked = may_be_asked
        self.outcome = UNKNOWN
        # Killed between the message and its op record: to be found out when somebody looks.
        self.is_delivered = False
        self.is_looked_at = False
        # Whether this life of the broker has seen the end.
        self.is_remembered = False
        self.deliveries = 0
        self.checks = 0


class Model:
    """All transactions by key; `bench` is made to do the same."""

    def __init__(self, bench: Bench, chance: random.Random) -> None:
        self.bench = bench
        self.chance = chance
        self.all: dict[str, Expected] = {}
        self.bench.add_producer("p1")

    def open_keys(self) -> set[str]:
        return {key for key, expected in self.all.items() if expected.outcome == UNKNOWN}

    def prepare(self) -> None:
        key = f"K{len(self.all)}"
        may_be_asked = self.chance.random() < 0.8
        properties = "" if may_be_asked else "CHECK_IMMUNITY_TIME_IN_SECONDS\x01200000\x02"
        prepared = self.bench.prepare(key.encode(), key=key, properties=properties)
        assert prepared.code == 0
        self.all[key] = Expected(prepared, may_be_asked=may_be_asked)

    def end(self, *, appends: int | None = None) -> None:
        """Any end of any transaction by any of its names; only `appends` writes of it reach the log."""
        if not self.all:
            return
        expected = self.all[self.chance.choice(list(self.all))]
        name = self.chance.choice(expected.names)
        outcome = self.chance.choice((COMMIT, COMMIT, ROLLBACK, UNKNOWN))
        steps = {COMMIT: 2, ROLLBACK: 1, UNKNOWN: 0}[outcome]
        if appends is not None:
            self.bench.gate.appends_left = appends
        answer = self.bench.end(name, outcome)
        if outcome == UNKNOWN:
            assert answer.code == 0
        elif expected.outcome != UNKNOWN:
            # A commit is remembered by the message itself.
            is_known = expected.is_remembered or expected.outcome == COMMIT
            assert answer.code == (0 if expected.outcome == outcome and is_known else 1)
        elif expected.is_delivered:
            written = outcome == COMMIT and (appends is None or appends >= 1)
            assert answer.code == (0 if written else 1 if outcome == ROLLBACK else -1)
            expected.is_looked_at = True
            if written:
                expected.outcome = COMMIT
                expected.is_remembered = True
        else:
            written = steps if appends is None else min(appends, steps)
            assert answer.code == (0 if written == steps else -1)
            if outcome == COMMIT and written:
                expected.deliveries += 1
                expected.is_delivered = True
            if written == steps:
                expected.outcome = outcome
                expected.is_remembered = True

    def check(self, *, appends: int | None = None) -> None:
        by_offset = {expected.first_offset: expected for expected in self.all.values()}
        left = 1 << 60 if appends is None else appends
        if appends is not None:
            self.bench.gate.appends_left = appends
        due = []
        for pending in self.bench.transactions.pending():
            expected = by_offset[pending.first_offset]
            if not (expected.may_be_asked or expected.is_looked_at) or left == 0:
                continue
            # Either the half is written again, or the op record that is owed.
            left -= 1
            if expected.is_delivered:
                expected.outcome = COMMIT
                expected.is_remembered = True
            else:
                due.append(expected)
        self.bench.check()
        questions = self.bench.asked("p1")
        assert [question.ext["msgId"] for question in questions] == [
            f"K{list(self.all.values()).index(expected)}" for expected in due
        ]
        for expected, question in zip(due, questions, strict=True):
            expected.checks += 1
            expected.names.append(question)

    async def restart(self) -> None:
        await self.bench.restart(is_killed=self.chance.random() < 0.8)
        for expected in self.all.values():
            expected.is_remembered = expected.is_looked_at = False

    def save(self) -> None:
        """Some time passes: cursors move over what the disk has, and are saved."""
        for _ in range(2):
            self.bench.transactions.note_progress()
            self.bench.store._flusher.flush()
            self.bench.store.advance()
        self.bench.transactions.note_progress()
        self.bench.save_offsets()

    def compare(self) -> None:
        table = {pending.first_offset: pending.check_times for pending in self.bench.transactions.pending()}
        assert table == {self.all[key].first_offset: self.all[key].checks for key in self.open_keys()}
        assert all(expected.deliveries <= 1 for expected in self.all.values())
        delivered = Counter(self.bench.bodies())
        assert delivered == Counter(
            {key.encode(): each.deliveries for key, each in self.all.items() if each.deliveries}
        )


@pytest.mark.parametrize("seed", range(4))
async def test_transactions_are_what_the_model_says(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    bench = await open_bench(tmp_path, transaction_checks_max=10_000)
    model = Model(bench, chance)
    for _ in range(STEPS):
        step = chance.random()
        if step < 0.3:
            model.prepare()
        elif step < 0.6:
            model.end()
        elif step < 0.75:
            model.check()
        elif step < 0.85:
            model.save()
        elif step < 0.9:
            await model.restart()
        else:
            if chance.random() < 0.6:
                model.end(appends=chance.randint(0, 2))
            else:
                model.check(appends=chance.randint(0, 3))
            await model.restart()
        model.compare()
    # Nothing is lost: whatever is open can still be ended.
    for expected in model.all.values():
        if expected.outcome == UNKNOWN:
            assert bench.end(expected.names[-1], COMMIT).code == 0
            expected.outcome = COMMIT
            expected.deliveries = 1
    model.compare()
    model.save()
    await model.restart()
    model.compare()
    await bench.close()
