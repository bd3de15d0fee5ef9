"""Secrets stay out of what is written, known by key or by value; what only looks like one stays in."""

import json
import threading
import timeit
from collections import OrderedDict
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from pydantic import BaseModel
from transformers import LlamaConfig

from proa.config import DetachedConfig
from proa.data.loop import ManifestRow
from proa.errors import SettingError
from proa.record.durable import Disk
from proa.record.live import ActorView, LiveFile, LiveView
from proa.record.manifest import Manifest
from proa.record.run_folder import RunFolder, json_line, json_text
from proa.record.secrets import REDACTED, Redactor, expand_environment, is_secret_key, redacted_keys

SECRET_KEYS = [
    "token", "TOKEN", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "hfToken", "use_auth_token", "access_token",
    "access_tokens", "api_tokens", "user_token", "AWS_SESSION_TOKEN", "secret", "client_secret", "clientSecret",
    "secrets", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "password", "PGPASSWORD", "db-password", "passwords",
    "passwd", "MYSQL_PWD", "passphrase", "api_key", "apikey", "apiKey", "APIKey", "x-api-key", "OPENAI_API_KEY",
    "api_keys", "access_key", "private_key", "ssh_private_key", "signing_key", "encryption_key", "credential",
    "credentials", "Authorization", "Proxy-Authorization", "auth", "cookie", "jwt", "webhook_url",
    "AZURE_STORAGE_CONNECTION_STRING", "key", "KEY", "wandb_key", "wandbKey", "hf_key", "license-key",
    "callbacks.0.params.key", "pass", "db_pass", "dbPass", "smtp-pass", "SSHPASS", "pwd", "passcode", "session",
    "http_session", "dsn", "SENTRY_DSN", "otp", "GITHUB_PAT", "cred", "OPENAI_API_KEY_2", "api_key2",
    "secret_value", "auth_header", "credentials_json", "private_key_pem", "slack_webhook", "bearer", "basic_auth",
]  # fmt: skip
OTHER_KEYS = [
    "max_new_tokens", "token_budget", "tokenizer", "tokens", "completion_tokens", "eos_token_id", "eos_token",
    "pad_token", "bos_token", "unk_token", "mask_token", "image_token", "decoder_start_token",
    "additional_special_tokens", "next_token", "loss_per_token", "tokens_per_second", "PWD", "OLDPWD",
    "password_length", "secret_length", "state_key", "keys", "keyboard", "author", "authors", "authority",
    "XAUTHORITY", "SSH_AUTH_SOCK", "private_key_path", "api_key_file", "TOKENIZERS_PARALLELISM",
    "AWS_WEB_IDENTITY_TOKEN_FILE", "tokenizer_config", "secretary", "passes", "cookiecutter", "token_type",
    "key_column", "key_size", "num_key_value_heads", "key_value", "top_k", "keep", "answer_key", "prompt_key",
    "sort_key", "primary_key", "public_key", "cache_key", "passing", "pass@1", "forward_pass", "first_pass",
    "bypass", "compass", "passed", "max_pass", "sessions", "session_length", "DESKTOP_SESSION", "monkey", "turkey",
    "hockey_score", "donkey", "authored", "dsn_count", "cookie_count", "token_count", "token_ids", "token_value",
]  # fmt: skip


def test_a_key_that_names_a_secret_is_known():
    assert [key for key in SECRET_KEYS if not is_secret_key(key)] == []


def test_a_key_that_only_sounds_like_one_is_left_alone():
    assert [key for key in OTHER_KEYS if is_secret_key(key)] == []


def keys_of(section: type[BaseModel]) -> Iterator[str]:
    for name, field in section.model_fields.items():
        yield name
        for kind in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from keys_of(kind)


def test_no_key_of_ours_and_none_of_a_models_configuration_names_a_secret():
    ours = [*keys_of(DetachedConfig), *LiveView(0.0).to_dict(), *ActorView("a", "maker").__slots__]
    ours += [*ManifestRow("a", 0, 0).as_dict(), *LlamaConfig().to_dict()]
    assert "max_new_tokens" in ours
    assert "eos_token_id" in ours
    assert [key for key in ours if is_secret_key(key)] == []


def test_by_key_every_secret_in_a_nested_value_is_replaced_and_nothing_else():
    given = {
        "callbacks": [
            {"kind": "chat", "params": {"api_key": "k-1", "pin": 7, "auth": {"user": "me", "numbers": [1, 2]}}}
        ],
        "credentials": ["a", "b"],
        "password": 12345678,
        "max_new_tokens": 8,
        "eos_token": "</s>",
    }
    kept = json.dumps(given)
    assert Redactor({}).redact(given) == {
        "callbacks": [
            {
                "kind": "chat",
                "params": {
                    "api_key": REDACTED,
                    "pin": 7,
                    "auth": {"user": REDACTED, "numbers": [REDACTED, REDACTED]},
                },
            }
        ],
        "credentials": [REDACTED, REDACTED],
        "password": REDACTED,
        "max_new_tokens": 8,
        "eos_token": "</s>",
    }
    assert json.dumps(given) == kept


@pytest.mark.parametrize("value", [None, "", True, False, 0.25])
def test_what_no_secret_can_be_stays_under_any_key(value):
    assert Redactor({}).redact({"auth": value, "evals": {"password": {"exact": value}}}) == {
        "auth": value,
        "evals": {"password": {"exact": value}},
    }


def test_a_secret_of_the_environment_is_replaced_wherever_a_text_quotes_it():
    redactor = Redactor({"HF_TOKEN": "hf_planted_1", "HOME": "/home/me", "API_KEY": "shorter"})
    given = {"stop_reason": "401: (hf_planted_1)", "why": ["hf_planted_1", "/home/me is shorter"], "hf_planted_1": 1}
    assert redactor.redact(given) == {
        "stop_reason": "401: (REDACTED)",
        "why": [REDACTED, "/home/me is shorter"],
        REDACTED: 1,
    }


def test_a_variable_that_is_set_later_is_known_and_one_that_is_gone_is_not_forgotten():
    environment = {}
    redactor = Redactor(environment)
    assert redactor.redact("hf_planted_2") == "hf_planted_2"
    environment["HF_TOKEN"] = "hf_planted_2"
    assert redactor.redact("hf_planted_2") == REDACTED
    del environment["HF_TOKEN"]
    assert redactor.redact({"note": "hf_planted_2"}) == {"note": REDACTED}


def test_a_secret_of_the_configuration_is_known_by_its_value_too():
    redactor = Redactor({})
    redactor.remember({"callbacks": [{"params": {"token": "hunter2", "password": 31415926, "room": "public room"}}]})
    redactor.remember({"credentials": {"pair": ["first-half", "other-half"]}})
    said = "hunter2 and 31415926, first-half and other-half, in the public room"
    assert redactor.redact({"error": said}) == {
        "error": "REDACTED and REDACTED, REDACTED and REDACTED, in the public room"
    }


def test_a_short_secret_of_the_configuration_is_known_by_its_key_alone():
    redactor = Redactor({})
    redactor.remember({"token": "run"})
    assert redactor.redact({"token": "run", "status": "running"}) == {"token": REDACTED, "status": "running"}


def test_of_a_header_the_part_behind_the_scheme_is_known_too():
    redactor = Redactor({})
    redactor.remember({"headers": {"Authorization": "Bearer abc.def.ghi"}, "auth": "Basic abc"})
    assert redactor.redact("token abc.def.ghi, abc") == "token REDACTED, abc"


def test_the_longer_of_two_secrets_is_replaced_whole():
    redactor = Redactor({"A_TOKEN": "planted-3", "B_TOKEN": "planted-3-and-more"})
    assert redactor.redact("x planted-3-and-more y planted-3") == "x REDACTED y REDACTED"


@pytest.mark.parametrize(
    "secret", ['quote"in it', "both ' and \"", "back\\slash", "two\nlines", "umlaut-ü-ö", "with/slash+plus"]
)
def test_a_secret_is_found_as_python_json_and_urls_write_it(secret):
    redactor = Redactor({"MY_SECRET": secret})
    for text in (secret, repr(secret)[1:-1], json.dumps(secret)[1:-1], quote(secret, safe="")):
        assert redactor.redact(f"<{text}>") == "<REDACTED>"


def test_a_variable_that_is_no_valid_text_disturbs_nobody():
    redactor = Redactor({"MY_TOKEN": "bytes \udcff here"})
    assert redactor.redact("bytes \udcff here") == REDACTED


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("https://me:pass@host/x", "https://REDACTED@host/x"),
        ("https://ghp_123@host", "https://REDACTED@host"),
        ("to redis://:p:w@host:1 and s3://k:v@bucket", "to redis://REDACTED@host:1 and s3://REDACTED@bucket"),
        ("https://me:p@ss@host", "https://REDACTED@host"),
        ("https://host/a@b", "https://host/a@b"),
        ("see https://host, or write to me@host", "see https://host, or write to me@host"),
        ("me@host", "me@host"),
    ],
)
def test_what_a_url_says_before_its_host_is_replaced(text, clean):
    assert Redactor({}).redact(text) == clean


def test_the_password_of_a_configured_url_is_known_without_it_and_the_users_name_is_not():
    redactor = Redactor({})
    redactor.remember({"store": "https://username:pass%2Fword@host"})
    assert redactor.redact("wrong password pass/word (pass%2Fword) of username") == (
        "wrong password REDACTED (REDACTED) of username"
    )


def test_the_secrets_of_a_urls_query_are_replaced_and_its_other_parts_stay():
    for text, clean in {
        "https://host/x?token=abc&page=2&api_key=def": "https://host/x?token=REDACTED&page=2&api_key=REDACTED",
        "GET /v1/models?key=AIza-1 failed": "GET /v1/models?key=REDACTED failed",
        "'https://blob/c?sv=2024&sig=a%2Bb%3D'": "'https://blob/c?sv=2024&sig=REDACTED'",
        "http://host/#access_token=x;y=1": "http://host/#access_token=REDACTED;y=1",
        "https://h/?X-Amz-Signature=1f&api%5Fkey=2": "https://h/?X-Amz-Signature=REDACTED&api%5Fkey=REDACTED",
        "https://host/x?max_new_tokens=8&pad_token=0": "https://host/x?max_new_tokens=8&pad_token=0",
        "is a=b? then c=d": "is a=b? then c=d",
    }.items():
        assert Redactor({}).redact(text) == clean
        assert Redactor({}).redact_values(text) == clean


def test_the_secret_of_a_configured_urls_query_is_known_without_the_url():
    redactor = Redactor({})
    redactor.remember({"store": "https://host/x?page=123456789&token=ab%2Fcdefgh"})
    assert redactor.redact("ab/cdefgh and ab%2Fcdefgh of page 123456789") == "REDACTED and REDACTED of page 123456789"


def test_headers_and_quoted_pairs_in_a_text_are_replaced_and_prose_stays():
    for text, clean in {
        "Authorization: Bearer abc.def": "Authorization: REDACTED",
        "{'authorization': 'Basic dXNlcjpw'}": "{'authorization': 'REDACTED'}",
        "sent Bearer eyJ0.abc123 to it": "sent Bearer REDACTED to it",
        "X-API-Key: 12345": "X-API-Key: REDACTED",
        """{"api_key": "k-1", 'password': 'p'}""": """{"api_key": "REDACTED", 'password': 'REDACTED'}""",
        "a bearer of good news": "a bearer of good news",
        "authorization is needed": "authorization is needed",
        """{"token": "the", "key": "a", "eos_token": "."}""": """{"token": "the", "key": "a", "eos_token": "."}""",
    }.items():
        assert Redactor({}).redact_values(text) == clean


def test_pairs_as_a_shell_writes_them_are_replaced_and_other_settings_stay():
    texts = {
        "failed: AWS_SECRET_ACCESS_KEY=a1b2 HOME=/root": "failed: AWS_SECRET_ACCESS_KEY=REDACTED HOME=/root",
        "connect(password='hunter2', port=5)": "connect(password='REDACTED', port=5)",
        "judge --api-key k-1 --model m --api_key=k-2": "judge --api-key REDACTED --model m --api_key=REDACTED",
        "max_new_tokens=5 eos_token=</s> token=x key=prompt api_key=None": None,
        "the secret is out, and --verbose prints more": None,
    }
    for text, clean in texts.items():
        assert Redactor(environment={}).redact(text) == (clean or text)


def test_a_value_beside_the_name_of_a_secret_is_one():
    redactor = Redactor({})
    given = {"env": [{"name": "WANDB_API_KEY", "value": "w-123456"}, {"name": "HOME", "value": "/home/me"}]}
    redactor.remember(given)
    assert redactor.redact({**given, "error": "w-123456 in /home/me"}) == {
        "env": [{"name": "WANDB_API_KEY", "value": REDACTED}, {"name": "HOME", "value": "/home/me"}],
        "error": "REDACTED in /home/me",
    }


def test_a_key_that_may_be_a_column_hides_its_value_where_it_stands_and_not_the_word_everywhere():
    redactor = Redactor({"SORT_KEY": "question_text", "MY_KEY": "question_text"})
    redactor.remember({"key": "question", "wandb_key": "0123456789abcdef", "password": "completed"})
    assert redactor.redact({"key": "question", "note": "question, question_text: 0123456789abcdef"}) == {
        "key": REDACTED,
        "note": "question, question_text: REDACTED",
    }
    assert redactor.redact({"status": "completed"}) == {"status": "completed"}


def test_a_short_secret_is_not_looked_for_inside_digests_and_ids():
    redactor = Redactor({})
    redactor.remember({"password": 123456})
    assert redactor.redact("123456 was refused: id ab123456cd, (123456)") == (
        "REDACTED was refused: id ab123456cd, (REDACTED)"
    )


def test_numbers_among_metrics_stay_under_any_name_and_texts_do_not():
    redactor = Redactor({"HF_TOKEN": "hf_planted_7"})
    row = {"pass": 3, "key": 0.5, "auth": True, "none": None}
    assert redactor.redact_metrics(row) == row
    assert redactor.redact_metrics({**row, "password": "p", "note": "hf_planted_7"}) == {
        **row,
        "password": REDACTED,
        "note": REDACTED,
    }


def test_by_value_only_a_key_says_nothing():
    redactor = Redactor({"HF_TOKEN": "hf_planted_4"})
    given = {"token": "data", "completion": "hf_planted_4"}
    assert redactor.redact_values(given) == {"token": "data", "completion": REDACTED}


def test_every_container_comes_back_as_what_it_was_and_what_is_no_text_is_the_same_object():
    redactor, thing = Redactor({"HF_TOKEN": "hf_planted_6"}), object()
    given = OrderedDict(a=("hf_planted_6", 1), b=[{"hf_planted_6"}, frozenset({2.5})], c={1: thing}, d=b"hf_planted_6")
    kept = OrderedDict(a=(REDACTED, 1), b=[{REDACTED}, frozenset({2.5})], c={1: thing}, d=b"hf_planted_6")
    for redact in (redactor.redact, redactor.redact_values):
        found = redact(given)
        assert found == kept
        assert [type(found), type(found["a"]), type(found["b"][0]), type(found["b"][1])] == [
            OrderedDict, tuple, set, frozenset,
        ]  # fmt: skip
        assert found["c"][1] is thing


def test_redacting_twice_is_redacting_once_and_the_word_itself_is_no_secret():
    redactor = Redactor({"A_TOKEN": "REDACTED", "HF_TOKEN": "hf_planted_5"})
    redactor.remember({"token": REDACTED, "password": "REDACTE"})
    once = redactor.redact({"token": "x", "note": "hf_planted_5"})
    assert redactor.redact(once) == once == {"token": REDACTED, "note": REDACTED}


def test_what_must_be_asked_for_again_is_listed_by_its_path():
    config = Redactor({}).redact(
        {
            "name": "run",
            "callbacks": [{"kind": "a"}, {"kind": "b", "params": {"api_key": "k", "room": "r"}}],
            "auth": {"user": "u", "retry": True},
            "store": "https://me:pass@host",
        }
    )
    assert redacted_keys(config) == ["callbacks.1.params.api_key", "auth.user", "store"]
    assert redacted_keys({"name": "run", "eval": []}) == []


def test_secrets_told_by_many_threads_are_all_known():
    redactor = Redactor({})
    secrets = [f"planted-{number:04}" for number in range(200)]
    threads = [threading.Thread(target=redactor.remember, args=({"token": secret},)) for secret in secrets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert redactor.redact(secrets) == [REDACTED] * 200


def test_a_row_of_numbers_costs_little():
    redactor = Redactor()
    row = {f"metric_{number}": float(number) for number in range(20)}
    assert redactor.redact_metrics(row) == row
    # The best of many, beside what is done with the row anyway: a busy machine is as slow for both.
    cost, other = (
        min(timeit.repeat(call, number=1, repeat=300))
        for call in (lambda: redactor.redact_metrics(row), lambda: json.dumps(row))
    )
    assert cost < 10 * other


# -- where it is built in ----------------------------------------------------------------------------


def test_every_file_of_one_object_and_every_line_is_written_without_secrets(monkeypatch):
    monkeypatch.setenv("PLANTED_TOKEN", "planted-by-env-1")
    said = {"reason": "planted-by-env-1", "params": {"password": "x"}, "loss": float("nan")}
    clean = {"reason": REDACTED, "params": {"password": REDACTED}, "loss": "NaN"}
    assert json.loads(json_text(said)) == clean
    assert json.loads(json_line(said)) == clean


def test_a_run_folder_remembers_the_secrets_of_its_configuration(tmp_path):
    config = {"callbacks": [{"kind": "chat", "params": {"token": "planted-by-config-1"}}]}
    folder = RunFolder.create(tmp_path / "run", config)
    folder.update(stop_reason="ChatError: planted-by-config-1 was refused")
    LiveFile(folder.path).look(lambda: LiveView(1.0, actors=[ActorView("m", "maker", reason="no planted-by-config-1")]))
    written = "".join(path.read_text() for path in folder.path.iterdir())
    assert "planted-by-config-1" not in written
    assert json.loads((folder.path / "run.json").read_text())["stop_reason"] == "ChatError: REDACTED was refused"
    assert redacted_keys(json.loads((folder.path / "config.json").read_text())) == ["callbacks.0.params.token"]
    assert config["callbacks"][0]["params"]["token"] == "planted-by-config-1"


def test_in_a_manifest_names_and_paths_stay_whatever_a_secret_says(tmp_path):
    RunFolder.create(tmp_path / "run", {"callbacks": [{"params": {"password": "step_9999", "token": "planted-9"}}]})
    manifest = Manifest(tmp_path / "run", Disk())
    row = ManifestRow("step_9999", 1, 0, "checkpoints/step_9999/state", metrics={"note": "planted-9", "pass": 2})
    manifest.append([row])
    (found,) = manifest.rows()
    assert (found.name, found.state_path) == ("step_9999", "checkpoints/step_9999/state")
    assert found.metrics == {"note": REDACTED, "pass": 2}


def test_a_reference_to_the_environment_is_not_a_secret_and_headers_are():
    config = {
        "token": "${MY_TOKEN}", "authorization": "Bearer ${MY_TOKEN}", "api_key": "${A}or-plain",
        "headers": {"X-Team": "blue-7", "X-Other": "${MY_TOKEN}"}, "columns": {"headers": ["a", "b"]},
    }  # fmt: skip
    assert Redactor(environment={}).redact(config) == {
        "token": "${MY_TOKEN}", "authorization": "Bearer ${MY_TOKEN}", "api_key": REDACTED,
        "headers": {"X-Team": REDACTED, "X-Other": "${MY_TOKEN}"}, "columns": {"headers": ["a", "b"]},
    }  # fmt: skip


def test_a_variable_that_is_not_set_is_named(monkeypatch):
    monkeypatch.setenv("SET_ONE", "yes")
    assert expand_environment("to", "a ${SET_ONE} b $SET_ONE") == "a yes b $SET_ONE"
    monkeypatch.setenv("SET_ONE", "")
    with pytest.raises(SettingError, match="to refers to the environment variable SET_ONE, which is not set"):
        expand_environment("to", "${SET_ONE}")
