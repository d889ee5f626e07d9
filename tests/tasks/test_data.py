"""Rows of every file format and shape: read as they are meant, or refused with file and row."""

import csv
import json

import pytest

from scalerl.errors import InputError
from scalerl.tasks.data import RowsTask, read_rows
from scalerl.tasks.functions import FunctionTask

ROWS = [{"prompt": "1+1?", "answer": "2"}, {"prompt": "2+2?\nnaïve", "answer": "4"}]


class Plain(RowsTask):
    def score(self, prompt, completion):
        return completion == prompt.answer, "compared"


def prompts(path):
    return Plain("plain", str(path)).prompts()


def refusal(path):
    with pytest.raises(InputError) as problem:
        prompts(path)
    assert "\n" not in str(problem.value)
    return str(problem.value)


def written(path, rows):
    kind = path.name.partition(".")[2]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    if kind.startswith("array"):
        text = json.dumps(rows, indent=2 if "indent" in kind else None, ensure_ascii=False)
    if kind.endswith(("csv", "tsv")):
        with path.open("w", newline="", encoding="utf-8") as file:
            mark = "," if kind.endswith("csv") else "\t"
            out = csv.DictWriter(file, list(rows[0]), delimiter=mark)
            out.writeheader()
            out.writerows(rows)
        text = path.read_text(encoding="utf-8")
    path.write_text(text, encoding="utf-8-sig" if "bom" in kind else "utf-8")
    return path


@pytest.mark.parametrize(
    "name",
    ["a.jsonl", "a.json", "a.bom.jsonl", "a.array.json", "a.array.indent.json", "a.array.bom.json",
     "a.array.jsonl", "a.csv", "a.bom.csv", "a.tsv", "a.txt"],
)  # fmt: skip
def test_a_file_is_read_whatever_it_is_called(name, tmp_path):
    found = prompts(written(tmp_path / name, ROWS))
    assert [(p.question, p.answer) for p in found] == [tuple(row.values()) for row in ROWS]


def test_parquet_with_structs_is_read(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [{"prompt": [{"role": "user", "content": [{"type": "text", "text": f"{i}?"}]}],
             "reward_model": {"style": "rule", "ground_truth": str(i)},
             "extra_info": {"index": i, "split": "train"}} for i in range(3)]  # fmt: skip
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    found = prompts(tmp_path / "a.parquet")
    assert [p.question[0]["content"] for p in found] == ["0?", "1?", "2?"]
    assert [p.answer for p in found] == ["0", "1", "2"]
    assert found[2].columns["extra_info"] == {"index": 2, "split": "train"}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.json", '[{"prompt": "1?", "answer": "1"}, 5]', "a.json row 2 is not an object"),
        ("a.json", '[{"prompt": "1?"},\n{"prompt" "2?"}]', "a.json:2 is not JSON"),
        ("a.json", '{\n"prompt": "1?"\n}', "a.json:1 is not JSON"),
        (
            "a.csv",
            "prompt,answer\n1?,1\n2?,2,3\n",
            "a.csv row 2 has more cells than",
        ),
        ("a.csv", 'prompt,answer\n1?,1\n"2?,2\n', "a.csv row 2 is not CSV"),
        ("a.csv", "prompt,answer\n1?,1\n,2\n", "a.csv row 2 has no question"),
        ("a.csv", "prompt,answer\n1?,1\n2?,\n", "a.csv row 2 has no answer"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_row(name, text, said, tmp_path):
    (tmp_path / name).write_text(text)
    assert said in refusal(tmp_path / name)


def test_a_file_that_is_not_utf_8_is_one_line(tmp_path):
    (tmp_path / "a.jsonl").write_bytes('{"prompt": "é"}'.encode("utf-16"))
    assert "save it as UTF-8 text" in refusal(tmp_path / "a.jsonl")


def test_json_keeps_the_line_ends_of_unicode_inside_its_texts(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "one\u2028two", "answer": "1"}\n', encoding="utf-8")
    assert next(iter(read_rows(str(path))))["prompt"] == "one\u2028two"


# --- chat messages ---


def asked(content, path):
    row = {"prompt": [{"role": "user", "content": content}], "answer": "1"}
    path.write_text(json.dumps({"prompt": "0?", "answer": "0"}) + "\n" + json.dumps(row))
    return path


def test_typed_parts_are_the_text_they_hold(tmp_path):
    parts = [{"type": "text", "text": "How many?"}, {"type": "text", "text": "A B C"}]
    found = prompts(asked(parts, tmp_path / "a.jsonl"))[1]
    assert found.question == ({"role": "user", "content": "How many?\nA B C"},)
    plain = prompts(asked("How many?\nA B C", tmp_path / "a.jsonl"))[1]
    assert found.id == plain.id  # on the same side of the split


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([{"type": "text", "text": "?"}, {"type": "image", "image": "x.png"}], "type 'image'"),
        ([{"type": "image_url", "image_url": {"url": "x"}}], "type 'image_url'"),
        ([{"type": "text", "text": None}], "is not text"),
        (None, "is not text"),
    ],
)
def test_what_is_no_text_is_refused_with_its_row(content, said, tmp_path):
    problem = refusal(asked(content, tmp_path / "a.jsonl"))
    assert "a.jsonl row 2" in problem
    assert said in problem


# --- further columns ---


def test_columns_named_like_a_question_reach_the_reward_function(tmp_path):
    row = {"prompt": "Solve: 1+1?", "question": "1+1?", "problem": "P7", "difficulty": 3,
           "answer": "2"}  # fmt: skip
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(row))
    prompt = FunctionTask("json:dumps", str(path)).prompts()[0]
    assert prompt.question == "Solve: 1+1?"
    assert prompt.columns == {"question": "1+1?", "problem": "P7", "difficulty": 3}
    row.pop("prompt")
    path.write_text(json.dumps(row))
    prompt = FunctionTask("json:dumps", str(path)).prompts()[0]
    assert (prompt.question, prompt.columns) == ("P7", {"question": "1+1?", "difficulty": 3})


def test_a_dataset_of_the_hub_is_never_asked_to_run_code(monkeypatch):
    datasets = pytest.importorskip("datasets")
    seen = {}

    def load(source, **options):
        seen.update(options)
        return [{"prompt": "1?", "answer": "1"}]

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert len(prompts("somebody/something")) == 1
    assert seen == {"split": "train", "trust_remote_code": False}
