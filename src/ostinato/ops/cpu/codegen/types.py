"""Registers as Numba types, their operators, and how an LLVM instruction becomes a Numba intrinsic."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel.models import PrimitiveModel
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, register_model

from ostinato.ops.cpu.host import is_x86
from ostinato.ops.cpu.simd import LANES

Emit = Callable[[ir.IRBuilder, Sequence[Any]], Any]

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
HALF, FLOAT, DOUBLE = ir.HalfType(), ir.FloatType(), ir.DoubleType()
V_I32, V_F32, V_HALF = (ir.VectorType(element, LANES) for element in (I32, FLOAT, HALF))
V_I16, V_I8 = ir.VectorType(I16, LANES), ir.VectorType(I8, LANES)
V_BYTES, V_SHORTS = ir.VectorType(I8, 4 * LANES), ir.VectorType(I16, 2 * LANES)


class Register(types.Type):
    """A Numba type whose values are LLVM vectors."""

    def __init__(self, name: str, llvm: ir.VectorType) -> None:
        self.llvm = llvm
        super().__init__(name=name)


@register_model(Register)
class _RegisterModel(PrimitiveModel):
    def __init__(self, manager: Any, register: Register) -> None:
        super().__init__(manager, register, register.llvm)


I = Register("I32x16", V_I32)  # noqa: E741
F = Register("F32x16", V_F32)
ADDRESS = types.intp
INT, REAL, NOTHING = types.int64, types.float32, types.void


def splat(builder: ir.IRBuilder, scalar: Any, vector: ir.VectorType) -> Any:
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, I32(0))
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), ir.Constant(V_I32, [0] * LANES))


def constant(vector: ir.VectorType, value: float) -> ir.Constant:
    return ir.Constant(vector, [value] * vector.count)


def pointer_to(builder: ir.IRBuilder, address: Any, pointee: ir.Type) -> Any:
    return builder.inttoptr(address, pointee.as_pointer())


def load(builder: ir.IRBuilder, address: Any, kind: ir.Type, align: int) -> Any:
    return builder.load(pointer_to(builder, address, kind), align=align)


def store(builder: ir.IRBuilder, address: Any, value: Any, align: int) -> None:
    builder.store(value, pointer_to(builder, address, value.type), align=align)


FOREIGN, ELSEWHERE = "llvm.aarch64." if is_x86() else "llvm.x86.", "elsewhere."


def declared(builder: ir.IRBuilder, name: str, result: ir.Type, arguments: Sequence[ir.Type]) -> ir.Function:
    """Return a function of LLVM's or the C library's.

    Numba compiles everything for this machine as well. What only another kind of machine has (FOREIGN) goes
    by another name until then, one that can be linked here but is never called (`foreign_named` undoes it).
    """
    kind = ir.FunctionType(result, arguments)
    if not name.startswith(FOREIGN):
        return cgutils.get_or_insert_function(builder.module, kind, name)
    llvm.add_symbol(ELSEWHERE + name, 1)
    return cgutils.get_or_insert_function(builder.module, kind, ELSEWHERE + name)


def foreign_named(module: str) -> str:
    """Return a module's text with LLVM's own names of what only another kind of machine has."""
    return module.replace(f"@{ELSEWHERE}llvm.", "@llvm.")


def called(name: str, result: ir.Type, arguments: Sequence[ir.Type]) -> Emit:
    return lambda builder, args: builder.call(declared(builder, name, result, arguments), args)


def instruction(result: types.Type, parameters: Sequence[types.Type], emit: Emit) -> Any:
    """Return a Numba intrinsic of fixed signature.

    `emit(builder, args)` returns the LLVM value, or None where there is no result.
    """

    def generate(context: Any, builder: ir.IRBuilder, _signature: Any, args: Sequence[Any]) -> Any:
        value = emit(builder, args)
        return context.get_dummy_value() if result is NOTHING else value

    fixed = signature(result, *parameters)
    names = ", ".join(f"a{i}" for i in range(len(parameters)))
    scope: dict[str, Any] = {"answer": (fixed, generate)}
    exec(f"def instruction(typing, {names}):\n    return answer", scope)
    return intrinsic(scope["instruction"])


_OPERATORS: dict[Any, dict[str, str]] = {
    operator.add: {"I32x16": "add", "F32x16": "fadd"},
    operator.sub: {"I32x16": "sub", "F32x16": "fsub"},
    operator.mul: {"I32x16": "mul", "F32x16": "fmul"},
    operator.truediv: {"F32x16": "fdiv"},
    operator.and_: {"I32x16": "and_"},
    operator.or_: {"I32x16": "or_"},
    operator.xor: {"I32x16": "xor"},
}
_SHIFTS = {operator.rshift: "lshr", operator.lshift: "shl"}


def _register_operator(function: Any, methods: dict[str, str]) -> None:
    @infer_global(function)
    class _Typing(AbstractTemplate):
        def generic(self, args: Sequence[types.Type], kws: Any) -> Any:
            left, right = args[0], args[-1]
            if isinstance(left, Register) and left == right and left.name in methods:
                return signature(left, left, left)
            return None

    @lower_builtin(function, Register, Register)
    def _lower(context: Any, builder: ir.IRBuilder, sig: Any, args: Sequence[Any]) -> Any:
        return getattr(builder, methods[sig.args[0].name])(*args)


def _register_shift(function: Any, method: str) -> None:
    @infer_global(function)
    class _Typing(AbstractTemplate):
        def generic(self, args: Sequence[types.Type], kws: Any) -> Any:
            return signature(I, I, types.int64) if args[0] == I else None

    @lower_builtin(function, I, types.int64)
    def _lower(context: Any, builder: ir.IRBuilder, sig: Any, args: Sequence[Any]) -> Any:
        return getattr(builder, method)(args[0], splat(builder, builder.trunc(args[1], I32), V_I32))


for _function, _methods in _OPERATORS.items():
    _register_operator(_function, _methods)
for _function, _method in _SHIFTS.items():
    _register_shift(_function, _method)
