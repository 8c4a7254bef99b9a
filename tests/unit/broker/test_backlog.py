"""What waits in a shard's buffer: whose message is next, and how far everything was handed out."""

from __future__ import annotations

import random

from broker._mail.backlog import LARGE_BYTES, OVERHEAD_BYTES, WHOLE_BYTES, Backlog, Delivered

BYTES = 512 * 1024


def message(sequence: int, tenant: str, size: int = 2) -> Delivered:
    """The message that the stream stored under this sequence."""
    subject = f"mail.desk.3.{tenant}.k".encode()
    return Delivered(sequence, 1000 + sequence, subject, b"ack.%d" % sequence, b"", b"x" * size)


def backlog(*tenants: str) -> Backlog:
    """One message of each of these, in this order, from sequence 1 on."""
    waiting = Backlog(lambda subject: subject.split(b".")[3])
    for sequence, tenant in enumerate(tenants, 1):
        waiting.add(message(sequence, tenant))
    return waiting


def test_a_message_behind_thousands_of_another_tenant_is_in_the_next_batch() -> None:
    """As its second one; the cursor stays at what was handed out without a gap."""
    waiting = backlog(*["flood"] * 5000, "quiet")
    batch, reached = waiting.take(256, BYTES)

    assert [m.sequence for m in batch] == [1, 5001, *range(2, 256)]
    assert reached.sequence == 255
    assert len(waiting) == 5001 - 256


def test_the_cursor_passes_what_was_handed_out_ahead() -> None:
    """Once all before it was, and by its own number, time and place to acknowledge."""
    waiting = backlog("a", "a", "a", "b")
    first, to_two = waiting.take(3, BYTES)
    last, to_four = waiting.take(3, BYTES)

    assert [m.sequence for m in (*first, *last)] == [1, 4, 2, 3]
    assert to_two == (2, 1002, b"ack.2")
    assert to_four == (4, 1004, b"ack.4")
    assert (len(waiting), waiting.size) == (0, 0)


def test_whatever_comes_all_are_handed_out_once_in_the_order_of_their_tenant() -> None:
    """The oldest is in every batch, so that the cursor moves each time; nothing below it is left."""
    chance = random.Random(7)
    for _ in range(50):
        waiting, last, messages = backlog(), 0, list[Delivered]()
        while last < 200 or len(waiting):
            for _ in range(chance.randrange(40) if last < 200 else 0):
                last += 1
                waiting.add(message(last, chance.choice("aaaab"), chance.randrange(50)))
            if not len(waiting):
                continue
            before = {m.sequence for m in messages}
            oldest = min(set(range(1, last + 1)) - before)
            batch, reached = waiting.take(chance.randrange(1, 20), chance.randrange(1, 200))
            messages += batch
            sequences = {m.sequence for m in messages}
            assert oldest in {m.sequence for m in batch}
            assert set(range(1, reached.sequence + 1)) <= sequences
            assert reached.sequence == last or reached.sequence + 1 not in sequences

        assert sorted(m.sequence for m in messages) == list(range(1, last + 1))
        for tenant in (b".a.", b".b."):
            theirs = [m.sequence for m in messages if tenant in m.subject]
            assert theirs == sorted(theirs)


def test_a_batch_ends_with_the_message_that_fills_it() -> None:
    """By their bytes in the stream; one that is larger than a batch comes by itself."""
    waiting = backlog()
    for sequence, size in enumerate((100, 100, 100, 900, 10), 1):
        waiting.add(message(sequence, "a", size))
    batches = [[m.sequence for m in waiting.take(256, 200)[0]] for _ in range(3)]

    assert batches == [[1, 2], [3, 4], [5]]
    assert (len(waiting), waiting.size, waiting.length) == (0, 0, 0)


def test_large_messages_are_passed_by_once_there_are_enough() -> None:
    """Their places take their turns as the messages would; small ones stay whole wherever they are."""
    waiting = backlog()
    for sequence in range(1, 1501):
        waiting.add(message(sequence, "flood", 64 * 1024))
    waiting.add(message(1501, "quiet"))
    most = waiting.size
    batch, _ = waiting.take(256, BYTES)
    whole = WHOLE_BYTES // (64 * 1024 + OVERHEAD_BYTES) + 1

    assert most <= WHOLE_BYTES + 64 * 1024 + 1501 * OVERHEAD_BYTES
    assert [m.sequence for m in batch] == [1, 1501, *range(2, 9)]
    assert batch[1] == message(1501, "quiet")
    rest = [m for _ in range(200) if len(waiting) for m in waiting.take(256, BYTES)[0]]
    assert [m.sequence for m in rest] == list(range(9, 1501))
    assert all(m.length == 64 * 1024 for m in rest)
    assert [m.sequence for m in rest if m.let_go_bytes] == list(range(whole + 1, 1501))
    assert (waiting.size, waiting.length) == (0, 0)


def test_what_is_not_large_is_never_passed_by() -> None:
    """It would have to be read twice, one by one."""
    waiting = backlog()
    while waiting.size <= 2 * WHOLE_BYTES:
        waiting.add(message(len(waiting) + 1, "a", LARGE_BYTES - 1))
    batch, _ = waiting.take(10_000, waiting.length)

    assert not any(m.let_go_bytes for m in batch)
