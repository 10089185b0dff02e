"""Take the app's pictures for the README: `python scripts/screenshots.py`; writes docs/app-*.png.

Needs gradio (`pip install -e '.[app]'`), playwright and Debian's chromium. The app runs with the embedded models for as
long as this does. Widths 1440 and 390, light and dark; the prompt, seed and steps are fixed.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SHOTS = (("app", 1440, 1560, "light"), ("app-dark", 1440, 1560, "dark"), ("app-phone", 390, 844, "light"))
COLOURS = 128  # the pictures are flat: a palette makes them a third of the size
WAIT = 300_000  # milliseconds


def take(browser: object, url: str, width: int, height: int, scheme: str) -> bytes:
    """One screenshot: a comparison is done and the late sentences' cells are lit up."""
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page = context.new_page()
    page.set_default_timeout(WAIT)
    page.goto(url)
    page.locator("#go").click()
    page.wait_for_function("document.querySelector('#status').innerText.startsWith('Done')")
    page.locator(".verdicts li[data-sentence='5']").last.focus()
    page.wait_for_timeout(600)
    if width > 640:
        page.evaluate("window.scrollTo(0, 0)")
    else:
        page.evaluate("document.querySelector('#panels').scrollTo(0, 0)")
        page.evaluate("document.querySelector('#panels').scrollIntoView()")
    page.wait_for_timeout(300)
    shot = page.screenshot()
    context.close()
    return shot


def small(content: bytes) -> bytes:
    """The same picture with a palette."""
    image = Image.open(io.BytesIO(content)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    stream = io.BytesIO()
    image.save(stream, format="PNG", optimize=True)
    return stream.getvalue()


def main() -> int:
    """Take all pictures; exit code 2 with one sentence when the browser is not there."""
    sys.path.insert(0, str(ROOT / "tests"))
    from app_server import CHROMIUM, CHROMIUM_OPTIONS, NO_APP, NO_BROWSER, running_app

    if NO_APP or NO_BROWSER:
        print(f"screenshots: error: {NO_APP or NO_BROWSER}; install it and call this again.", file=sys.stderr)
        return 2
    from playwright.sync_api import sync_playwright

    with (
        tempfile.TemporaryDirectory() as folder,
        running_app(Path(folder) / "log.txt") as url,
        sync_playwright() as tool,
        tool.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_OPTIONS) as browser,
    ):
        for name, width, height, scheme in SHOTS:
            content = small(take(browser, url, width, height, scheme))
            (DOCS / f"{name}.png").write_bytes(content)
            print(f"docs/{name}.png: {len(content) / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
