"""Prompts to start from: the operator's own, long scenes for the embedded world, long captions for real pipelines.

The real ones have the form of the paper's Stable Diffusion XL figure (arXiv 2602.22419): "photo, detailed, 8k, ", then
a long caption whose late sentences name details. The wording is this project's.
"""

from __future__ import annotations

import asyncio
import random
import threading

from app.models import Models
from app.own_examples import titled
from app.request import check_request
from app.run import compare, start_run
from app.settings import Settings
from debias_sd.shapes.caption import long_caption
from debias_sd.shapes.heldout import prompt_set
from debias_sd.shapes.scene import random_scene

_SCENES = 4
_PHOTOS = {
    "A kitchen at noon": (
        "photo, detailed, 8k, A sunlit kitchen with a long wooden table stands in an old farmhouse. The walls are "
        "white and the floor is made of dark tiles. A loaf of bread lies on a striped cloth. "
        "Copper pans hang in a row above the stove. Through the window behind the sink one sees a row of apple trees. "
        "A grey cat sleeps on the chair at the far end. Next to the bread stands a blue jug that holds three yellow "
        "tulips. A red bicycle leans against the wall beside the open door."
    ),
    "A harbor after rain": (
        "photo, detailed, 8k, A small harbor lies in the evening light after the rain. Fishing boats are tied to a "
        "stone pier in two rows. The water is calm and mirrors the orange sky. Wooden houses with steep roofs stand "
        "along the quay. Nets are drying on a rack near the first boat. A man in a yellow coat walks towards the "
        "lighthouse at the end of the pier. Two white dogs wait beside a stack of green crates. On the roof of the "
        "nearest house sits a black heron."
    ),
    "A library corner": (
        "photo, detailed, 8k, A corner of an old library is lit by a single brass lamp. Shelves of leather-bound books "
        "reach up to the ceiling. A wide armchair with a plaid blanket stands next to a round table. The carpet shows "
        "a faded pattern of leaves. Rain runs down the tall window on the right. On the table a silver teapot stands "
        "beside an open atlas. A wooden ladder leans against the shelves in the back. At the foot of the ladder lies a "
        "single red glove."
    ),
}


def examples(settings: Settings) -> dict[str, str]:
    """Example prompts by title: the operator's own ones first."""
    return titled([*settings.own_examples.items(), *_built_in(is_embedded=settings.is_embedded).items()])


def _built_in(*, is_embedded: bool) -> dict[str, str]:
    if not is_embedded:
        return _PHOTOS
    captions = prompt_set(0, count=_SCENES).captions
    return {
        f"Scene {number}: {len(caption.sentences)} sentences": caption.text
        for number, caption in enumerate(captions, start=1)
    }


def surprise(rng: random.Random, settings: Settings, *, shown: str) -> str:
    """A prompt that is not the one `shown`: a fresh scene of the embedded world, or one of a real base's examples."""
    if settings.is_embedded:
        scene = random_scene(rng)
        return long_caption(scene, rng).text
    return rng.choice([prompt for prompt in examples(settings).values() if prompt != shown])


def draw_example(models: Models, settings: Settings) -> None:
    """Draw the first example with the default settings in a thread, through the line as everybody; returns at once."""
    prompt = next(iter(examples(settings).values()))
    models.example = run = start_run(check_request({"prompt": prompt}, settings), models)

    async def draw() -> None:
        try:
            async for _ in compare(run, models):
                pass
        finally:
            run.stop_all()  # changes nothing when all is drawn; otherwise no page waits for it

    threading.Thread(target=lambda: asyncio.run(draw()), name="example", daemon=True).start()
