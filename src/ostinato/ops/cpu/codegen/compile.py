"""From the source of a kernel to an object file: syntax tree -> Numba -> LLVM -> machine code.

Run as a program, `python -m ostinato.ops.cpu.codegen.compile FOLDER NAME…` writes one object per kernel into
FOLDER: `library.py` starts as many of these as there are cores. Nothing at run time imports this module.
"""

from __future__ import annotations

import ast
import copy
import inspect
import os
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

from ostinato.errors import KernelError
from ostinato.ops.cpu import host
from ostinato.ops.cpu.kernel import BATCH_FIELDS, CALL_FIELDS, HEADER_WORDS, WORD_BYTES, Kernel

ALLOWED = frozenset({"sched_yield", "memset", "memcpy", "memmove"})
"""The functions outside itself that a kernel may call."""

_RUN = (*CALL_FIELDS, "batch", "op")


def of_path(simd: str) -> dict[str, int]:
    """Return the constants of a path that kernels may depend on.

    SIGNED: whether weights of 8 bits are multiplied as signed bytes. PAIRS: whether bytes are multiplied in
    pairs to 16 bits. AHEAD: how many bytes before they are needed weights are asked for, where only one token
    uses them; measured: with AVX2 the processor alone is slower by a fifth, with AVX-512 VNNI faster.
    """
    constants = {"SIGNED": int(simd in ("avx2", "neon")), "PAIRS": 0, "AHEAD": 0}
    return constants | {"PAIRS": 1, "AHEAD": 3072} if simd == "avx2" else constants


class _Replace(ast.NodeTransformer):
    """Put a constant where a name is read."""

    def __init__(self, values: Mapping[str, int]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if isinstance(node.ctx, ast.Load) and node.id in self.values:
            return ast.copy_location(ast.Constant(self.values[node.id]), node)
        return node


class _Unroll(ast.NodeTransformer):
    """Unroll `for j in static(n)`, decide `if CONSTANT`, and turn `registers` into plain variables."""

    def __init__(self, scope: dict[str, Any]) -> None:
        self.scope = scope
        self.groups: set[str] = set()

    def _constant(self, node: ast.expr) -> Any:
        return eval(compile(ast.Expression(node), "<static>", "eval"), self.scope)

    def _block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        for statement in statements:
            new = self.visit(statement)
            out.extend(new if isinstance(new, list) else [new])
        return out

    def visit_For(self, node: ast.For) -> ast.stmt | list[ast.stmt]:
        if _called_name(node.iter) != "static":
            self.generic_visit(node)
            return node
        assert isinstance(node.iter, ast.Call) and isinstance(node.target, ast.Name)
        out: list[ast.stmt] = []
        for i in range(self._constant(node.iter.args[0])):
            replace = _Replace({node.target.id: i})
            out += self._block([replace.visit(copy.deepcopy(statement)) for statement in node.body])
        return out

    def visit_If(self, node: ast.If) -> ast.stmt | list[ast.stmt]:
        try:
            chosen = node.body if self._constant(node.test) else node.orelse
        except NameError:
            self.generic_visit(node)
            return node
        return self._block(chosen) or ast.copy_location(ast.Pass(), node)

    def visit_Assign(self, node: ast.Assign) -> ast.stmt | list[ast.stmt]:
        if _called_name(node.value) != "registers":
            self.generic_visit(node)
            return node
        assert isinstance(node.value, ast.Call) and isinstance(node.targets[0], ast.Name)
        name, (count, init) = node.targets[0].id, node.value.args
        self.groups.add(name)
        return [
            ast.copy_location(
                ast.Assign([ast.Name(f"{name}_{i}", ast.Store())], self.visit(copy.deepcopy(init))), node
            )
            for i in range(self._constant(count))
        ]

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id in self.groups:
            return ast.copy_location(
                ast.Name(f"{node.value.id}_{self._constant(node.slice)}", node.ctx), node
            )
        return node


def _is_stored(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def _called_name(node: ast.expr) -> str:
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


def _specialised(function: FunctionType, constants: Mapping[str, int]) -> ast.FunctionDef:
    """Return the syntax tree of a function with its constants put in and its registers unrolled."""
    definition = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list, definition.returns = [], None
    for argument in definition.args.args:
        argument.annotation = None
    local = {node.id for node in ast.walk(definition) if isinstance(node, ast.Name) and _is_stored(node)}
    scope = {name: v for name, v in {**function.__globals__, **constants}.items() if name not in local}
    definition.body = [_Replace(constants).visit(statement) for statement in definition.body]
    definition.body = _Unroll(scope)._block(definition.body)
    ast.increment_lineno(definition, function.__code__.co_firstlineno - 1)
    return definition


def _with_prologue(definition: ast.FunctionDef, kernel: Kernel) -> ast.FunctionDef:
    """Give every kernel the same parameters; it reads its fields from the batch and its instruction."""
    lines = []
    for argument in definition.args.args:
        name = argument.arg
        if name in BATCH_FIELDS:
            lines.append(f"{name} = get_i64(batch + {WORD_BYTES * BATCH_FIELDS.index(name)})")
        elif name in kernel.floats:
            lines.append(
                f"{name} = f32(get_f64(op + {WORD_BYTES * (HEADER_WORDS + kernel.fields.index(name))}))"
            )
        elif name not in CALL_FIELDS:
            lines.append(f"{name} = get_i64(op + {WORD_BYTES * (HEADER_WORDS + kernel.fields.index(name))})")
    definition.body = ast.parse("\n".join(lines)).body + definition.body
    definition.args.args = [ast.arg(name) for name in _RUN]
    return definition


class Compiler:
    """Compiles kernels for one target."""

    def __init__(self, target: host.Target) -> None:
        os.environ["NUMBA_OPT"] = "0"
        if not target.triple:
            os.environ |= {"NUMBA_CPU_NAME": target.cpu, "NUMBA_CPU_FEATURES": target.features}
        import llvmlite.binding as llvm

        from ostinato.ops.cpu.codegen.emit import implementations

        if target.triple:
            llvm.initialize_all_targets()
            llvm.initialize_all_asmprinters()
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self.target = target
        self.names = implementations(target)
        kind = llvm.Target.from_triple(target.triple) if target.triple else llvm.Target.from_default_triple()
        self.machine = kind.create_target_machine(
            cpu=target.cpu, features=target.features, opt=3, reloc="pic", codemodel="default"
        )

    def module(self, kernel: Kernel) -> Any:
        """Return the optimised LLVM module of a kernel; its entry is the function `kernel.name`."""
        import llvmlite.binding as llvm
        from numba import cfunc, types

        from ostinato.ops.cpu.codegen.types import foreign_named

        constants = {**of_path(self.target.simd), **kernel.constants}
        definition = _with_prologue(_specialised(kernel.function, constants), kernel)
        entry = cfunc(types.void(*[types.int64] * len(_RUN)), error_model="numpy")(
            self._executed(definition, kernel.function, constants)
        )
        module = llvm.parse_assembly(foreign_named(entry.inspect_llvm()))
        if self.target.triple:
            module.triple, module.data_layout = self.target.triple, str(self.machine.target_data)
        self._close(module, entry.native_name)
        module.get_function(entry.native_name).name = kernel.name
        return module

    def _close(self, module: Any, entry: str) -> None:
        """Make everything but the entry private to the module and optimise it as a whole.

        Numba leaves every function it compiled open to other modules, with code to raise exceptions behind
        each call. Once they are private LLVM sees that none is raised, and inlines what has one caller.
        """
        import llvmlite.binding as llvm

        for value in (*module.functions, *module.global_variables):
            if not value.is_declaration and value.name != entry:
                value.linkage = "internal"
        options = llvm.create_pipeline_tuning_options(speed_level=3)
        passes = llvm.create_pass_builder(self.machine, options)
        passes.getModulePassManager().run(module, passes)

    def _executed(
        self, definition: ast.FunctionDef, function: FunctionType, constants: Mapping[str, int]
    ) -> Any:
        """Return the Python function of a rewritten definition, what it calls in its scope."""
        from numba import njit

        scope = {**function.__globals__, **self.names}
        for name in function.__code__.co_names:
            inlined: Any = function.__globals__.get(name)
            if hasattr(inlined, "__ostinato_inline__"):
                inner = self._executed(_specialised(inlined, constants), inlined, constants)
                scope[name] = njit(inner, error_model="numpy")
        module = ast.fix_missing_locations(ast.Module([definition], []))
        exec(compile(module, inspect.getfile(function), "exec"), scope)
        return scope[definition.name]

    def object(self, kernel: Kernel) -> bytes:
        """Return the object file of a kernel; raise KernelError if it is not free of Python."""
        module = self.module(kernel)
        outside = {f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm.")}
        if outside - ALLOWED:
            raise KernelError(
                f"kernel '{kernel.name}' can raise: it needs {', '.join(sorted(outside - ALLOWED))}"
            )
        code: bytes = self.machine.emit_object(module)
        return code

    def assembly(self, kernel: Kernel) -> str:
        """Return the assembly of a kernel, for people who want to see that a loop is what it should be."""
        text: str = self.machine.emit_assembly(self.module(kernel))
        return text


def main(arguments: list[str]) -> None:
    """Compile the named kernels for this process's target and write them to a folder."""
    from ostinato.ops.cpu.kernels import find
    from ostinato.ops.cpu.library import write_object

    folder, names = Path(arguments[0]), arguments[1:]
    compiler = Compiler(host.target())
    for name in names:
        write_object(folder, name, compiler.object(find(name)))


if __name__ == "__main__":
    main(sys.argv[1:])
