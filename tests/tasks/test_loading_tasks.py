"""Tasks from whatever a user has, and clear words for what cannot be one."""

import pickle

import pytest
from tests.tasks import task_sources

from proa.errors import ProaError
from proa.rewards import InlineRewards, RewardWorkers
from proa.tasks import Task, TaskError, TaskRow, load_examples, load_task

ROWS = task_sources.ROWS


@pytest.mark.parametrize(
    "source", [ROWS, tuple(ROWS), "tests.tasks.task_sources:ROWS", "tests.tasks.task_sources.make_rows"]
)
def test_rows_can_be_given_or_named(source):
    assert load_task(source).rows == [TaskRow("1+1=", {"answer": "2"}), TaskRow("2+2=", {"answer": "4"})]


@pytest.mark.parametrize("form", [str, lambda path: path])
def test_a_jsonl_file_is_a_task_named_after_it(tmp_path, form):
    file = tmp_path / "sums.jsonl"
    file.write_text('{"prompt": "1+1=", "answer": "2"}\n\n{"prompt": "größer", "answer": "4"}\n', encoding="utf-8")
    task = load_task(form(file))
    assert (task.name, task.rows[1]) == ("sums", TaskRow("größer", {"answer": "4"}))


@pytest.mark.parametrize(
    ("line", "words"), [('{"prompt": "x"', "line 3: not JSON"), ('["x"]', "line 3: expected one JSON object per line")]
)
def test_a_bad_line_is_named_with_its_number(tmp_path, line, words):
    file = tmp_path / "bad.jsonl"
    file.write_text(f'{{"prompt": "a"}}\n\n{line}\n')
    with pytest.raises(TaskError, match=words):
        load_task(file)


def test_the_prompt_may_have_another_column():
    rows = load_task([{"problem": "p", "solution": "s"}], prompt_column="problem").rows
    assert rows == [TaskRow("p", {"solution": "s"})]


def test_a_task_is_taken_as_it_is():
    task = Task("mine", [TaskRow("p")])
    assert load_task(task) is task


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ([], "the list is empty"),
        ([{"prompt": "a"}, {"promt": "b"}], "row 1 has no column 'prompt'; did you mean 'promt'"),
        ([{"text": "a"}], r"it has: text; known: prompt; instruction\); .* columns: {prompt: text}"),
        (["a"], "a row is a dict like"),
        ([{"prompt": ""}], "a prompt is some text"),
        ([{"prompt": 3}], "a prompt is some text"),
        ([{"prompt": [{"content": "a"}]}], "chat messages like"),
        ([{"prompt": "a", "completions": "b"}], "may not be called 'completions'"),
        ("sort_digit", "unknown task 'sort_digit'; did you mean 'sort_digits'"),
        ("no_such_file.jsonl", "there is no file 'no_such_file.jsonl'"),
        ("tests.tasks.task_sources:ROW", "has no 'ROW'; did you mean 'ROWS'"),
        ("no_such_package.data:rows", "no module 'no_such_package'"),
        (42, "42 is not a task"),
    ],
)
def test_what_is_no_task_is_refused_in_the_users_words(source, words):
    with pytest.raises(TaskError, match=words) as raised:
        load_task(source)
    assert isinstance(raised.value, ProaError)
    pickle.loads(pickle.dumps(raised.value))


def test_a_hugging_face_dataset_is_a_task():
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    task = load_task(datasets.Dataset.from_list(ROWS))
    assert task.rows == load_task(ROWS).rows


def test_splits_and_streams_of_hugging_face_are_refused_with_the_remedy():
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    dataset = datasets.Dataset.from_list(ROWS)
    with pytest.raises(TaskError, match=r"several datasets \('train', 'test'\).*dataset\['train'\]"):
        load_task(datasets.DatasetDict(train=dataset, test=dataset))
    with pytest.raises(TaskError, match="streaming"):
        load_task(dataset.to_iterable_dataset())


@pytest.fixture(scope="module")
def gym():
    reasoning_gym = pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")
    return reasoning_gym.create_dataset("basic_arithmetic", size=4, seed=1)


def test_a_reasoning_gym_dataset_brings_its_reward(gym):
    task = load_task(gym)
    assert task.name == "basic_arithmetic"
    assert [row.prompt for row in task.rows] == [gym[index]["question"] for index in range(4)]
    answers = [row.columns["answer"] for row in task.rows]
    given = [answers[0], f"I think <answer>{answers[1]}</answer>.", "no idea", f"  {answers[3]}\n"]
    columns = {name: [row.columns[name] for row in task.rows] for name in ("answer", "metadata")}
    scores = InlineRewards(task.reward).score([row.prompt for row in task.rows], given, columns)
    assert [score.value == 1.0 for score in scores] == [True, True, False, True]
    assert scores[0].parts.keys() == {"score_answer"}


def test_a_reasoning_gym_dataset_is_named_with_its_settings(gym):
    named = load_task("reasoning_gym:basic_arithmetic?size=4&seed=1")
    assert (named.name, named.rows) == ("basic_arithmetic", load_task(gym).rows)
    assert named.reward is not None
    fewer = load_task("reasoning_gym:basic_arithmetic?size=3&seed=1&max_terms=2&operators=[+]")
    assert len(fewer.rows) == 3
    assert all(row.columns["metadata"]["num_terms"] == 2 for row in fewer.rows)


def test_one_without_a_seed_is_the_same_each_time(gym):
    assert load_task("reasoning_gym:basic_arithmetic").rows == load_task("reasoning_gym:basic_arithmetic?seed=0").rows


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("reasoning_gym:basic_arithmetics", "no dataset 'basic_arithmetics'; did you mean 'basic_arithmetic'"),
        ("reasoning_gym:zebra9", "no dataset 'zebra9': there are"),
        ("reasoning_gym:basic_arithmetic?sizes=4", "cannot be created: .*'sizes'"),
        ("reasoning_gym:basic_arithmetic?size=many", "size must be an integer, not 'many'"),
        ("reasoning_gym:basic_arithmetic?seed=null", "seed must be an integer, not 'null'"),
        ("reasoning_gym:basic_arithmetic?seed=", "seed must be an integer, not ''"),
        ("reasoning_gym:basic_arithmetic?seed=1e3", "seed must be an integer, not '1e3'"),
        ("reasoning_gym:", "no dataset '': there are"),
        ("reasoning_gym:basic_arithmetic?min_terms=9&max_terms=2", "cannot be created"),
    ],
)
def test_a_reasoning_gym_dataset_that_cannot_be_made_is_told(gym, source, message):
    with pytest.raises(TaskError, match=message):
        load_task(source)


def test_the_reward_of_a_reasoning_gym_dataset_travels_to_workers(gym):
    row = load_task(gym).rows[0]
    with RewardWorkers(load_task(gym).reward, timeout=600) as rewards:
        columns = {name: [value] for name, value in row.columns.items()}
        score = rewards.score([row.prompt], [row.columns["answer"]], columns)[0]
        assert score.value == 1.0
        assert rewards._workers[0].pid is not None


def test_hostile_lines_are_told_in_a_sentence_with_their_number(tmp_path):
    path = tmp_path / "rows.jsonl"
    deep = b'{"prompt": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    for line, words in {
        "{'prompt': 'grün'}".encode("latin-1"): "byte 0xfc is not UTF-8: save the file as UTF-8",
        '{"prompt": "x"}'.encode("utf-16"): "byte 0xff is not UTF-8",
        deep: "this is nested too deep",
        b'{"prompt": "\0"}': "not JSON",
    }.items():
        path.write_bytes(b'{"prompt": "a"}\n' + line + b"\n")
        with pytest.raises(TaskError, match=f"rows.jsonl, line 2: .*{words}") as refused:
            load_task(path)
        assert len(str(refused.value)) < 300 + len(str(path))


def test_a_column_that_others_often_call_so_is_named_in_the_line_to_write():
    with pytest.raises(TaskError, match=r"e.g. columns: \{prompt: question\}"):
        load_task([{"question": "2+2=", "answer": "4"}])
    with pytest.raises(TaskError, match=r"e.g. columns: \{prompt: problem, completion: solution\}"):
        load_examples([{"problem": "2+2=", "solution": "4"}])
    with pytest.raises(TaskError, match=r"e.g. columns: \{output: response\}"):
        load_examples([{"instruction": "Add.", "context": "2+2", "response": "4"}])
