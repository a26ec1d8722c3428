"""What Ray does not document and geofix relies on. Another version of Ray must be tried against all of it."""

import sys
from pathlib import Path

import pytest
import ray

from tasks.runtime import ray_private


def test_the_version_is_the_one_the_private_uses_were_run_against() -> None:
    assert ray.__version__ == ray_private.VERSION == "2.60.0", (
        f"Ray is {ray.__version__}; tasks/runtime/ray_private.py was run against {ray_private.VERSION}. Run "
        "tests/tasks/runtime and `python -m bench.cluster_budget` with it, look at what missing_attributes() names, "
        "then change VERSION"
    )


def test_every_private_attribute_is_there() -> None:
    assert ray_private.missing_attributes() == []


def test_a_missing_one_is_named_with_its_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(ray_private.services, "resolve_ip_for_localhost")
    [said] = ray_private.missing_attributes()
    assert said == f"ray {ray.__version__} has no ray._private.services.resolve_ip_for_localhost, by which a cluster " \
        "on loopback is recognized"  # fmt: skip


def test_workers_import_from_the_working_directory_only_if_the_driver_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "bin" / "geofix")])
    monkeypatch.setattr(sys, "path", ["/elsewhere"])
    assert ray_private.DriverJobConfig()._py_driver_sys_path == []
    monkeypatch.setattr(sys, "path", ["", str(tmp_path / "bin")])  # as of an interactive Python, and of a script
    assert ray_private.DriverJobConfig()._py_driver_sys_path == [str(tmp_path / "bin"), str(tmp_path)]


def test_the_exception_of_a_signal_handler_comes_out_of_a_call_of_ray() -> None:
    class Ended(BaseException): ...

    with pytest.raises(Ended), ray_private.raising_as_handlers_do():
        raise SystemError("CoreWorker.wait returned a result with an exception set") from Ended()
    with pytest.raises(SystemError, match="another"), ray_private.raising_as_handlers_do():
        raise SystemError("another")
