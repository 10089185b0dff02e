"""The queue and blind votes."""

import random
import threading

import pytest

from app.keep import Ballot, Tally, tally_html
from app.waiting import Client, Queue, QueueFullError


def test_first_come_first_served_and_one_leaves_from_any_place():
    queue = Queue(waiting=3)
    tickets = [queue.join() for _ in range(4)]
    assert [ticket.before for ticket in tickets] == [0, 1, 2, 3]
    tickets[1].leave()
    assert [tickets[index].before for index in (0, 2, 3)] == [0, 1, 2]
    tickets[0].leave()
    tickets[0].leave()
    assert [tickets[index].before for index in (2, 3)] == [0, 1]
    assert len(queue) == 2


def test_one_past_the_limit_is_refused_in_one_sentence():
    queue = Queue(waiting=2)
    held = [queue.join() for _ in range(3)]
    with pytest.raises(QueueFullError, match="^2 people wait already, no more can; try again in a minute.$"):
        queue.join()
    held[2].leave()
    assert queue.join().before == 2


def test_many_threads_get_different_places():
    queue, places = Queue(waiting=50), []

    def join() -> None:
        places.append(queue.join().before)

    threads = [threading.Thread(target=join) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(places) == list(range(40))


def turns_of(queue: Queue, tickets: dict[str, object], count: int) -> str:
    """Who has the next `count` turns; each keeps its place."""
    names = []
    for _ in range(count):
        (name,) = (name for name, ticket in tickets.items() if ticket.before == 0)
        names.append(name)
        tickets[name].pass_on()
    return " ".join(names)


def test_turns_go_round_the_addresses_and_their_sessions():
    """Case 137: three jobs of one client take that client's turns, not those of others."""
    queue, hog = Queue(), Client("10.0.0.1", "x")
    tickets = {name: queue.join(hog) for name in ("a1", "a2", "a3")}
    tickets["other"] = queue.join(Client("10.0.0.1", "y"))
    tickets["b"] = queue.join(Client("10.0.0.2", "z"))
    assert {name: ticket.before for name, ticket in tickets.items()} == {"a1": 0, "b": 1, "other": 2, "a2": 3, "a3": 4}
    assert turns_of(queue, tickets, 6) == "a1 b other b a1 b"
    tickets.pop("a1").leave()
    assert turns_of(queue, tickets, 2) == "other b"
    tickets["c"] = queue.join(Client("10.0.0.3", "z"))
    assert turns_of(queue, tickets, 4) == "a2 b c other"


def test_whoever_leaves_a_waiting_place_takes_no_turn_from_the_one_that_is_served():
    """Case 137: two would be drawn at once."""
    queue, hog = Queue(), Client("10.0.0.1", "x")
    served, waiting, other = queue.join(hog), queue.join(hog), queue.join(Client("10.0.0.2", "z"))
    waiting.leave()
    assert (served.before, other.before) == (0, 1)
    short = queue.join(hog)
    served.leave()
    assert (other.before, short.before) == (0, 1), "its address has had a turn"


def test_one_address_does_not_take_all_places():
    """Case 137: the last quarter is for addresses that have none."""
    queue = Queue(waiting=8)
    for number in range(7):
        queue.join(Client("10.0.0.1", f"session {number}"))
    with pytest.raises(
        QueueFullError, match="^7 jobs from your address wait already, and the last places are for others"
    ):
        queue.join(Client("10.0.0.1", "one more"))
    assert [queue.join(Client(f"10.0.0.{number}", "x")).before for number in (2, 3)] == [1, 2]
    with pytest.raises(QueueFullError, match="8 people wait already"):
        queue.join(Client("10.0.0.4", "x"))


def test_a_ballot_hides_each_order_and_keeps_the_choice():
    names = ("base", "long-clip", "debias")
    ballot = Ballot.shuffled(names, 8, random.Random(0))
    assert all(sorted(order) == sorted(names) for order in ballot.orders)
    assert len(set(ballot.orders)) > 1
    ballot.vote(1)
    ballot.vote(None)
    assert ballot.votes == [ballot.orders[0][1], None]
    with pytest.raises(ValueError, match="picture 4 was chosen, this round has 3"):
        ballot.vote(3)
    for _ in range(6):
        ballot.vote(0)
    assert ballot.is_over
    with pytest.raises(ValueError, match="all rounds are voted on"):
        ballot.vote(0)


def test_the_tally_counts_what_was_shown_and_chosen():
    tally = Tally()
    for choice in ("debias", "debias", None, "base"):
        tally.add(("base", "debias"), choice)
    page = tally_html(tally, {"base": "CLIP", "debias": "<DeBias>"})
    assert "<td>1 of 4</td><td>25 %</td>" in page
    assert "<td>2 of 4</td><td>50 %</td>" in page
    assert "4 rounds, 1 without a difference. Chance alone gives each 50 %." in page
    assert "&lt;DeBias&gt;" in page
    assert tally_html(Tally(), {}) == ""
    once = Tally()
    once.add(("base",), "base")
    assert "1 round, 0 without" in tally_html(once, {"base": "CLIP"})
