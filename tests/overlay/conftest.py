"""Exported pages in a real browser."""

import pytest


@pytest.fixture
def visit(browser, tmp_path):
    """Open a page offline; fail if it sends a request, logs to the console or opens a dialog."""
    context = browser.new_context(offline=True)
    file, events = tmp_path / "page.html", []

    def open_page(html, width=1280):
        file.write_text(html, "utf-8")
        page = context.new_page()
        page.set_viewport_size({"width": width, "height": 900})
        for event in ("console", "pageerror", "dialog"):
            page.on(event, lambda given: events.append(str(given)))
        page.on("request", lambda request: events.append(request.url))
        page.goto(file.as_uri())
        page.keyboard.press("Escape")  # or the sharpest map is shown
        return page

    yield open_page
    context.close()
    assert [each for each in events if not each.startswith(("data:", "blob:", file.as_uri()))] == []
