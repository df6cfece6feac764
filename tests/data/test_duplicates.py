import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_electra_rtd.data import duplicates
from hf_electra_rtd.data.duplicates import Duplicates, check_duplicates, normalize_line


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
def test_the_first_of_equal_lines_stays_and_every_other_is_told(tmp_path, monkeypatch, lines, near):
    monkeypatch.setattr(duplicates, "_BUFFERED", 7)
    monkeypatch.setattr(duplicates, "_BITS", 2)
    found = Duplicates(iter(lines), len(lines), "near" if near else "exact", tmp_path)
    exact, normal = set(), set()
    for number, line in enumerate(lines):
        form = normalize_line(line) or ("as it is", line)
        expected = 1 if line in exact else 2 if near and form in normal else 0
        assert found.kind(number) == expected
        exact.add(line)
        normal.add(form)
    assert list(tmp_path.iterdir()) == []


def test_a_kind_of_duplicates_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match=r"no drop_duplicates='fuzzy'.* Known are: no, exact, near"):
        check_duplicates("fuzzy")
