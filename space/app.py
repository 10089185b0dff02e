"""The comparison as a Space of the Hugging Face hub: the models that come with it, on a CPU.

The hub reaches it under the name in SPACE_HOST and shows it in a frame of its own page. In a checkout, `python
scripts/space.py FOLDER` puts this file into a folder with all that it needs; there `python app.py` starts it anywhere.
"""

import os
import sys

from app.__main__ import main  # the package beside this file: Python prefers it to this file's own name

HUB = "https://huggingface.co"
PORT = "7860"  # where a Space must listen, and what GRADIO_SERVER_PORT says elsewhere

if __name__ == "__main__":
    options = ["--host", os.environ.get("GRADIO_SERVER_NAME", "0.0.0.0"), "--framed-by", HUB]
    options += ["--port", os.environ.get("GRADIO_SERVER_PORT", PORT)]
    if host := os.environ.get("SPACE_HOST"):
        options += ["--allowed-hosts", host]
    sys.exit(main(options))
