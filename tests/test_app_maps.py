"""Cross-attention maps of real pipelines: the picture stays as it is, and the maps are the layers' own attention."""

import numpy as np
import pytest
import torch
from tiny_app import drawn, tiny_models

from app.models import Models
from app.reading import GRID, Maps, overlay_url, watch_attention
from app.result import result_of
from app.stage import panel_html
from debias_sd.comparison import draw_prompt
from debias_sd.drawing import Variant

# Pictures are drawn in a thread of its own, where several threads of torch share sums out otherwise.
pytestmark = pytest.mark.usefixtures("one_thread")

PROMPT = "A dog runs in the park. " * 12 + "A red kite flies."


@pytest.fixture(scope="module")
def models() -> Models:
    return tiny_models(is_real=True)


@pytest.mark.parametrize("guidance", [1.0, 4.0])
def test_watching_changes_no_bit_and_leaves_no_trace(models, guidance):
    pipe, settings = models.pipes["debias"], {"seed": 1, "steps": 2, "guidance": guidance}
    before = draw_prompt(Variant("debias", pipe), PROMPT, **settings)
    processors = dict(pipe.unet.attn_processors)
    with watch_attention(pipe) as maps:
        watched = draw_prompt(Variant("debias", pipe), PROMPT, **settings)
    assert np.array_equal(watched, before)
    assert pipe.unet.attn_processors == processors
    everything = maps.of(0, 247)
    assert everything.shape == (GRID, GRID)
    assert everything == pytest.approx(np.ones((GRID, GRID)), abs=1e-4)  # attention over all tokens sums to 1


def test_maps_are_those_of_the_prompt_and_not_of_the_empty_one(models):
    pipe = models.pipes["debias"]
    with watch_attention(pipe) as guided:
        draw_prompt(Variant("debias", pipe), PROMPT, seed=1, steps=1, guidance=4.0)
    with watch_attention(pipe) as plain:
        draw_prompt(Variant("debias", pipe), PROMPT, seed=1, steps=1, guidance=1.0)
    for slot in (1, 30, 90):
        assert guided.of(slot, slot + 3) == pytest.approx(plain.of(slot, slot + 3), abs=1e-5)


def test_a_fault_takes_the_watch_off(models):
    pipe = models.pipes["base"]
    processors = dict(pipe.unet.attn_processors)
    with pytest.raises(RuntimeError, match="stop"), watch_attention(pipe):
        raise RuntimeError("stop")
    assert pipe.unet.attn_processors == processors


def test_cells_are_the_pictures_in_reading_order():
    maps = Maps()
    attention = torch.zeros(2, 16, 3)
    attention[:, 1, 2] = 1  # token 2 acts on the second cell of the first row
    maps.add(attention)
    found = maps.of(2, 2)
    assert np.unravel_index(found.argmax(), found.shape)[0] < GRID // 4
    assert GRID // 4 <= np.unravel_index(found.argmax(), found.shape)[1] < GRID // 2
    assert maps.of(3, 5) is None
    assert Maps().of(0, 0) is None
    maps.add(torch.ones(1, 15, 3))  # no square
    assert np.array_equal(maps.of(2, 2), found)


def test_a_panel_of_a_real_pipeline_has_a_map_for_what_was_read(models):
    run = drawn(models, PROMPT, seed=2)
    assert [track.state for track in run.tracks] == ["done", "done"]
    short, long = (track.pictures[0] for track in run.tracks)
    read = [sentence.first < 76 for sentence in run.sentences]
    assert [look is not None for look in short.maps] == read
    assert not all(read)
    assert all(long.maps)
    page = panel_html(run, run.tracks[0])
    assert page.count('class="map"') == sum(read)
    assert "the app runs without <code>--judge</code>" in result_of(run)
    assert {verdict.mark for verdict in short.verdicts} == {"not judged"}


def test_an_even_map_is_clear():
    assert overlay_url(np.ones((GRID, GRID), np.float32)).startswith("data:image/png;base64,")
