"""Take the app's pictures for the README: `python scripts/screenshots.py`; writes docs/app-*.png.

Needs gradio (`pip install -e '.[app]'`), playwright and Debian's chromium. The app runs with the embedded models for as
long as this does. Widths 1440 and 390, light and dark; they show the first example, which is drawn at the start.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SHOTS = (
    ("app", 1440, 1100, "light"),
    ("app-dark", 1440, 1100, "dark"),
    ("app-phone", 390, 1500, "light"),
    ("app-phone-dark", 390, 1500, "dark"),
)
WAIT = 300_000  # milliseconds


def take(browser: object, url: str, width: int, height: int, scheme: str) -> bytes:
    """One screenshot of the page as it opens; the place of a late sentence is lit up in every picture."""
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page = context.new_page()
    page.set_default_timeout(WAIT)
    page.goto(url)
    page.locator("#table tr.sentence").first.wait_for()
    page.mouse.move(2, 2)  # a pointer on a row would light up that one
    page.evaluate("document.querySelector('#table tr[data-sentence=\"6\"]').focus({ preventScroll: true })")
    page.wait_for_timeout(600)
    page.evaluate("window.scrollTo(0, 0)")
    page.wait_for_timeout(300)
    shot = page.screenshot()
    context.close()
    return shot


def small(content: bytes) -> bytes:
    """The same picture, packed tighter; no palette: it would change what the small pictures show."""
    stream = io.BytesIO()
    Image.open(io.BytesIO(content)).convert("RGB").save(stream, format="PNG", optimize=True)
    return stream.getvalue()


def main() -> int:
    """Take all pictures; exit code 2 with one sentence when the browser is not there."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    from app_server import CHROMIUM, CHROMIUM_OPTIONS, NO_APP, NO_BROWSER, running_app

    if NO_APP or NO_BROWSER:
        print(f"screenshots: error: {NO_APP or NO_BROWSER}; install it and call this again.", file=sys.stderr)
        return 2
    from playwright.sync_api import sync_playwright

    with (
        tempfile.TemporaryDirectory() as folder,
        running_app(Path(folder) / "log.txt", "--example") as url,
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
