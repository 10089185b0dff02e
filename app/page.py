"""Gradio's page, with faults of the sender's told to the sender: they are no fault of the app's."""

from __future__ import annotations

from typing import Any

import gradio as gr


class Page(gr.Blocks):
    """Blocks whose events answer a value that they cannot take with one sentence, and without a traceback."""

    async def preprocess_data(self, block_fn: Any, inputs: list[Any], *arguments: Any, **options: Any) -> list[Any]:
        try:
            return await super().preprocess_data(block_fn, inputs, *arguments, **options)
        except gr.Error as error:  # gradio's own words, as for a number out of its range
            raise gr.Error(str(error.message), print_exception=False) from None
        except Exception as error:  # whatever a component makes of a value that it cannot take
            raise gr.Error(
                f"The request has a value of the wrong kind ({type(error).__name__}); plain text, numbers and lists of "
                "names are needed.",
                print_exception=False,
            ) from None
