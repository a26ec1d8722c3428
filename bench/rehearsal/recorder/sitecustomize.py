"""Records which settings are read, in every Python process that has this folder on its PYTHONPATH.

Python imports this module at its start. When `schemas.settings.base` is imported, its class `Settings` is given an
attribute access that writes each field's path (`train|grpo|kl`: names may hold dots), once a process, to a file of
$GEOFIX_READS. A section learns its path from the section it is read from and keeps it when it is pickled for a worker;
one that was made anew from JSON is written as `?Class|field`. What validation, `identity` and the listing of settings
read does not count: they read all.
"""

import importlib.abc
import importlib.machinery
import os
import sys

MODULE, PATH = "schemas.settings.base", "_path_of_section"
ALL_READERS = ("identity", "_walk", "_get", "_setting", "flat")  # functions of ours that go through every field


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        if fullname != MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            record(module.Settings, os.environ["GEOFIX_READS"])

        spec.loader.exec_module = exec_module
        return spec


def record(settings, folder):
    """Give the class `Settings` an attribute access that writes what is read."""
    written, validators, validated = set(), set(), set()
    plain = object.__getattribute__

    def learn_validators(kind):
        validated.add(kind)
        decorators = kind.__pydantic_decorators__
        for group in (decorators.model_validators, decorators.field_validators):
            for one in group.values():
                function = getattr(one.func, "__func__", one.func)
                validators.add(getattr(function, "__code__", None))

    def place(value, path):
        """Let sections inside a value know where they stand."""
        if isinstance(value, settings):
            plain(value, "__dict__")[PATH] = path
        elif isinstance(value, dict):
            for key, one in value.items():
                if isinstance(one, settings):
                    place(one, f"{path}|{key}")

    def read(self, name):
        value = plain(self, name)
        kind = type(self)
        if name[:1] == "_" or name not in kind.__pydantic_fields__:
            return value
        held = plain(self, "__dict__").get(PATH)
        is_whole = held is None and kind.__name__ == "Config"
        path = name if is_whole else f"{held}|{name}" if held else f"?{kind.__name__}|{name}"
        if not path.startswith("?"):
            place(value, path)
        if path not in written:
            frame = sys._getframe(1)
            while frame.f_code.co_name[:1] == "<" and frame.f_back:  # a comprehension of the reader
                frame = frame.f_back
            caller = frame.f_code
            if kind not in validated:
                learn_validators(kind)
            if caller not in validators and caller.co_name not in ALL_READERS and "pydantic" not in caller.co_filename:
                written.add(path)
                with open(os.path.join(folder, f"reads-{os.getpid()}"), "a") as file:  # noqa: PTH118, PTH123
                    file.write(path + "\n")
        return value

    settings.__getattribute__ = read


if os.environ.get("GEOFIX_READS"):
    sys.meta_path.insert(0, _Finder())
