"""A CPU without bfloat16 instructions trains in float32."""

import pytest
import torch

import runs
from captioner.cli.main import main
from captioner.training import precision

AVX512 = "fpu avx2 avx512f avx512bw"


@pytest.mark.parametrize(
    ("machine", "flags", "capability", "expected"),
    [
        ("x86_64", f"flags\t\t: {AVX512} avx512_bf16", "AVX512", True),
        ("x86_64", f"flags : {AVX512}", "AVX512", False),
        ("x86_64", f"flags : {AVX512} avx512_bf16", "AVX2", False),  # ATEN_CPU_CAPABILITY
        ("AMD64", None, "AVX512", None),
        ("aarch64", "Features\t: fp asimd bf16", "DEFAULT", True),
        ("aarch64", "Features\t: fp asimd", "DEFAULT", False),
        ("riscv64", None, "DEFAULT", None),
    ],
)
def test_cpu_instructions(machine, flags, capability, expected, monkeypatch, tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    if flags is not None:
        cpuinfo.write_text(f"processor\t: 0\n{flags}\n\nprocessor\t: 1\n")
    monkeypatch.setattr("captioner.provenance._CPUINFO", cpuinfo)
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert precision.cpu_has_bfloat16() is expected
    for name in ("bf16-mixed", "16-mixed"):
        assert bool(precision.unsupported(name, "cpu")) == (expected is False)
        assert precision.unsupported(name, "cuda") is None
    assert precision.unsupported("32-true", "cpu") is None


def test_fit_replaces_an_unsupported_precision_with_one_line(
    tmp_path, shapes_cache, monkeypatch, caplog
):
    monkeypatch.setattr(precision, "cpu_has_bfloat16", lambda: False)
    options = ("--trainer.precision=bf16-mixed", "--overlays=0")
    assert main(runs.arguments(tmp_path / "run", shapes_cache, *options, epochs=1)) == 0
    lines = [r.getMessage() for r in caplog.records if "float32" in r.getMessage()]
    assert lines == [
        "this CPU has no bfloat16 instructions: training in float32 instead of bf16-mixed"
    ]
    assert "precision: 32-true" in (tmp_path / "run" / "config.yaml").read_text()
