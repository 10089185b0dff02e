"""Files of prompts: their forms, what is left out, and one sentence for each fault."""

import json

import pytest

from debias_sd.prompts.files import read_prompt_file


def test_a_text_file_has_one_prompt_a_line(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_bytes("\ufeffa cat\r\n\n  two dogs \na cat\n".encode())
    found = read_prompt_file(path)
    assert [(p.id, p.text) for p in found.prompts] == [("0", "a cat"), ("2", "two dogs"), ("3", "a cat")]
    assert (found.empty, found.repeated) == (1, 1)
    assert found.first(2).texts == ["a cat", "two dogs"]
    assert found.first(None) == found


def test_json_lines_keep_their_row_and_their_id(tmp_path):
    rows = [{"id": 7, "prompt": "a"}, {"caption": "b\u2028c", "tag": "colors"}, {"text": " "}]
    lines = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (tmp_path / "a.jsonl").write_text(lines, encoding="utf-8")
    (tmp_path / "a.json").write_text(json.dumps(rows), encoding="utf-8")
    for name in ("a.jsonl", "a.json"):
        found = read_prompt_file(tmp_path / name)
        assert [(p.id, p.text) for p in found.prompts] == [("7", "a"), ("1", "b\u2028c")]
        assert found.prompts[1].row["tag"] == "colors"
        assert found.empty == 1


def test_a_folder_has_one_prompt_a_file_in_the_order_of_its_numbers(tmp_path):
    for name, text in (("10", "ten\nmore"), ("9", "nine"), ("COCOval2014000000026", "coco"), ("empty", "")):
        (tmp_path / f"{name}.txt").write_text(text)
    found = read_prompt_file(tmp_path)
    assert [(p.id, p.text) for p in found.prompts] == [
        ("9", "nine"),
        ("10", "ten more"),
        ("COCOval2014000000026", "coco"),
    ]
    assert found.empty == 1


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.txt", b"", "a.txt holds no prompt; write one a line"),
        ("a.txt", b"\n \n", "a.txt holds no prompt"),
        ("a.txt", b"a\xff\xfe", "a.txt is not UTF-8 text .byte 1 cannot be read.; save it as UTF-8"),
        ("a.jsonl", b'{"prompt": "a"}\n{"pro', "line 2 of .*a.jsonl is not JSON; correct it"),
        ("a.jsonl", b'{"words": "a"}', "object 1 of .*a.jsonl has no text in prompt, caption, text"),
        ("a.jsonl", b"[1, 2]", "object 1 of .*a.jsonl has no text"),
        ("a.json", b"[" * 100_000, "a.json is not JSON"),
        (
            "a.jsonl",
            b'{"prompt": "\\ud800"}',
            "prompt 0 of .*a.jsonl cannot be read: .* characters that are not valid text",
        ),
        ("b.txt", None, "file of prompts .*b.txt cannot be read .No such file"),
    ],
)
def test_a_fault_is_one_sentence(tmp_path, name, content, sentence):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=sentence) as fault:
        read_prompt_file(tmp_path / name)
    assert "\n" not in str(fault.value)
