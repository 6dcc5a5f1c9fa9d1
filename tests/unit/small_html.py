"""What is in a page of HTML."""

from html.parser import HTMLParser

VOID = ("meta", "link", "br", "img", "hr")


class Elements(HTMLParser):
    """How many there are of each tag, every address that is asked for, and what is not closed where it should be."""

    def __init__(self, page):
        super().__init__()
        self.open, self.links, self.ids, self.count = [], [], set(), {}
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.count[tag] = self.count.get(tag, 0) + 1
        self.links += [value for name, value in attrs if name in ("href", "src", "xlink:href")]
        self.ids |= {value for name, value in attrs if name == "id"}
        self.open += [tag] if tag not in VOID else []

    def handle_endtag(self, tag):
        if self.open[-1:] == [tag]:
            self.open.pop()
        elif tag not in VOID:
            self.open.append(f"/{tag}")
