"""What a notebook file shows of a panel that cannot live there: its picture and its sentence.

A saved page, an export, a page whose kernel is gone: none of them can draw a panel. So a second
output beside it holds a PNG, which the browser takes of the page after each change, and what the
page says. A live panel hides it.
"""

import html
import re
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import anywidget
import ipywidgets as ipw
import traitlets

from apclab.widgets.cut import is_app

_NO_PANEL = (
    "No panel here? Then the kernel that it lived in is gone: it was restarted, or it died. Run "
    "the cell again; when that cut a run short, the new panel says so."
)
# a page that was loaded again does not hear of later pictures, so a picture says when it was taken
_PICTURE_OF = (
    "The panel as it was on {when}; run the cell again for a live one. When the end of its kernel "
    "cut a run short, the new panel says so."
)
_PICTURE = re.compile(r"data:image/png;base64,[A-Za-z0-9+/=]+")


class Camera(anywidget.AnyWidget):  # type: ignore[misc]  # anywidget has no types
    """Takes a picture of the figure of its panel, in the browser, whenever `asked` changes."""

    # plotly draws layers of SVG with all their style in them, one on top of the other
    _esm = """
    async function photograph(plot) {
      const layers = [...plot.querySelectorAll(".svg-container > .main-svg")];
      const {width, height} = layers[0]?.getBoundingClientRect() ?? {};
      if (!width) return null;
      const whole = layers[0].cloneNode(true);  // what one layer defines another one uses
      for (const layer of layers.slice(1)) whole.append(...layer.cloneNode(true).childNodes);
      const text = new XMLSerializer().serializeToString(whole);
      const image = new Image();
      image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(text);
      await image.decode();
      const canvas = document.createElement("canvas");
      // so wide that it is sharp, whatever the page was then
      [canvas.width, canvas.height] = [1200, Math.round(1200 * height / width)];
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      return canvas.toDataURL("image/png");
    }
    export default { render({model, el}) {
      let timer;
      const take = async (tries) => {
        const plot = el.closest(".apclab-lab")?.querySelector(".js-plotly-plot");
        const picture = plot ? await photograph(plot) : null;
        if (picture) model.send({picture});
        else if (tries) timer = setTimeout(take, 1000, tries - 1);
      };
      const soon = () => { clearTimeout(timer); timer = setTimeout(take, 700, 30); };
      model.on("change:asked", soon);
      soon();
      return () => { clearTimeout(timer); model.off("change:asked", soon); };
    } };
    """
    asked = traitlets.Int(0).tag(sync=True)


class Kept:
    """The second output of a panel's cell.

    Attributes:
        widgets: parts of the live panel, one of which hides this output.
    """

    def __init__(self) -> None:
        self._id = f"apclab-{uuid4().hex}"
        self._words = self._picture = self._when = ""
        self._shown = False
        self._camera = Camera(layout={"display": "none"})
        self._camera.on_msg(self._develop)
        hide = ipw.HTML(
            f"<style>.{self._id} {{ display: none; }}</style>", layout={"display": "none"}
        )
        self.widgets = [hide, self._camera]

    def take(self, words: str) -> None:
        """Ask for a picture of the page as it is now; `words` are what it says."""
        self._words = words
        if self._shown:
            self._camera.asked += 1

    def show(self) -> None:
        """Put the output into the cell that runs."""
        from IPython import get_ipython
        from IPython.display import HTML, display

        if get_ipython() is not None and not is_app():
            self._shown = True
            display(HTML(self._html()), display_id=self._id)  # type: ignore[no-untyped-call]

    def _develop(self, _widget: object, content: Any, _buffers: object) -> None:
        picture = content.get("picture") if isinstance(content, dict) else None
        if not self._shown or not isinstance(picture, str) or not _PICTURE.fullmatch(picture):
            return
        from IPython.display import HTML, update_display

        self._picture = picture
        self._when = f"{datetime.now(UTC):%Y-%m-%d at %H:%M} UTC"
        update_display(HTML(self._html()), display_id=self._id)  # type: ignore[no-untyped-call]

    def _html(self) -> str:
        words = html.escape(self._words)
        picture, hint = "", _NO_PANEL
        if self._picture:
            picture = f'<img src="{self._picture}" alt="{words}" style="max-width: 100%">'
            hint = _PICTURE_OF.format(when=self._when)
        return (
            f'<div class="apclab-kept {self._id}">{picture}<p><b>{words}</b></p>'
            f'<p class="apclab-gone">{hint}</p></div>'
        )
