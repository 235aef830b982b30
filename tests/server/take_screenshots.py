"""Take the pictures of ``docs/images`` from a running server.

    draftproof serve -m smollm2 --speculative-config '{"method": "suffix"}' --port 8000
    python tests/server/take_screenshots.py http://127.0.0.1:8000 docs/images

Needs Playwright's Python package and a Chromium.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

WIDE = {"width": 1360, "height": 900}
PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 844},
    "device_scale_factor": 2,
    "is_mobile": True,
    "has_touch": True,
}
LIMIT_MS = 180_000
#: Drafts that are often rejected: the text is to be changed, and the temperature is high.
EDIT = {
    "prompt": "Write the following text again, but the river is a lake now.\n\n"
    "The old mill stands by the river. In spring the river rises and turns the wheel. "
    "In summer the river is low and the miller waits. In autumn leaves float down the river.",
    "temperature": "0.9",
    "max_tokens": "80",
}


def main() -> None:
    """Take all of them."""
    url, folder = sys.argv[1], Path(sys.argv[2])
    chromium = os.environ.get("DRAFTPROOF_CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as tool:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = tool.chromium.launch(executable_path=chromium, args=options)
        take(browser, url, folder / "playground_light.png", {"temperature": "0.7"}, replays=True)
        take(browser, url, folder / "playground_dark.png", EDIT, color_scheme="dark")
        take(browser, url, folder / "playground_phone.png", EDIT, **PHONE)
        page = browser.new_page(viewport={**WIDE, "height": 760}, color_scheme="light")
        page.goto(url + "/models")
        page.locator("#fits tr").first.wait_for()
        page.screenshot(path=folder / "models_light.png")
        browser.close()


def take(
    browser: Browser,
    url: str,
    path: Path,
    fields: dict[str, str],
    *,
    replays: bool = False,
    **options: Any,
) -> None:
    """Run a prompt, replay its seed in plain where that is to be shown, point at a token."""
    is_phone = "is_mobile" in options
    page: Page = browser.new_page(**{"viewport": WIDE, "color_scheme": "light", **options})
    page.set_default_timeout(LIMIT_MS)
    page.goto(url)
    page.locator("#go:enabled").wait_for()
    if is_phone:
        page.locator("#settings summary").click()
    for name, value in fields.items():
        page.locator(f"#{name}").fill(value)
    page.locator("#show-rejected").set_checked(fields is EDIT)
    if is_phone:
        page.locator("#settings summary").click()
    page.locator("#go").click()
    page.locator("#status", has_text="Done").wait_for()
    if replays:
        page.locator("#replay").click()
        page.locator("#verdict", has_text="seed").wait_for()
        page.locator("#replay:enabled").wait_for()
    token = page.locator("#tokens .accepted").nth(2)
    token.scroll_into_view_if_needed()
    if is_phone:
        token.tap()
    else:
        page.evaluate("() => scrollTo(0, 0)")
        token.hover()
    page.screenshot(path=path)
    page.close()


if __name__ == "__main__":
    main()
