import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_electra_rtd.data import duplicates
from hf_electra_rtd.data.duplicates import Duplicates, normalize_line


@pytest.mark.parametrize(
    ("line", "normal"),
    [
        ("The  Café, in 1984!", "the cafe in 0000"),
        ("STRASSE und Straße", "strasse und strasse"),
        ("١٢٣ \u2013 \uff14", "000 0"),
        ("a+b = $5", "ab 0"),
        ("क्या हाल है?", normalize_line("क्या हाल है")),
        ("***", ""),
    ],
)
def test_near_duplicates_have_one_normal_form(line, normal):
    assert normalize_line(line) == normal


@given(st.lists(st.sampled_from(["a", "A", "a.", "b 1", "b 2", "--", "...", "--", "c"]), max_size=40), st.booleans())
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_line_is_a_copy_but_the_first(tmp_path, monkeypatch, lines, near):
    monkeypatch.setattr(duplicates, "_SORTED", 7)
    found = Duplicates(enumerate(lines), len(lines), near, tmp_path)
    seen = set()
    for number, line in enumerate(lines):
        form = (normalize_line(line) or ("as it is", line)) if near else line
        assert found[number] == (form in seen)
        seen.add(form)
    assert list(tmp_path.iterdir()) == []
