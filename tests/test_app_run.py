"""A run with tiny pipelines: the command line's pictures, faults that stay in their panel, the queue, cancelling."""

import asyncio
import threading

import numpy as np
import pytest
import torch
from tiny_app import drawn, finish, tiny_encoder
from tiny_world import tiny_pipeline

from app.live_run import Run, compare, start_run
from app.models import Models
from app.request import Request
from app.stage import panel_html
from app.table import live_table, run_table
from app.waiting import QueueFullError
from debias_sd.comparison import compare_encoders
from debias_sd.datasets.world import prompt_set
from debias_sd.drawing import variants_in
from debias_sd.encoder import TextEncoder
from debias_sd.measure.shares import score_of

# Pictures are drawn in a thread of its own, where several threads of torch share sums out otherwise.
pytestmark = pytest.mark.usefixtures("one_thread")

PROMPT = prompt_set(7, count=1).captions[0].text
REQUEST = Request(PROMPT, ("base", "debias"), seed=4, steps=2)


@pytest.fixture(scope="module")
def encoders() -> dict[str, TextEncoder]:
    return {"base": tiny_encoder(77, 0), "debias": tiny_encoder(248, 1)}


@pytest.fixture
def models(encoders) -> Models:
    base = tiny_pipeline()
    return Models(variants_in(base, encoders), base)


def test_pictures_are_the_command_lines(models, encoders):
    run = start_run(REQUEST, models)
    seen = asyncio.run(finish(run, models))
    expected = compare_encoders(PROMPT, encoders, base=models.base, seed=4, steps=2)
    assert run.is_over
    assert seen[-1] == "done/done"
    for track, panel in zip(run.tracks, expected.panels, strict=True):
        assert np.array_equal(track.pictures[0].image, panel.image)
        assert track.window == panel.window
        assert track.pictures[0].verdicts == panel.verdicts
        assert track.pictures[0].score == score_of(panel.verdicts)
    assert len(models.queue) == 0


def test_the_bases_own_encoder_reads_to_the_end_by_sentences_and_in_windows():
    base = tiny_pipeline()
    sources = {"base": None, "chunked": "chunked", "sentences": "sentences"}
    models = Models(variants_in(base, sources), base)
    run = drawn(models, PROMPT, tuple(sources), steps=1)
    assert [track.state for track in run.tracks] == ["done"] * 3
    assert [track.window for track in run.tracks] == [77, None, None]
    marks = [{verdict.mark for verdict in track.pictures[0].verdicts} for track in run.tracks]
    assert ["not read" in found for found in marks] == [True, False, False]
    pages = [panel_html(run, track) for track in run.tracks]
    assert ["reads every sentence" in page for page in pages] == [False, True, True]
    tables = [live_table(PROMPT, models, [name]) for name in sources]
    assert ["CLIP loses" in table for table in tables] == [True, False, False]
    assert run_table(run, models).count("tokens end here: CLIP reads no further") == 1


def test_each_seed_is_its_own_picture_and_repeats(models):
    several = drawn(models, PROMPT, ("debias",), seed=4, seeds=3, steps=2)
    single = drawn(models, PROMPT, ("debias",), seed=6, steps=2)
    pictures = several.tracks[0].pictures
    assert [picture.seed for picture in pictures] == [4, 5, 6]
    assert np.array_equal(pictures[2].image, single.tracks[0].pictures[0].image)
    assert not np.array_equal(pictures[0].image, pictures[1].image)


def test_a_finished_picture_is_shown_while_the_next_encoder_draws(models):
    looked = threading.Event()  # the second encoder draws only once somebody has seen the first one's picture
    scheduler = models.pipes["debias"].scheduler
    begin = scheduler.set_timesteps

    def after_the_look(*args, **options):
        assert looked.wait(60)
        return begin(*args, **options)

    async def watch(run: Run) -> list[str]:
        seen = []
        async for _ in compare(run, models):
            first, second = run.tracks
            if first.state == "done" and not second.pictures:
                seen += [panel_html(run, first), panel_html(run, second)]
                looked.set()
        return seen

    scheduler.set_timesteps = after_the_look
    run = start_run(REQUEST, models)
    done, waiting = asyncio.run(watch(run))[:2]
    assert done.count("<figure") == 1
    assert "data:image/png;base64," in done
    assert done.count("data-sentence") >= len(run.sentences) > 5
    assert "<img" not in waiting
    assert "<p>drawing</p>" in waiting
    assert run.is_over


class Fault:
    """A denoiser that fails as real ones do."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self, *_: object, **__: object) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "out of memory; what this picture took is free again"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes"), "out of memory"),
        (RuntimeError("/secret/path exploded"), "this encoder failed (RuntimeError); the terminal of the app"),
        (ValueError("the width is odd; make it even."), "the width is odd; make it even."),
    ],
)
def test_a_fault_stays_in_its_own_panel(models, monkeypatch, error, sentence):
    monkeypatch.setattr(models.pipes["base"].text_encoder, "forward", Fault(error))
    run = start_run(REQUEST, models)
    asyncio.run(finish(run, models))
    base, debias = run.tracks
    assert (base.state, base.pictures) == ("failed", [])
    assert base.fault.startswith(sentence)
    assert "/secret" not in base.fault
    assert debias.state == "done"
    assert len(models.queue) == 0


def test_a_picture_of_nan_is_explained(models, monkeypatch):
    def nan(*arguments: object, **options: object) -> object:
        output = decode(*arguments, **options)
        return (output[0] * torch.nan,)

    decode = models.base.vae.decode
    monkeypatch.setattr(models.base.vae, "decode", nan)
    run = drawn(models, PROMPT, ("base",))
    assert run.tracks[0].state == "failed"
    assert run.tracks[0].fault.startswith("a picture of base holds NaN (it would be black)")


@pytest.mark.parametrize("prompt", ["🙂", "مرحبا بالعالم", "a" * 20_000, "<b>", "\x00\x01 zero"])
def test_odd_prompts_are_drawn(models, prompt):
    run = drawn(models, prompt)
    assert [track.state for track in run.tracks] == ["done", "done"]


def test_cancelling_stops_after_the_current_step_and_frees_the_queue(models):
    async def cancelled() -> Run:
        run = start_run(Request(PROMPT, ("base", "debias"), steps=100, seeds=8), models)
        async for _ in compare(run, models):
            if any(track.step for track in run.tracks):
                run.stop.set()
        return run

    run = asyncio.run(cancelled())
    assert {track.state for track in run.tracks} == {"stopped"}
    assert sum(len(track.pictures) for track in run.tracks) < 16
    assert len(models.queue) == 0


def test_a_closed_page_frees_the_queue_and_the_next_one_is_drawn(models):
    async def leave_and_come() -> tuple[Run, Run]:
        first = start_run(Request(PROMPT, ("base",), steps=100, seeds=8), models)
        reports = compare(first, models)
        async for _ in reports:
            if first.tracks[0].step:
                break
        await reports.aclose()  # what gradio does when a tab is closed
        second = start_run(REQUEST, models)
        await finish(second, models)
        return first, second

    first, second = asyncio.run(leave_and_come())
    assert first.tracks[0].state == "stopped"
    assert second.tracks[1].state == "done"
    assert len(models.queue) == 0


def test_the_second_waits_is_told_and_draws_the_same(models, encoders):
    async def both() -> tuple[Run, Run, list[int | None]]:
        first, second, told = start_run(REQUEST, models), start_run(REQUEST, models), []

        async def follow() -> None:
            async for state in compare(second, models):
                told.append(state.before)

        await asyncio.gather(finish(first, models), follow())
        return first, second, told

    first, second, told = asyncio.run(both())
    assert told[0] == 1
    assert told[-1] is None
    for one, other in zip(first.tracks, second.tracks, strict=True):
        assert np.array_equal(one.pictures[0].image, other.pictures[0].image)


def test_leaving_while_waiting_frees_the_place(models):
    async def leave() -> None:
        ticket = models.queue.join()
        waiting = compare(start_run(REQUEST, models), models)
        await anext(waiting)
        assert len(models.queue) == 2
        await waiting.aclose()
        assert len(models.queue) == 1
        ticket.leave()

    asyncio.run(leave())


def test_past_the_limit_one_is_refused_at_once(models):
    tickets = [models.queue.join() for _ in range(33)]
    with pytest.raises(QueueFullError, match="32 people wait already"):
        asyncio.run(finish(start_run(REQUEST, models), models))
    for ticket in tickets:
        ticket.leave()
    assert len(models.queue) == 0
