"""Templates of reports: what is escaped, what is refused, and what no page may hold."""

import jinja2
import pytest

from hastore.html.templates import templates

TEMPLATES = templates("hastore.html")


def rendered(source, **values):
    """A page of one line."""
    return TEMPLATES.from_string(source).render(values)


def test_every_text_is_escaped_once():
    """Also one that went through a piece of a page; an SVG of our own is left as it is."""
    assert rendered("{{ x }}", x="<a href='&'>") == "&lt;a href=&#39;&amp;&#39;&gt;"
    parts = '{% from "parts.html.jinja" import figure, name %}'
    assert rendered(parts + "{{ name(x) }}", x="<b>") == '<td class="name">&lt;b&gt;</td>'
    assert "<svg><b/></svg>" in rendered(parts + "{{ figure(x) }}", x="<svg><b/></svg>")


def test_what_no_document_may_hold_is_blank():
    """Control characters and halves of surrogates; lines and thin spaces stay."""
    assert rendered("{{ x }}", x="a\0b\x1b[31m\ud800\n1\u202f000") == "a b [31m \n1\u202f000"


def test_a_name_that_is_not_there_is_an_error():
    """A misspelt field is not an empty place in a report."""
    with pytest.raises(jinja2.UndefinedError):
        rendered("{{ x.missing }}", x={"found": 1})


@pytest.mark.parametrize(("count", "is_folded"), [(0, False), (10, False), (11, True)])
def test_a_long_table_is_folded_away(count, is_folded):
    """Its rows are counted above it; a head with < is of names."""
    source = (
        '{% from "parts.html.jinja" import number, numbers %}'
        '{% call(row) numbers("All", ["<key", "puts"], rows) %}'
        "<tr>{{ number(row) }}</tr>{% endcall %}"
    )
    page = rendered(source, rows=range(count))
    assert page.count("<tr>") == count + 1
    assert ("<details>" in page) is (f"({count} rows)" in page) is is_folded
    assert '<th scope="col" class="name">key</th>' in page
    assert '<th scope="col" class="number">puts</th>' in page
