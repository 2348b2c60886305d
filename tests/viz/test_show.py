"""What a notebook shows: one whole message, and stand-ins that behave like the widgets."""

from __future__ import annotations

import json
import threading

import plotly.graph_objects as go
import pytest

from llmlab.viz.show import PLOTLY, VIEW, Shown, boxed, live_figure, table_html
from llmlab.viz.widgets import NAMES, Plain, is_widget, toolkit


@pytest.fixture
def opened(monkeypatch):
    """States of the widgets that open, in order."""
    import comm

    seen, real = [], comm.create_comm

    def record(**args):
        seen.append(args["data"]["state"])
        return real(**args)

    monkeypatch.setattr(comm, "create_comm", record)
    return seen


def line():
    figure = go.Figure()
    figure.add_scatter(x=[1, 2, 3], y=[3, 1, 2], name="a")
    return figure


def figures(states):
    return [s for s in states if "_widget_data" in s]


def test_a_figure_reaches_the_page_whole_with_all_changes_made_before_it_was_shown(opened):
    figure = live_figure(line())
    assert figures(opened) == []
    figure.data[0].update(y=[9, 9, 9])
    figure.update_layout(title_text="late")
    bundle = Shown(figure, lambda: "", lambda: "")._repr_mimebundle_()
    (state,) = figures(opened)
    assert state["_widget_data"][0]["y"] == [9, 9, 9]
    assert state["_widget_layout"]["title"]["text"] == "late"
    assert state["_widget_layout"]["autosize"] is True
    assert bundle[VIEW]["model_id"] == figure.model_id
    assert len(figures(opened)) == 1


def test_a_figure_by_itself_has_its_table_below_it_closed_if_it_is_long(opened):
    def shown(rows):
        table = table_html("Caption", ["n"], [[str(i)] for i in range(rows)])
        Shown(live_figure(line()), lambda: table, lambda: "")._repr_mimebundle_()
        return next(s["value"] for s in opened[::-1] if "</details>" in s.get("value", ""))

    assert shown(3).startswith("<details open><summary>The same as a table</summary>")
    assert "<td" in shown(3)
    assert shown(40).startswith("<details><summary>")


def sent_by(figure):
    """What the page is told from now on."""
    sent = []
    figure.observe(lambda c: c["new"] and sent.append(c["new"]), "_py2js_restyle")
    figure.observe(lambda c: c["new"] and sent.append(c["new"]), "_py2js_relayout")
    figure.observe(lambda c: c["new"] and sent.append(c["new"]), "_py2js_update")
    return sent


def report(figure, *deltas):
    """A page says that it has drawn."""
    figure._js2py_traceDeltas = {
        "trace_deltas": list(deltas),
        "trace_edit_id": figure._last_trace_edit_id,
    }


def test_a_page_opened_at_any_time_gets_what_the_figure_holds_then():
    figure = live_figure(line())
    figure.send_whole()
    for drawn in (False, True):
        with figure.batch_update():
            figure.data[0].update(y=[5, 5, drawn])
            figure.layout.title.text = f"both {drawn}"
        assert figure._widget_data[0]["y"] == [5, 5, drawn]
        assert figure._widget_layout["title"]["text"] == f"both {drawn}"
        figure.data[0].y = [6, 6, drawn]
        figure.layout.title.text = f"each {drawn}"
        assert figure._widget_data[0]["y"] == [6, 6, drawn]
        assert figure._widget_layout["title"]["text"] == f"each {drawn}"
        report(figure)


def test_changes_wait_for_the_first_picture_and_are_then_sent_at_once():
    figure = live_figure(line())
    figure.send_whole()
    sent = sent_by(figure)
    with figure.batch_update():
        figure.data[0].update(y=[5, 5, 5], marker={"color": "red"})
        figure.layout.title.text = "newer"
    figure.layout.xaxis.title.text = "ms"
    assert sent == []  # a page that draws its first picture would lose them
    report(figure)
    (everything,) = sent
    assert everything["style_data"]["y"] == [[5, 5, 5]]
    assert everything["style_data"]["marker.color"] == ["red"]
    assert everything["layout_data"]["title.text"] == "newer"
    assert everything["layout_data"]["xaxis.title.text"] == "ms"
    report(figure)
    figure.data[0].y = [7, 7, 7]
    assert [m.get("restyle_data") for m in sent[1:]] == [{"y": [[7, 7, 7]]}]


def test_edits_from_two_threads_do_not_mix():
    """A limit is turned while a run behind the same panel draws what it has."""
    figure = live_figure(line())
    begun, turned = threading.Event(), threading.Event()

    def turn():
        begun.set()
        with figure.batch_update():
            figure.layout.title.text = "turned"
        turned.set()

    with figure.batch_update():
        figure.layout.title.text = "run"
        other = threading.Thread(target=turn)
        other.start()
        assert begun.wait(10)
        assert not turned.wait(0.05)
    assert turned.wait(10)
    other.join()
    assert figure.layout.title.text == "turned"


def test_what_anywidget_waits_for_is_small_and_loads_the_rest_by_itself():
    """It gives up on a model whose script is not there in two seconds; plotly's has 5 MB."""
    figure = live_figure(line())
    assert len(figure._esm) < 1000
    assert "_bundle" in figure._esm
    assert "newPlot" in figure.get_state()["_bundle"]


def test_a_first_picture_that_is_not_old_is_sent_nothing():
    figure = live_figure(line())
    figure.send_whole()
    sent = sent_by(figure)
    report(figure)
    assert sent == []


def test_an_old_picture_does_not_take_the_figures_own_values_away():
    figure = live_figure(line())
    figure.send_whole()
    report(figure, {"uid": figure.data[0].uid, "y": [9, 9, 9]})
    assert figure.data[0].to_plotly_json()["y"] == [3, 1, 2]


def test_a_new_height_leaves_the_width_to_the_page():
    figure = live_figure(line())
    figure.send_whole()
    report(figure)
    sent = sent_by(figure)
    figure.layout.height = 400
    with figure.batch_update():
        figure.layout.height = 500
        figure.data[0].update(y=[1, 1, 1])
    figure.layout.title.text = "no height"
    layouts = [m.get("relayout_data", m.get("layout_data")) for m in sent]
    assert [(m.get("height"), m.get("autosize")) for m in layouts] == [
        (400, True),
        (500, True),
        (None, None),
    ]


def test_a_figure_in_a_box_is_whole_too(opened):
    toolkit().VBox(boxed(live_figure(line())))
    (state,) = figures(opened)
    assert state["_widget_data"][0]["x"] == [1, 2, 3]


def test_a_figure_that_cannot_live_is_shown_still():
    bundle = Shown(line(), lambda: "<p>t</p>", lambda: "t")._repr_mimebundle_()
    assert VIEW not in bundle
    assert json.dumps(bundle[PLOTLY])  # plain data
    assert bundle["text/html"] == "<p>t</p>"
    assert "anywidget" in boxed(line())[0].value


def test_stand_ins_hold_observe_and_bound_like_the_widgets():
    for make in (Plain, toolkit().BoundedIntText):
        box, seen = make(5, min=1, max=9, description="n"), []
        box.observe(lambda c, seen=seen: seen.append((c["old"], c["new"])), names="value")
        for value in (7, 7, 100):
            box.value = value
        assert seen == [(5, 7), (7, 9)]


def test_a_menu_knows_its_options():
    for make in (Plain, toolkit().Dropdown):
        menu = make(options=["a", "b"], description="m")
        assert menu.value == "a"
        menu.value = "b"
        with pytest.raises(Exception, match=r"(?i)option|invalid"):
            menu.value = "c"


def test_every_name_the_stand_ins_offer_is_one_of_ipywidgets():
    assert all(hasattr(toolkit(), name) for name in NAMES)
    assert not is_widget(Plain(1))
    assert is_widget(toolkit().IntSlider(1))
