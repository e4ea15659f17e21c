"""The folder of pages: its files. An author's text cannot lead out of it or become code."""

import json
import re

import pytest

from flashinfer_bench.report.pages.texts import clean, colour, id_of, to_script
from tests.report.pages.sets import ATTACKS, hostile_set, usual_set, write_pages

CALL = re.compile(r'fibReport\.keep\("([a-z0-9_]+)", ("(?:[^"\\]|\\.)*")\);\n', re.ASCII)


def read(folder, *names):
    """Return the data of the overview, of a definition, or of a solution."""
    key = f"{'ds'[len(names) - 1]}_{id_of(*names)}" if names else "overview"
    found = CALL.fullmatch((folder / "data" / f"{key}.js").read_text(encoding="ascii"))
    assert found[1] == key
    return json.loads(json.loads(found[2]))


@pytest.mark.parametrize("attack", ATTACKS[:-1])
def test_a_data_script_is_one_call_with_one_string(attack):
    script = to_script("overview", {"text": attack, attack: 1})
    assert script.isascii()
    assert not set("<>&\u2028") & set(script)
    assert json.loads(json.loads(CALL.fullmatch(script)[2])) == clean({"text": attack, attack: 1})


def test_texts_are_truncated_and_show_control_characters():
    assert clean("a\u202eb\tc\r\nd\x1b") == "a\\u202eb\tc\n\nd\\x1b"
    assert clean("x" * 64_005) == "x" * 64_000 + "\n… cut: 5 more characters"
    given = {"\u202e": ["x\ny", 1 / 3, float("nan"), True, 2**53 - 1, 4212057621846859666]}
    assert clean(given) == {"\\u202e": ["x\ny", 0.333333, None, True, 2**53 - 1, "4212057621846859666"]}


def test_a_coloured_source_is_its_text():
    source = 'def run(x):\n    """</script>"""\n    return x  # <b>\n'
    pieces = colour("main.py", source)
    assert "".join(text for _, text in pieces) == source
    assert {"k", "f", "s", "c"} <= {kind for kind, _ in pieces}


def test_a_folder_has_names_of_digits_and_its_page_forbids_inline_code_and_network(tmp_path):
    folder = write_pages(tmp_path / "pages", hostile_set())
    names = {path.name for path in (folder / "data").iterdir()} - {"overview.js"}
    assert len(names) == 2 * len(ATTACKS)
    assert all(re.fullmatch(r"[ds]_[0-9a-f]{16}\.js", name) for name in names)
    write_pages(folder, usual_set())
    assert (len(list((folder / "data").iterdir())), len(list(tmp_path.iterdir()))) == (1 + 3 + 5, 1)
    page = (folder / "index.html").read_text()
    assert "a &lt;set&gt;" in page
    assert "default-src 'none'" in page
    assert "unsafe" not in page
    assert re.findall(r"<script(?! src=)|\son\w+=|https?:", page) == []
    assert (folder / "assets" / "uplot_license.txt").read_text().startswith("The MIT License")


def test_the_data_contain_the_latest_verdicts(tmp_path):
    trace_set = usual_set()
    trace_set.traces["double"][0].evaluation.extra["measurement"].update(meaningful=False, reason="interpreted")
    trace_set.baseline_author = "author of slow"
    folder = write_pages(tmp_path / "pages", trace_set)
    scores = {(row["author"], row["hardware"]): row["score"] for row in read(folder)["ranking"]}
    assert scores["author of fast", "odd device"] == 1.5
    broken = read(folder, "double", "broken")
    assert (broken["verdicts"][0]["reason"], broken["logs"]) == ("boom", ["boom\nline two"])
    assert read(folder, "double", "ghost")["text"] is None
    verdict = read(folder, "double", "fast")["verdicts"][0]
    assert (verdict["reason"], verdict["n"], verdict["ranked"]) == ("interpreted", [None] * 8, False)
