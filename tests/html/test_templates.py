"""Templates of reports: escaping, undefined names, forbidden characters, and long tables."""

import jinja2
import pytest

from hastore.html.templates import templates

TEMPLATES = templates("hastore.html")


def rendered(source, **values):
    """Render a page of one line."""
    return TEMPLATES.from_string(source).render(values)


def test_every_text_is_escaped_once():
    """Text that passes through a part is not escaped twice; the reports' own SVG not at all."""
    assert rendered("{{ x }}", x="<a href='&'>") == "&lt;a href=&#39;&amp;&#39;&gt;"
    parts = '{% from "parts.html.jinja" import figure, name %}'
    assert rendered(parts + "{{ name(x) }}", x="<b>") == '<td class="name">&lt;b&gt;</td>'
    assert "<svg><b/></svg>" in rendered(parts + "{{ figure(x) }}", x="<svg><b/></svg>")


def test_forbidden_characters_become_blanks():
    """These are control characters and lone surrogates; line ends and thin spaces remain."""
    assert rendered("{{ x }}", x="a\0b\x1b[31m\ud800\n1\u202f000") == "a b [31m \n1\u202f000"


def test_an_undefined_name_is_an_error():
    """A misspelt field must not leave an empty place in a report."""
    with pytest.raises(jinja2.UndefinedError):
        rendered("{{ x.missing }}", x={"found": 1})


@pytest.mark.parametrize(("count", "is_folded"), [(0, False), (10, False), (11, True)])
def test_a_long_table_is_folded(count, is_folded):
    """The number of rows is shown above it; a heading with < marks a column of names."""
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
