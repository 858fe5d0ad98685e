"""The command line: documented options, environment twins, sizes, errors that name the flag."""

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from pageloom import __version__
from pageloom.cli import app
from pageloom.options import parse_size

ROOT = Path(__file__).parent.parent
COMMANDS = ("serve", "scheduler", "worker", "gateway")

run = CliRunner().invoke


def options() -> list[tuple[str, str, str]]:
    """(command, flag, environment variable) of every option."""
    group: Any = typer.main.get_command(app)
    return [
        (command, parameter.opts[0], parameter.envvar)
        for command in COMMANDS
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


@pytest.mark.parametrize("text", ["", "x", "-1", "0", "1PB", "8 8"])
def test_bad_sizes(text: str):
    with pytest.raises(typer.BadParameter, match="such as"):
        parse_size(text)


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_flag_gets_a_suggestion(command: str):
    outcome = run(app, [command, "--log-levle", "info"])
    assert outcome.exit_code == 2
    assert "--log-level" in outcome.output
