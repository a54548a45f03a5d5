"""HTML and SVG as text that is escaped by construction.

Whatever is not ``Html`` is escaped on its way into an element, so no name or reason that a node sent
can become markup. ``Html`` itself comes out of ``el`` and of constants in the source, nowhere else.
"""

from html import escape

from common.text import visible

VOID = frozenset({"meta", "br"})


class Html(str):
    """Markup that goes into a page as it is."""

    __slots__ = ()


def el(tag: str, *children: Html | str, **attributes: str | float | None) -> Html:
    """One element. Plain strings are escaped; ``class_`` means class, ``aria_label`` means aria-label.

    A float among the attributes is a pixel coordinate and keeps one decimal. ``None`` leaves it out.
    """
    start = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in VOID:
        return Html(f"<{tag}{start}>")
    return Html(f"<{tag}{start}>{join(*children)}</{tag}>")


def join(*children: Html | str) -> Html:
    """The children one after the other; plain strings are escaped."""
    return Html("".join(child if isinstance(child, Html) else _text(child) for child in children))


def pixels(value: float) -> str:
    """A coordinate with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")


def _attribute(value: str | float) -> str:
    return _text(value) if isinstance(value, str) else pixels(value)


def _text(text: str) -> str:
    return escape(visible(text))
