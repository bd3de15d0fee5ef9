"""Data from files, folders, datasets and a local cache of the Hub; columns that are recognised, or named."""

import json
import logging
import shutil

import pytest
from tests.tasks.task_sources import ROWS

from proa.tasks import TaskError, TaskRow, load_examples, load_task
from proa.tasks.preferences import load_preferences
from proa.tasks.sources import read_table

TASK_ROWS = [TaskRow("1+1=", {"answer": "2"}), TaskRow("2+2=", {"answer": "4"})]


@pytest.fixture(scope="module")
def datasets():
    return pytest.importorskip("datasets", reason="datasets is not installed")


@pytest.fixture
def quiet(monkeypatch, datasets, tmp_path):
    """Caches of `datasets` and of the Hub in a folder of the test, and no network."""
    import huggingface_hub.constants

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "datasets"


# -- files


def test_files_of_every_kind_have_the_same_rows(tmp_path, datasets):
    content = {
        "jsonl": "".join(json.dumps(row) + "\n" for row in ROWS),
        "json": json.dumps(ROWS, indent=1),
        "csv": '\ufeffprompt,answer\n"1+1=",2\n2+2=,4\n',
    }
    for kind, text in content.items():
        (tmp_path / f"sums.{kind}").write_text(text, encoding="utf-8")
    datasets.Dataset.from_list(ROWS).to_parquet(tmp_path / "sums.parquet")
    for kind in (*content, "parquet"):
        task = load_task(str(tmp_path / f"sums.{kind}"))
        assert (task.name, task.rows) == ("sums", TASK_ROWS), kind


def test_a_csv_keeps_text_as_it_is(tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text('prompt,answer\n"two\nlines, ""quoted""",007\nx,\n')
    assert load_task(file).rows == [TaskRow('two\nlines, "quoted"', {"answer": "007"}), TaskRow("x", {"answer": ""})]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", b"prompt,answer\n1,2\n3\n", r"line 3: the row does not have the 2 values"),
        ("a.csv", b"prompt,answer\n1,2,3\n", r"line 2: the row does not have the 2 values"),
        ("a.csv", "prompt\ngrün\n".encode("latin-1"), "byte 0xfc is not UTF-8"),
        ("a.csv", b'prompt\n"open\n', "not CSV"),
        ("a.parquet", b"nothing", "is not a Parquet file"),
        ("a.json", b'[{"prompt": "1"},]', "not JSON"),
        ("a.json", b"[1]", "a row is a dict"),
        ("a.csv", b"", "is empty"),
        ("a.json", b"[]", "is empty"),
    ],
)
def test_a_broken_file_is_reported_with_its_place(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TaskError, match=words):
        load_task(tmp_path / name)


# -- datasets


def test_a_saved_dataset_is_named_by_its_folder(tmp_path, datasets):
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "sums")
    task = load_task(str(tmp_path / "sums"))
    assert (task.name, task.rows) == ("sums", TASK_ROWS)
    pairs = datasets.Dataset.from_list([{"prompt": "1+1=", "chosen": "2", "rejected": "3"}])
    pairs.save_to_disk(tmp_path / "pairs")
    assert load_preferences(tmp_path / "pairs")[0].chosen == "2"


def test_a_split_is_chosen_by_name(tmp_path, datasets):
    both = datasets.DatasetDict(train=datasets.Dataset.from_list(ROWS), test=datasets.Dataset.from_list(ROWS[:1]))
    both.save_to_disk(tmp_path / "sums")
    for source in (both, dict(both), str(tmp_path / "sums")):
        assert load_task(source, split="test").rows == TASK_ROWS[:1]
    assert load_task(f"{tmp_path / 'sums'}?split=train").rows == TASK_ROWS
    assert load_task(datasets.DatasetDict(train=both["train"])).rows == TASK_ROWS  # there is one alone
    for source, split, words in (
        (str(tmp_path / "sums"), None, r"several datasets \('train', 'test'\): choose one with task.split: train"),
        (both, "tset", "no split 'tset'; did you mean 'test'"),
        (both["train"], "train", "one dataset without splits"),
        (ROWS, "train", "one dataset without splits"),
        (f"{tmp_path / 'sums'}?split=train", "test", "names the split 'train', and task.split is 'test'"),
        (f"{tmp_path / 'sums'}?splits=train", None, "unknown 'splits'; did you mean 'split'"),
    ):
        with pytest.raises(TaskError, match=words):
            load_task(source, split=split)


def test_a_folder_of_data_files_is_a_dataset(tmp_path, datasets, quiet):
    (tmp_path / "sums").mkdir()
    datasets.Dataset.from_list(ROWS).to_parquet(tmp_path / "sums" / "train.parquet")
    assert load_task(str(tmp_path / "sums")).rows == TASK_ROWS


def cached_dataset(datasets, cache, rows, work):
    """What `datasets` leaves in its cache of `openai/tiny`, configuration `main`."""
    datasets.Dataset.from_list(rows).to_parquet(work / "train.parquet")
    files = {"train": str(work / "train.parquet")}
    datasets.load_dataset("parquet", name="main", data_files=files, cache_dir=str(work / "built"))
    (info,) = (work / "built").rglob("dataset_info.json")
    target = cache / "openai___tiny" / "main" / "0.0.0" / ("0" * 40)
    target.parent.mkdir(parents=True)
    shutil.copytree(info.parent, target)
    for file in target.glob("*.arrow"):
        file.rename(target / "tiny-train.arrow")
    content = json.loads((target / "dataset_info.json").read_text())
    content |= {"dataset_name": "tiny", "config_name": "main"}
    content["splits"]["train"]["dataset_name"] = "tiny"
    (target / "dataset_info.json").write_text(json.dumps(content))


def test_a_dataset_of_the_hub_is_read_from_the_cache_without_a_network(tmp_path, datasets, quiet):
    cached_dataset(datasets, quiet, ROWS, tmp_path)
    task = load_task("hf:openai/tiny?config=main&split=train")
    assert (task.name, task.rows) == ("tiny", TASK_ROWS)
    assert load_task("hf:openai/tiny?config=main", split="train").rows == TASK_ROWS
    assert load_task("hf:openai/tiny?config=main").rows == TASK_ROWS


def test_a_local_folder_comes_before_a_name_of_the_hub(tmp_path, datasets, quiet, monkeypatch):
    cached_dataset(datasets, quiet, ROWS, tmp_path)
    monkeypatch.chdir(tmp_path)
    datasets.Dataset.from_list(ROWS[:1]).save_to_disk("openai/tiny")
    assert load_task("hf:openai/tiny").rows == TASK_ROWS[:1]


def test_a_dataset_that_is_not_there_is_reported(quiet):
    with pytest.raises(
        TaskError, match=r"hf:nobody/nothing: the Hub is not asked, .* hf download --repo-type dataset nobody"
    ):
        load_task("hf:nobody/nothing")
    with pytest.raises(TaskError, match="a dataset of the Hub is written hf:nobody/nothing"):
        load_task("nobody/nothing")


# -- columns


def test_columns_are_named_where_they_are_not_recognised():
    rows = [{"question": "1+1=", "final": "2", "id": 7}]
    with pytest.raises(
        TaskError, match=r"it has: question, final, id; .* columns: {prompt: question, completion: NAME}"
    ):
        load_examples(rows)
    with pytest.raises(TaskError, match=r"e\.g\. columns: {prompt: question}$"):
        load_examples([{"question": "1+1=", "answer": "2"}])
    columns = {"prompt": "question", "answer": "final"}
    assert load_examples(rows, columns=columns).rows == [TaskRow("1+1=", {"answer": "2", "id": 7})]
    assert load_task(rows, columns={"prompt": "question"}).rows == [TaskRow("1+1=", {"final": "2", "id": 7})]
    with pytest.raises(TaskError, match="row 0 has no column 'questoin'; did you mean 'question'"):
        load_task(rows, columns={"prompt": "questoin"})
    pairs = [{"question": "1+1=", "better": "2", "worse": "3"}]
    (pair,) = load_preferences(pairs, columns={"prompt": "question", "chosen": "better", "rejected": "worse"})
    assert (pair.prompt, pair.chosen, pair.rejected) == ("1+1=", "2", "3")


def test_data_that_fits_two_formats_is_refused_with_the_line_to_write():
    row = {"prompt": "1+1=", "completion": "2", "text": "1+1=2"}
    with pytest.raises(TaskError) as refused:
        load_examples([row])
    assert "could be read as prompt + completion or as text" in str(refused.value)
    assert "columns: {prompt: prompt, completion: completion} or columns: {text: text}" in str(refused.value)
    assert load_examples([row], columns={"text": "text"}).rows[0].columns["completion"] == "1+1=2"
    named = {"prompt": "prompt", "completion": "completion"}
    assert load_examples([row], columns=named).rows == [TaskRow("1+1=", {"completion": "2", "text": "1+1=2"})]
    with pytest.raises(TaskError, match=r"columns: {completion: completion} or columns: {answer: answer}"):
        load_examples([{"prompt": "1+1=", "completion": "2", "answer": "3"}])


def test_another_column_of_prompts_or_answers_is_not_learned():
    talk = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]
    rows = [
        ({"messages": talk, "prompt": "1", "prompt_id": "a"}, {}, TaskRow(talk, {"prompt_id": "a"})),
        ({"messages": talk, "answer": "3"}, {}, TaskRow(talk)),
        ({"text": "12", "answer": "3"}, {}, TaskRow("", {"completion": "12"})),
        (
            {"prompt": "1", "completion": "2", "answer": "3"},
            {"completion": "completion"},
            TaskRow("1", {"completion": "2"}),
        ),
    ]
    for row, columns, read in rows:
        assert load_examples([row], columns=columns).rows == [read]


def test_what_was_recognised_is_said(caplog):
    messages = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]
    with caplog.at_level(logging.INFO, "proa.tasks"):
        load_examples([{"prompt": messages[:1], "completion": messages[1:]}] * 1000)
        load_task(ROWS)
        load_examples([{"instruction": "a", "input": "b", "output": "c"}])
        load_preferences([{"prompt": "1", "chosen": "2", "rejected": "3"}])
        answers = [[messages[0], {"role": "assistant", "content": text}] for text in ("2", "3")]
        load_preferences([{"prompt": "1", "chosen": answers[0], "rejected": answers[1]}])  # as UltraFeedback has it
    assert caplog.messages == [
        "data: 1,000 rows of prompt + completion (messages), from the list",
        "data: 2 rows of prompt (text) with answer, from the list",
        "data: 1 row of instruction + output + input (text), from the list",
        "data: 1 pair of prompt + chosen + rejected (text), from the list",
        "data: 1 pair of prompt + chosen + rejected (messages), from the list",
    ]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"text": ""}, "row 0: text is some text to learn"),
        ({"conversations": [{"from": "narrator", "value": "x"}]}, "row 0: a turn is from 'narrator'"),
        ({"conversations": [{"from": "human"}]}, "row 0: conversations is a list of messages"),
        ({"messages": "hello"}, "row 0: messages is a list of messages"),
        ({"instruction": 3, "output": "x"}, "row 0: instruction is some text, not 3"),
        ({"prompt": "", "completion": "x"}, "row 0: a prompt is some text"),
    ],
)
def test_a_row_that_is_not_what_its_columns_say_is_refused(row, words):
    with pytest.raises(TaskError, match=words):
        load_examples([row])


def test_what_an_arrow_table_fills_in_is_not_data(tmp_path):
    """Every mapping of a column gets the keys of all, with None; a chat template would write `"b": null`."""
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")

    def row(name):
        call = {"role": "assistant", "content": None, "tool_calls": [{"name": "add", "arguments": {name: 1}}]}
        tools = [{"name": "add", "parameters": {"properties": {name: {"type": "integer"}}}}]
        return {"messages": [{"role": "user", "content": name}, call], "tools": tools, "notes": {"a": None, "b": name}}

    rows = [row("a"), row("b")]
    dataset = datasets.Dataset.from_list(rows)
    assert dataset[0]["tools"][0]["parameters"]["properties"]["b"] is None
    dataset.to_parquet(tmp_path / "rows.parquet")
    dataset.save_to_disk(tmp_path / "saved")
    for source in (dataset, str(tmp_path / "rows.parquet"), str(tmp_path / "saved")):
        assert read_table(source).rows == rows
