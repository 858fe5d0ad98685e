"""compose.yaml and the Dockerfile keep what they promise, and agree with each other and with the command line."""

import json
import re
import shlex
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from pageloom.cli import app

ROOT = Path(__file__).parents[2]
SERVICES = ("scheduler", "worker", "gateway")
COMPOSE = (ROOT / "compose.yaml").read_text()
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Stage:
    """One FROM … of the Dockerfile with the instructions below it, continuation lines joined."""

    parent: str
    instructions: tuple[tuple[str, str], ...]

    def last(self, keyword: str) -> str:
        return [rest for name, rest in self.instructions if name == keyword][-1]


def _stages() -> dict[str, Stage]:
    text = re.sub(r"^#.*\n", "", (ROOT / "deploy" / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = [line.split(maxsplit=1) for line in re.sub(r"\\\n", "", text).splitlines() if line.strip()]
    stages: dict[str, Stage] = {}
    name = ""
    for keyword, rest in lines:
        if keyword == "FROM":
            parent, _, name = rest.split()
            stages[name] = Stage(parent, ())
        elif name:
            stages[name] = Stage(stages[name].parent, (*stages[name].instructions, (keyword, rest)))
    return stages


STAGES = _stages()


def lineage(target: str) -> list[tuple[str, str]]:
    """The instructions that make a target's image, its parents' first."""
    if target not in STAGES:
        return []
    return [*lineage(STAGES[target].parent), *STAGES[target].instructions]


def services() -> dict[str, Any]:
    """compose.yaml with every ${NAME:-default} replaced by its default."""
    found: dict[str, Any] = yaml.safe_load(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", COMPOSE))["services"]
    assert tuple(found) == SERVICES
    return found


@pytest.fixture(params=SERVICES)
def name(request):
    return request.param


@pytest.fixture
def service(name):
    return services()[name]


def test_each_service_is_a_target_of_the_one_dockerfile(name, service):
    assert (ROOT / service["build"]["dockerfile"]).is_file()
    assert service["build"]["target"] == name
    assert json.loads(STAGES[name].last("ENTRYPOINT")) == ["pageloom", name]


def test_image_and_compose_start_a_service_the_same_way(name, service):
    assert json.loads(STAGES[name].last("CMD")) == service["command"]
    healthcheck = STAGES[name].last("HEALTHCHECK").split(" CMD ")[1]
    assert ["CMD", *json.loads(healthcheck)] == service["healthcheck"]["test"]


def test_the_command_line_takes_every_flag_and_variable(name, service):
    command = COMMANDS[name]
    command.make_context(name, list(service["command"]))
    twins = {parameter.envvar for parameter in command.params}
    ours = {variable for variable in service["environment"] if variable.startswith("PAGELOOM_")}
    assert ours <= twins


def test_a_variable_that_is_not_set_leaves_the_default(name, service, monkeypatch):
    command = COMMANDS[name]
    before = command.make_context(name, list(service["command"])).params
    for variable, value in service["environment"].items():
        assert value in (None, "")
        monkeypatch.setenv(variable, "")
    assert command.make_context(name, list(service["command"])).params == before


def test_services_run_with_no_more_rights_than_they_need(name, service):
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["restart"] == "unless-stopped"
    uid = lineage(name)[[keyword for keyword, _ in lineage(name)].index("USER")][1].split(":")[0]
    assert int(uid) > 0


def test_only_the_gateway_is_reachable_and_only_from_this_machine():
    ports = {name: service["ports"] for name, service in services().items() if "ports" in service}
    assert ports == {"gateway": ["127.0.0.1:8000:8000"]}
    assert not any("network_mode" in service or "privileged" in service for service in services().values())


def test_services_start_after_the_scheduler_is_healthy_and_the_gateway_stops_first():
    depends = {name: service.get("depends_on", {}) for name, service in services().items()}
    healthy, started = {"condition": "service_healthy"}, {"condition": "service_started"}
    assert depends["scheduler"] == {}
    assert depends["worker"] == {"scheduler": healthy}
    assert depends["gateway"] == {"scheduler": healthy, "worker": started}
    assert all(service["healthcheck"]["test"][:2] == ["CMD", "healthcheck"] for service in services().values())


def test_running_requests_may_end_before_a_service_is_killed(name, service):
    drain_timeout_s = COMMANDS[name].make_context(name, []).params.get("shutdown_timeout", 0.0)
    assert float(service["stop_grace_period"].removesuffix("s")) >= drain_timeout_s + 10


@pytest.mark.parametrize("target", ["scheduler", "gateway"])
def test_no_torch_without_a_model_to_run(target):
    installs = [rest for keyword, rest in lineage(target) if keyword == "RUN" and "pip install" in rest]
    assert not any("torch" in install or "worker.txt" in install for install in installs)
    assert any("assert not find_spec" in rest for keyword, rest in lineage(target) if keyword == "RUN")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = [*project["dependencies"], *project["optional-dependencies"]["gateway"]]
    assert not any(re.match(r"torch|triton|transformers", requirement) for requirement in requirements)


def test_every_install_is_pinned():
    for stage in STAGES.values():
        for keyword, rest in stage.instructions:
            for install in re.findall(r"pip install ([^&]*)", rest) if keyword == "RUN" else ():
                assert "--constraint constraints.txt" in install or "--no-deps" in install, install


def test_the_build_context_holds_what_is_copied():
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = [line.removeprefix("!") for line in ignore if line.startswith("!")]
    assert "*" in ignore
    copies = [rest for stage in STAGES.values() for keyword, rest in stage.instructions if keyword == "COPY"]
    for rest in (rest for rest in copies if "--from=" not in rest):
        *sources, _ = [word for word in shlex.split(rest) if not word.startswith("--")]
        for source in sources:
            assert (ROOT / source).exists(), source
            assert any(fnmatch(source, pattern) for pattern in allowed), source


def test_every_variable_is_documented():
    documented = (ROOT / "docs" / "deployment.md").read_text()
    for variable in sorted(set(re.findall(r"\$\{(\w+)", COMPOSE))):
        assert f"`{variable}`" in documented, variable
