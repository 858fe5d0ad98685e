"""Finding a model: default, folder, GGUF file, hub id; and what is said when there is none."""

from pathlib import Path

import pytest

from pageloom.errors import ModelLoadError
from pageloom.model_files import DEFAULT_MODEL, locate_model


def test_the_default_by_either_name():
    assert locate_model("") == locate_model(DEFAULT_MODEL)
    assert locate_model("").path.suffix == ".gguf"


def test_a_gguf_file_is_named_by_its_stem():
    files = locate_model(str(locate_model("").path))
    assert (files.name, files.is_gguf) == ("SmolLM2-135M-Instruct.Q4_1", True)


def test_a_folder(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    assert locate_model(str(tmp_path)).name == tmp_path.name


@pytest.mark.parametrize("name", ["/no/such/folder", "nothing", "./missing.gguf", "a/missing.gguf"])
def test_nothing_there(name: str):
    with pytest.raises(ModelLoadError, match="not found"):
        locate_model(name)


def test_a_folder_without_config(tmp_path: Path):
    with pytest.raises(ModelLoadError, match=r"no config\.json"):
        locate_model(str(tmp_path))


def test_a_file_of_another_kind(tmp_path: Path):
    path = tmp_path / "model.bin"
    path.touch()
    with pytest.raises(ModelLoadError, match=r"not a \.gguf file"):
        locate_model(str(path))


def test_an_unreachable_hub_id_is_one_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelLoadError, match="could not be had from the hub") as caught:
        locate_model("nobody/no-such-model")
    assert "\n" not in str(caught.value)
