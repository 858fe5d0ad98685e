"""The command line: documented options, environment twins, sizes, errors that name the flag."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from pageloom import __version__
from pageloom.cli import app
from pageloom.config import GatewayConfig, SchedulerConfig, WorkerConfig
from pageloom.errors import InvalidConfig
from pageloom.form_limits import FormLimits
from pageloom.option_values import parse_batch_paths, parse_size
from pageloom.request_limits import RequestLimits

ROOT = Path(__file__).parent.parent
COMMANDS = ("serve", "scheduler", "worker", "gateway")

run = CliRunner().invoke


def options() -> list[tuple[str, str, str]]:
    """(command, flag, environment variable) of every option."""
    group: Any = typer.main.get_command(app)
    return [
        (command, parameter.opts[0], parameter.envvar)
        for command in (*COMMANDS, "run-batch", "replay", "simulate")
        for parameter in group.commands[command].params
        if parameter.param_type_name == "option" and parameter.name != "help"
    ]


def test_every_option_has_its_environment_twin():
    for _command, flag, variable in options():
        assert variable == "PAGELOOM_" + flag.removeprefix("--").upper().replace("-", "_")


def test_every_option_is_documented():
    text = (ROOT / "docs/configuration.md").read_text()
    missing = {(flag, variable) for _command, flag, variable in options() if f"| `{flag}` | `{variable}` |" not in text}
    assert not missing


def test_version():
    assert run(app, ["--version"]).output.strip() == f"pageloom {__version__}"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8192", 8192),
        ("8k", 8000),
        ("2GiB", 2**31),
        ("512M", 512_000_000),
        ("1.5gi", 3 * 2**29),
        ("1TiB", 2**40),
        (7, 7),
    ],
)
def test_sizes(text: str | int, value: int):
    assert parse_size(text) == value


@pytest.mark.parametrize("text", ["", "x", "-1", "0", "1PB", "8 8", "9" * 400])
def test_bad_sizes(text: str):
    with pytest.raises(typer.BadParameter, match="such as"):
        parse_size(text)


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_flag_gets_a_suggestion(command: str):
    outcome = run(app, [command, "--log-levle", "info"])
    assert outcome.exit_code == 2
    assert "--log-level" in outcome.output


@pytest.mark.parametrize("command", ["serve", "scheduler"])
@pytest.mark.parametrize(
    ("flag", "value", "accepted"),
    [
        ("--max-steps-in-flight", "3", "less than or equal to 2"),
        ("--scheduling-policy", "lifo", "'fcfs', 'priority', 'fair'"),
        ("--placement", "random", "'cache-aware', 'least-loaded', 'round-robin'"),
        ("--priority-ageing", "soon", "valid number"),
    ],
)
def test_a_bad_value_is_answered_with_the_accepted_ones(command: str, flag: str, value: str, accepted: str):
    outcome = run(app, [command, flag, value])
    assert outcome.exit_code == 2
    assert flag in outcome.output
    assert accepted in outcome.output


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_num_steps_in_flight": 0}, ["--max-steps-in-flight", "1 or 2", "not 0"]),
        ({"scheduling_policy": "lifo"}, ["--scheduling-policy", "fcfs, priority, fair", "not lifo"]),
        ({"placement": "cache_aware"}, ["--placement", "cache-aware, least-loaded, round-robin"]),
        ({"priority_ageing_s": 0.0}, ["--priority-ageing", "above 0", "not 0"]),
        ({"priority_ageing_s": float("nan")}, ["--priority-ageing", "nan"]),
        ({"priority_ageing_s": float("inf")}, ["--priority-ageing", "finite"]),
    ],
)
def test_scheduler_settings_are_checked_without_a_command_line_too(fields: dict[str, Any], words: list[str]):
    with pytest.raises(InvalidConfig) as caught:
        SchedulerConfig(**fields)
    for word in words:
        assert word in caught.value.message


@pytest.mark.parametrize("command", ["worker", "gateway"])
@pytest.mark.parametrize("address", ["scheduler", "unix:", "host:port", ""])
def test_an_address_without_a_port_is_refused(command: str, address: str):
    outcome = run(app, [command, "--scheduler", address])
    assert outcome.exit_code == 2
    assert "write HOST:PORT or unix:/PATH" in outcome.output


def test_workers_of_one_host_have_ports_for_their_metrics():
    outcome = run(app, ["serve", "--data-parallel-size", "3", "--worker-metrics-port", "65534"])
    assert isinstance(outcome.exception, InvalidConfig)
    assert "--worker-metrics-port must be at most 65533" in outcome.exception.message


def test_options_reach_the_service(monkeypatch: pytest.MonkeyPatch):
    """What `pageloom scheduler` and `pageloom worker` become, read back as the service would."""
    settings: list[str] = []
    monkeypatch.setattr("os.execve", lambda _path, arguments, _environment: settings.append(arguments[-1]))
    monkeypatch.setenv("PAGELOOM_PRIORITY_AGEING", "7.5")
    run(app, ["scheduler", "--uds", "/run/s.sock", "--max-steps-in-flight", "1", "--scheduling-policy", "fcfs",
              "--placement", "round-robin"])  # fmt: skip
    run(app, ["worker", "--scheduler", "unix:/run/s.sock", "--shutdown-timeout", "3", "--max-grammar-states", "77",
              "--grammar-cache-bytes", "8MiB"])  # fmt: skip
    scheduler, worker = SchedulerConfig.from_json(settings[0]), WorkerConfig.from_json(settings[1])
    assert (scheduler.socket_path, scheduler.max_num_steps_in_flight) == ("/run/s.sock", 1)
    assert (scheduler.scheduling_policy, scheduler.placement) == ("fcfs", "round-robin")
    assert scheduler.priority_ageing_s == 7.5
    assert (worker.grammar_limits.max_grammar_states, worker.grammar_cache_bytes) == (77, 2**23)
    assert (worker.scheduler_address, worker.drain_timeout_s) == ("unix:/run/s.sock", 3.0)


def test_the_gateways_settings_reach_it(monkeypatch: pytest.MonkeyPatch):
    settings: list[str] = []
    monkeypatch.setattr("os.execve", lambda _path, arguments, _environment: settings.append(arguments[-1]))
    monkeypatch.setenv("PAGELOOM_MAX_PROMPTS", "7")
    monkeypatch.setenv("PAGELOOM_ALLOWED_ORIGINS", "https://a.example https://b.example:8443")
    run(app, ["gateway", "--max-stop-strings", "4", "--generation-config", "vllm", "--max-choice-texts", "9"])
    gateway = GatewayConfig.from_json(settings[0])
    assert gateway.limits == RequestLimits(max_prompts=7, max_stop_strings=4)
    assert gateway.form_limits == FormLimits(max_choice_texts=9)
    assert gateway.allowed_origins == ("https://a.example", "https://b.example:8443")
    assert gateway.generation_config == "vllm"


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("--tensor-parallel-size", "100000", "--tensor-parallel-size must be at most 1024, not 100000"),
        ("--num-threads", "100000", "--num-threads must be at most 1024"),
        ("--max-num-batched-tokens", "9" * 20, "--max-num-batched-tokens must be at most 2147483647"),
        ("--prompt-lookup-max", "9" * 20, "--prompt-lookup-max must be at most"),
        ("--suffix-memory-bytes", "9" * 20, "--suffix-memory-bytes must be at most"),
        ("--step-timeout", "inf", "--step-timeout must be at least 1 seconds and finite, not inf"),
    ],
)
def test_no_setting_is_larger_than_what_it_is_kept_in(flag: str, value: str, words: str):
    outcome = run(app, ["serve", flag, value])
    assert isinstance(outcome.exception, InvalidConfig)
    assert words in outcome.exception.message


@pytest.mark.parametrize("command", ["serve", "gateway"])
@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("--max-choices", "0", "--max-choices must be between 1 and 1000000, not 0"),
        ("--max-logprobs", "21", "--max-logprobs must be between 0 and 20, not 21"),
        ("--allowed-origins", "https://a.example/", "--allowed-origins takes an origin such as https://example.com"),
        ("--allowed-origins", "example.com", "not 'example.com'"),
        ("--served-model-name", "", "--served-model-name must not be empty"),
        ("--shutdown-timeout", "inf", "--shutdown-timeout must be at least 0 seconds and finite, not inf"),
    ],
)
def test_settings_of_the_gateway_are_checked(command: str, flag: str, value: str, words: str):
    outcome = run(app, [command, flag, value])
    assert isinstance(outcome.exception, InvalidConfig)
    assert words in outcome.exception.message


def test_a_setting_that_cannot_be_is_one_line():
    command = [sys.executable, "-m", "pageloom", "scheduler", "--priority-ageing", "0"]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert outcome.returncode == 1
    assert outcome.stderr == "pageloom: --priority-ageing must be above 0 seconds and finite, not 0\n"


def test_the_files_of_a_batch_come_by_options_or_before_the_model(monkeypatch: pytest.MonkeyPatch):
    assert parse_batch_paths(["in", "out"], None, None) == ("in", "out", "")
    assert parse_batch_paths(["in", "out", "model"], None, None) == ("in", "out", "model")
    assert parse_batch_paths(["model"], "in", "out") == ("in", "out", "model")
    monkeypatch.setenv("PAGELOOM_MODEL", "other")
    assert parse_batch_paths([], "in", "out") == ("in", "out", "other")
    for paths, input_file in (([], None), (["in"], None), (["in", "out", "model", "more"], None), (["a", "b"], "in")):
        with pytest.raises(typer.BadParameter, match="give two files, IN OUT or -i IN -o OUT"):
            parse_batch_paths(paths, input_file, None)
