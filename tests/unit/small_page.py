"""The page of a job as somebody sees it."""

from keyshift.control import explorer


class Page:
    """What an ``Explorer`` shows: ``buttons`` and ``given``, the fields beside them, by the words that are on them."""

    def __init__(self, monkeypatch, of):
        shown = []
        monkeypatch.setattr(explorer, "display", shown.append)
        of.show()
        [page] = shown
        bar, *asks, self.status, self.said, self.picture = page.children
        *_, self.rate, start, stop = bar.children
        rows = [row.children for row in asks]
        self.buttons = {each.description: each for each in (start, stop, *(button for button, *_ in rows))}
        self.given = {button.description: {each.description: each for each in fields} for button, *fields in rows}
