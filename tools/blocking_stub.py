"""Write iotmq/client/blocking/classes.pyi: the types of the blocking classes, from the asynchronous ones."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

from iotmq.client.blocking import classes, facade

STUB: Final = Path(__file__).resolve().parents[1] / "iotmq" / "client" / "blocking" / "classes.pyi"
_BUILTINS: Final = frozenset(dir(__builtins__)) | {"__builtins__"}
_HEAD: Final = '"""The types of the blocking classes. Written by tools/blocking_stub.py; do not edit."""'
_FORMS: Final = {name: form for name, form in vars(classes).items() if name.startswith("Sync")}
_NAMES: Final = {form._of.__name__: name for name, form in _FORMS.items()}
# Of values that need no words where they are set.
_MEANINGS: Final = {
    "asynchronous": "The object itself, for coroutines that `SyncClient.run` runs.",
    "group": "The name of its group.",
    "settings": "The settings it was made with.",
}
# Only the results of methods.
_MADE_BY_OTHERS: Final = ("PoppedMessage", "Transaction")
# What only a client has.
_CLIENT: Final = '''
def __init__(
    self, settings: ClientSettings | None = None, *, interceptors: Iterable[Interceptor] = ()
) -> None: ...
@property
def client_id(self) -> str:
    """{client_id}"""
@property
def settings(self) -> ClientSettings:
    """{settings}"""
def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
    """{run}"""
'''


class Stub:
    """The text of the stub, and the imports that it needs."""

    def __init__(self) -> None:
        self._imports: dict[str, str] = {}
        self._body: list[str] = [self._form(name, form) for name, form in _FORMS.items()]

    @property
    def text(self) -> str:
        """All of it, not formatted yet."""
        imports = [line for line in self._imports.values() if line]
        return "\n\n".join([_HEAD, "\n".join(imports), '_T = TypeVar("_T")', *self._body]) + "\n"

    def _form(self, name: str, form: Any) -> str:
        asynchronous = form._of
        base = form.__mro__[1]
        doc = f'"""{form.__doc__}"""'
        if base is facade.BlockingClient:
            lines = [
                _CLIENT.format(
                    client_id=base.client_id.__doc__, settings=base.settings.__doc__, run=base.run.__doc__
                )
            ]
            self._import("from iotmq.client.transport.settings import ClientSettings")
            self._import("from iotmq.client.transport.interceptors import Interceptor")
            self._import("from collections.abc import Iterable")
        else:
            lines = [] if asynchronous.__name__ in _MADE_BY_OTHERS else [self._constructor(asynchronous)]
        inherited = facade.members_of(base._of) if hasattr(base, "_of") else {}
        members = {
            member: line
            for owner in reversed(asynchronous.__mro__[:-1])
            for member, line in self._members(owner, asynchronous)
            if member not in inherited or member in vars(asynchronous)
        }
        lines += members.values()
        if base.__module__ == facade.__name__:
            self._import(f"from {facade.__name__} import {base.__name__}")
        self._import("from typing import Any, TypeVar")
        self._import("from collections.abc import Coroutine")
        lines.append(f'asynchronous: {asynchronous.__name__}\n"""{_MEANINGS["asynchronous"]}"""')
        self._import(f"from {asynchronous.__module__} import {asynchronous.__name__}")
        body = textwrap.indent("\n".join([doc, *lines]), "    ")
        return f"class {name}({base.__name__}):\n{body}"

    def _constructor(self, asynchronous: type) -> str:
        owner = next(each for each in asynchronous.__mro__ if "__init__" in vars(each))
        function = next(node for node in _tree(owner).body if getattr(node, "name", "") == "__init__")
        arguments = function.args
        arguments.args[1].annotation = ast.Name("SyncClient")
        if facade._application_names(asynchronous):
            arguments.kwonlyargs.append(ast.arg("threads", ast.Name("int")))
            arguments.kw_defaults.append(ast.Constant(4))
        return self._function(function, owner, doc=None)

    def _members(self, owner: type, asynchronous: type) -> Iterator[tuple[str, str]]:
        names = facade.members_of(asynchronous)
        for node in _tree(owner).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if node.name in names and (node.name[0] != "_" or node.name == "__aiter__"):
                    if facade.ClientTransport is owner and node.name not in facade.OF_TRANSPORT:
                        continue
                    yield node.name, self._member(node, owner)
                elif node.name == "__init__" and owner is not facade.ClientTransport:
                    yield from self._attributes(node, owner)

    def _member(self, node: ast.FunctionDef | ast.AsyncFunctionDef, owner: type) -> str:
        value = inspect.getattr_static(owner, node.name)
        is_property = not inspect.isfunction(value)
        made = ast.unparse(node.returns) if node.returns else ""
        if owner.__name__ == "IotmqClient" and not is_property and facade._application_names(value):
            node.args.kwonlyargs.append(ast.arg("threads", ast.Name("int")))
            node.args.kw_defaults.append(ast.Constant(4))
        if made.startswith("AsyncIterator["):
            assert isinstance(node.returns, ast.Subscript)
            node.returns.value = ast.Name("Iterator")
            self._import("from collections.abc import Iterator")
        if made.startswith("asyncio.Future["):
            assert isinstance(node.returns, ast.Subscript)
            node.returns.value = ast.parse("concurrent.futures.Future", mode="eval").body
            self._import("import concurrent.futures")
        node.name = {"__aiter__": "__iter__"}.get(node.name, node.name)
        text = self._function(node, owner, doc=ast.get_docstring(node, clean=False))
        return f"@property\n{text}" if is_property else text

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, owner: type, *, doc: str | None) -> str:
        for each in ast.walk(node.args):
            if isinstance(each, ast.arg) and each.annotation is not None:
                each.annotation = self._type(each.annotation, owner)
        returns = self._type(node.returns, owner) if node.returns is not None else ast.Constant(None)
        values = vars(sys.modules[owner.__module__])
        for defaults in (node.args.defaults, node.args.kw_defaults):
            for index, default in enumerate(defaults):
                if default is not None and not isinstance(default, ast.Constant):
                    value = eval(ast.unparse(default), values)
                    is_plain = isinstance(value, str | int | tuple | None)
                    defaults[index] = ast.parse(repr(value) if is_plain else "...", mode="eval").body
        body = [ast.Expr(ast.Constant(doc if doc else ...))]
        function = ast.FunctionDef(node.name, node.args, body, [], returns, lineno=0)
        return ast.unparse(ast.fix_missing_locations(function))

    def _attributes(
        self, init: ast.FunctionDef | ast.AsyncFunctionDef, owner: type
    ) -> Iterator[tuple[str, str]]:
        """What a constructor sets and users may see."""
        given = {argument.arg: argument.annotation for argument in [*init.args.args, *init.args.kwonlyargs]}
        for node, behind in zip(init.body, [*init.body[1:], None], strict=True):
            if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute)):
                continue
            name = node.targets[0].attr
            if name[0] == "_":
                continue
            value = node.value.values[-1] if isinstance(node.value, ast.BoolOp) else node.value
            if isinstance(value, ast.Call):
                kind: Any = value.func
            elif isinstance(value, ast.Name):
                kind = given[value.id]
            elif isinstance(value, ast.Attribute):
                kind = value.value
            else:
                raise AssertionError(f"{owner.__name__}.{name} needs an annotation of a kind known here")
            meaning = _MEANINGS.get(name, "")
            if isinstance(behind, ast.Expr) and isinstance(behind.value, ast.Constant):
                meaning = str(behind.value.value)
            yield name, f'{name}: {ast.unparse(self._type(kind, owner))}\n"""{meaning}"""'

    def _type(self, annotation: ast.expr, owner: type) -> ast.expr:
        """Return an annotation with blocking forms in place of asynchronous classes, and note its imports."""

        class Renamed(ast.NodeTransformer):
            def visit_Name(self, node: ast.Name) -> ast.Name:
                return ast.Name(_NAMES.get(node.id, node.id))

        renamed = Renamed().visit(annotation)
        for node in ast.walk(renamed):
            if isinstance(node, ast.Name) and node.id not in _FORMS and node.id not in _BUILTINS:
                self._import(_import_of(owner.__module__, node.id))
        return renamed

    def _import(self, line: str) -> None:
        self._imports[line] = line


@cache
def _import_of(module: str, name: str) -> str:
    """The import of a name that a module has, from where it is defined."""
    path = sys.modules[module].__file__
    for node in ast.walk(ast.parse(Path(str(path)).read_text())):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return ast.unparse(ast.ImportFrom(node.module, [alias], node.level))
    return "" if not hasattr(sys.modules[module], name) else f"from {module} import {name}"


def _tree(value: type) -> ast.ClassDef:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(value))).body
    assert isinstance(tree, ast.ClassDef)
    return tree


def stub() -> str:
    """The stub as it has to be."""
    command = ["ruff", "format", "--stdin-filename", str(STUB), "-"]
    sorting = ["ruff", "check", "--fix", "--quiet", "--select", "I,F401", "--stdin-filename", str(STUB), "-"]
    text = Stub().text
    for words in (sorting, command):
        program = str(Path(sys.executable).with_name(words[0]))
        text = subprocess.run(
            [program, *words[1:]], input=text, capture_output=True, text=True, check=True
        ).stdout
    return re.sub(r"\n{3,}", "\n\n", text)


if __name__ == "__main__":
    STUB.write_text(stub())
