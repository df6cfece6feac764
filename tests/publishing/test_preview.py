import base64
import html.parser

import pytest

from hf_electra_rtd.publishing.preview import write_preview


CARD = """---
license: apache-2.0
language:
- en
model-index:
- name: tiny
  results:
  - task:
      type: text-classification
    dataset:
      name: MRPC
      type: nyu-mll/glue
      split: validation
    metrics:
    - type: accuracy
      value: 0.6936
      name: Accuracy (median of 3 runs)
---

# A card <b>with</b> signs

| a | b |
| - | -: |
| 1 | 2 |

![Curves](curves.png)
"""


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.pictures, self.text = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.pictures += [value for name, value in attributes if name == "src"]

    def handle_data(self, data):
        self.text += data


def test_a_page_shows_metadata_body_and_picture_in_one_file(tmp_path):
    (tmp_path / "curves.png").write_bytes(b"\x89PNG picture")
    path = write_preview(CARD, tmp_path / "card.html")
    page = Page(path.read_text())
    assert page.pictures == ["data:image/png;base64," + base64.b64encode(b"\x89PNG picture").decode()]
    assert page.tags.count("table") == 3
    for text in ("apache-2.0", "MRPC / validation", "Accuracy (median of 3 runs)", "0.6936"):
        assert text in page.text
    assert "link" not in page.tags
    assert "script" not in page.tags


def test_raw_html_is_shown_and_not_obeyed(tmp_path):
    text = CARD.replace("apache-2.0", "<i>none</i>") + "\n<script>alert(1)</script> [x](javascript:alert(1))\n"
    page = Page(write_preview(text, tmp_path / "card.html").read_text())
    assert not {"b", "i", "script", "a"} & set(page.tags)
    assert "<script>alert(1)</script>" in page.text
    assert "<i>none</i>" in page.text


def test_pictures_of_another_directory_are_found_there_and_nowhere_above(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "curves.png").write_bytes(b"here")
    (tmp_path / "secret.png").write_bytes(b"above")
    text = "![a](curves.png) ![b](../secret.png) ![c](none.png)"
    page = Page(write_preview(text, tmp_path / "card.html", pictures=run).read_text())
    assert [source.partition(":")[0] for source in page.pictures] == ["data", "../secret.png", "none.png"]


def test_front_matter_that_cannot_be_read_is_told(tmp_path):
    with pytest.raises(ValueError, match="no YAML"):
        write_preview("---\na: [\n---\n# x\n", tmp_path / "card.html")
