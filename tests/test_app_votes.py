"""The line, blind votes and their interval."""

import random
import threading

import pytest

from app.line import Line, LineFullError
from app.votes import Ballot, Tally, binomial_interval, tally_html


def test_first_come_first_served_and_one_leaves_from_any_place():
    line = Line(waiting=3)
    tickets = [line.join() for _ in range(4)]
    assert [ticket.before for ticket in tickets] == [0, 1, 2, 3]
    tickets[1].leave()
    assert [tickets[index].before for index in (0, 2, 3)] == [0, 1, 2]
    tickets[0].leave()
    tickets[0].leave()
    assert [tickets[index].before for index in (2, 3)] == [0, 1]
    assert len(line) == 2


def test_one_past_the_limit_is_refused_in_one_sentence():
    line = Line(waiting=2)
    held = [line.join() for _ in range(3)]
    with pytest.raises(LineFullError, match="^2 people wait already, no more can; try again in a minute.$"):
        line.join()
    held[2].leave()
    assert line.join().before == 2


def test_many_threads_get_different_places():
    line, places = Line(waiting=50), []

    def join() -> None:
        places.append(line.join().before)

    threads = [threading.Thread(target=join) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(places) == list(range(40))


# Clopper-Pearson intervals as published tables have them (95 %).
@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(0, 5, 0, 0.5218), (5, 5, 0.4782, 1), (1, 3, 0.0084, 0.9057), (8, 10, 0.4439, 0.9748), (15, 30, 0.3130, 0.6870)],
)
def test_the_interval_is_the_exact_one(successes, trials, low, high):
    assert binomial_interval(successes, trials) == pytest.approx((low, high), abs=5e-5)


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
    assert "<td>1 of 4</td><td>25 %</td><td>1 to 81 %</td>" in page
    assert "<td>2 of 4</td><td>50 %</td><td>7 to 93 %</td>" in page
    assert "4 rounds, 1 without a difference. Chance alone gives each 50 %." in page
    assert "&lt;DeBias&gt;" in page
    assert tally_html(Tally(), {}) == ""
    once = Tally()
    once.add(("base",), "base")
    assert "1 round, 0 without" in tally_html(once, {"base": "CLIP"})
