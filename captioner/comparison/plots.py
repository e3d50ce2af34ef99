"""A comparison as pictures: every measure with its intervals, and the curves of faithfulness."""

import math
from collections.abc import Sequence
from io import BytesIO

from PIL import Image, ImageDraw

from captioner.comparison.forms import named, title
from captioner.comparison.results import Curve
from captioner.comparison.table import Comparison, Group
from captioner.overlay.lettering import font, plain, shorten, wrap

Number = float | int
# Okabe, Ito 2008: told apart without colour vision too.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#8a6f00", "#555555")
INK, SOFT, FAINT, PAPER = "#1b1b1f", "#62626b", "#d9d9de", "#ffffff"
SCALE = 2  # drawn larger and made smaller, which smooths the lines
TITLE, TEXT, SMALL = 17, 15, 12
MARGIN, PANEL, ROW, HEAD, FOOT, LABEL = 24, 300, 24, 28, 34, 150
ACROSS = 3
HEIGHT = 190  # of a panel of curves
ORDERS = {"most": COLOURS[1], "random": COLOURS[7], "least": COLOURS[0]}


def draw(comparison: Comparison) -> dict[str, bytes]:
    """PNG files by name: one for each group of the table, and one for curves where there are any."""
    files: dict[str, bytes] = {}
    numbers: dict[str, int] = {}
    for group in comparison.groups:
        number = numbers[group.section] = numbers.get(group.section, 0) + 1
        name = group.section if number == 1 else f"{group.section}-{number}"
        files[f"{name}.png"] = _png(measures(group, comparison.columns))
        if any(result is not None and result.curves for result in group.results):
            files[f"{name}-curves.png"] = _png(curves(group, comparison.columns))
    return files


class Canvas:
    """A white page; places and sizes are in pixels of the finished picture."""

    def __init__(self, width: int, height: int) -> None:
        self.size = (width, height)
        self._image = Image.new("RGB", (width * SCALE, height * SCALE), PAPER)
        self._draw = ImageDraw.Draw(self._image, "RGBA")

    def line(self, points: Sequence[tuple[Number, Number]], colour: str, width: Number = 1) -> None:
        """From point to point."""
        scaled = [(x * SCALE, y * SCALE) for x, y in points]
        self._draw.line(scaled, colour, round(width * SCALE), joint="curve")

    def band(self, points: Sequence[tuple[Number, Number]], colour: str) -> None:
        """A filled area, which lets what lies behind shine through."""
        self._draw.polygon([(x * SCALE, y * SCALE) for x, y in points], f"{colour}30")

    def dot(self, x: Number, y: Number, colour: str, radius: Number = 5) -> None:
        """A disc."""
        box = [
            (x - radius) * SCALE,
            (y - radius) * SCALE,
            (x + radius) * SCALE,
            (y + radius) * SCALE,
        ]
        self._draw.ellipse(box, colour)

    def text(
        self, x: Number, y: Number, text: str, size: int, colour: str = INK, anchor: str = "lm"
    ) -> None:
        """One line; the anchor as Pillow has it."""
        letters = font(size * SCALE, plain(text))
        self._draw.text((x * SCALE, y * SCALE), plain(text), colour, letters, anchor=anchor)

    def finished(self) -> Image.Image:
        """The page."""
        return self._image.resize(self.size, Image.Resampling.LANCZOS)


def measures(group: Group, columns: Sequence[str]) -> Image.Image:
    """A panel for every measure: a dot for each run, a line for its 95 % interval."""
    deep = -(-len(group.rows) // ACROSS)
    high = HEAD + ROW * len(columns) + FOOT
    canvas, top = _page(title(group), min(ACROSS, len(group.rows)), deep * high)
    for place, (measure, cells) in enumerate(group.rows.items()):
        row, column = divmod(place, ACROSS)
        left, y = MARGIN + column * (LABEL + PANEL), top + row * high
        there = [cell for cell in cells if cell is not None]
        ends = [cell.value for cell in there]
        ends += [end for c in there if c.interval for end in (c.interval.low, c.interval.high)]
        axis = Axis(min(ends), max(ends), left + LABEL, left + LABEL + PANEL - MARGIN)
        canvas.text(left, y + HEAD / 2, named(measure), TEXT)
        bottom = y + HEAD + ROW * len(columns)
        for tick in axis.ticks:
            canvas.line([(axis(tick), y + HEAD), (axis(tick), bottom)], FAINT)
            canvas.text(axis(tick), bottom + 10, axis.label(tick), SMALL, SOFT, "mm")
        for number, (name, cell) in enumerate(zip(columns, cells, strict=True)):
            middle = y + HEAD + ROW * (number + 0.5)
            canvas.text(left, middle, _short(name), SMALL, INK if cell else SOFT)
            if cell is None:
                continue
            colour = COLOURS[number % len(COLOURS)]
            if cell.interval is not None:
                span = [(axis(cell.interval.low), middle), (axis(cell.interval.high), middle)]
                canvas.line(span, colour, 2)
            canvas.dot(axis(cell.value), middle, colour)
    return canvas.finished()


def curves(group: Group, columns: Sequence[str]) -> Image.Image:
    """For each run and group of words: how far log-probability falls as regions are erased."""
    pairs = zip(columns, group.results, strict=True)
    known = [(name, result.curves) for name, result in pairs if result and result.curves]
    words = list(dict.fromkeys(of for _, found in known for of, _ in found))
    every = [curve for _, found in known for curve in found.values()]
    # One scale for all panels.
    ends = [end for curve in every for fall in curve.falls for end in (fall.low, fall.high)]
    most = max(curve.shares[-1] for curve in every)
    high = HEAD + HEIGHT + FOOT
    canvas, top = _page(title(group), len(known), len(words) * high, 60)
    for column, (name, found) in enumerate(known):
        left = MARGIN + column * (60 + PANEL)
        for row, of in enumerate(words):
            y = top + row * high
            up = Axis(min(0.0, *ends), max(ends), y + HEAD + HEIGHT, y + HEAD)
            along = Axis(0, most, left + 60, left + 60 + PANEL - MARGIN, whole=True)
            canvas.text(left + 60, y + HEAD / 2, f"{_short(name)}: {of} words", TEXT)
            for tick in up.ticks:
                canvas.line([(along.start, up(tick)), (along.end, up(tick))], FAINT)
                canvas.text(along.start - 6, up(tick), up.label(tick), SMALL, SOFT, "rm")
            for tick in along.ticks:
                canvas.text(along(tick), up.start + 12, f"{100 * tick:g} %", SMALL, SOFT, "mm")
            for order, colour in ORDERS.items():
                if (of, order) in found:
                    _curve(canvas, found[of, order], along, up, colour)
    says = "fall of log p(word), in nats, by the share of the picture's regions erased"
    canvas.text(MARGIN, top - 34, says, SMALL, SOFT)
    x = float(MARGIN)
    for order, colour in ORDERS.items():
        text = {"random": "in random order"}.get(order, f"the {order} looked at first")
        canvas.line([(x, top - 14), (x + 20, top - 14)], colour, 3)
        canvas.text(x + 26, top - 14, text, SMALL, SOFT)
        x += 200
    return canvas.finished()


def _curve(canvas: Canvas, curve: Curve, along: "Axis", up: "Axis", colour: str) -> None:
    """A line from nothing erased, and the band of its intervals."""
    xs = [along(0), *map(along, curve.shares)]
    low = [up(0), *(up(fall.low) for fall in curve.falls)]
    high = [up(0), *(up(fall.high) for fall in curve.falls)]
    band = [*zip(xs, low, strict=True), *reversed(list(zip(xs, high, strict=True)))]
    canvas.band(band, colour)
    line = [up(0), *(up(fall.value) for fall in curve.falls)]
    canvas.line(list(zip(xs, line, strict=True)), colour, 2)


class Axis:
    """From numbers to pixels, with round numbers for ticks.

    Args:
        low: the least number.
        high: the greatest.
        start: the pixel of the least.
        end: the pixel of the greatest.
        whole: whether the axis ends where the numbers do; else there is room around them.
    """

    def __init__(
        self, low: Number, high: Number, start: Number, end: Number, whole: bool = False
    ) -> None:
        if high == low:
            low, high = low - max(abs(low) / 20, 1e-3), high + max(abs(high) / 20, 1e-3)
        span = high - low
        room = 0.0 if whole else 0.08 * span
        self.low, self.high = low - room, high + room
        self.start, self.end = start, end
        rough = span / 4
        power = 10.0 ** math.floor(math.log10(rough))
        self.step = next(power * f for f in (1, 2, 5, 10) if power * f >= rough * (1 - 1e-9))
        first, last = math.ceil(self.low / self.step), math.floor(self.high / self.step + 1e-9)
        self.ticks = [number * self.step for number in range(first, last + 1)]

    def __call__(self, value: Number) -> float:
        """The pixel of a number."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def label(self, tick: Number) -> str:
        """A tick with as many digits as its step needs; in millions where it is one."""
        if self.step >= 1e5 or abs(tick) >= 1e6:
            return f"{tick / 1e6:.6g} M"
        digits = max(0, -math.floor(math.log10(self.step) + 1e-9))
        return f"{tick + 0.0:.{digits}f}"


def _page(heading: str, across: int, height: int, label: int = LABEL) -> tuple[Canvas, int]:
    """A canvas with its heading, and where what is below that begins."""
    width = 2 * MARGIN + max(2, across) * (label + PANEL)
    lines = wrap(plain(heading), font(TITLE, plain(heading)), width - 2 * MARGIN)
    top = MARGIN + len(lines) * (TITLE + 6) + 50
    canvas = Canvas(width, top + height + MARGIN)
    for number, line in enumerate(lines):
        canvas.text(MARGIN, MARGIN + (number + 0.5) * (TITLE + 6), line, TITLE)
    return canvas, top


def _short(name: str) -> str:
    return shorten(plain(name), font(SMALL, plain(name)), LABEL - 12)


def _png(image: Image.Image) -> bytes:
    stream = BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()
