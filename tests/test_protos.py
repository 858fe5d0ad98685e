"""The generated code is what protos/ says."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_generated_code_is_fresh(tmp_path: Path):
    protos = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "protos").rglob("*.proto"))
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    plugin = Path(sys.executable).parent / "protoc-gen-mypy_grpc"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"--plugin=protoc-gen-mypy_grpc={plugin}", "-I", "protos"]
    subprocess.run([*command, *outputs, f"--mypy_grpc_out=quiet:{tmp_path}", *protos], check=True, cwd=ROOT)
    generated = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.py*"))
    committed = sorted(path.relative_to(ROOT) for path in (ROOT / "pageloom/rpc/v1").glob("*_pb2*"))
    assert generated == [path for path in committed if path.suffix in (".py", ".pyi")]
    stale = [path for path in generated if (tmp_path / path).read_text() != (ROOT / path).read_text()]
    assert not stale, f"run `make protos`: {stale}"
