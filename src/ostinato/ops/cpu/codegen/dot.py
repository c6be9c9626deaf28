"""Dot products of bytes for each set of instructions: sums of four products a lane, always exact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding
from llvmlite import ir

from ostinato.ops.cpu.codegen.types import (
    I8,
    I16,
    I32,
    I64,
    V_BYTES,
    V_I32,
    V_SHORTS,
    constant,
    declared,
)


def _halves(builder: ir.IRBuilder, vector: Any) -> list[Any]:
    """The two 256-bit halves of a 512-bit vector of integers, as they are."""
    half = vector.type.count // 2
    undefined = ir.Constant(vector.type, ir.Undefined)
    starts = (0, half)
    return [
        builder.shuffle_vector(
            vector, undefined, ir.Constant(ir.VectorType(I32, half), [*range(s, s + half)])
        )
        for s in starts
    ]


def _joined(builder: ir.IRBuilder, parts: Sequence[Any]) -> Any:
    count = 2 * parts[0].type.count
    return builder.shuffle_vector(parts[0], parts[1], ir.Constant(ir.VectorType(I32, count), [*range(count)]))


def dot4_vnni(builder: ir.IRBuilder, args: Sequence[Any]) -> Any:
    """`vpdpbusd`. From LLVM 22 on the intrinsic takes its bytes as bytes, before as 32-bit lanes."""
    acc, weights, x = args
    if llvmlite.binding.llvm_version_info[0] >= 22:
        weights, x = builder.bitcast(weights, V_BYTES), builder.bitcast(x, V_BYTES)
    name = "llvm.x86.avx512.vpdpbusd.512"
    return builder.call(declared(builder, name, V_I32, [V_I32, weights.type, x.type]), [acc, weights, x])


def _multiply_add_shorts(builder: ir.IRBuilder, a: Any, b: Any) -> Any:
    """AVX2 `vpmaddwd` on both halves: 32 x i16 times 32 x i16, neighbours summed to 16 x i32."""
    result, argument = ir.VectorType(I32, 8), ir.VectorType(I16, 16)
    function = declared(builder, "llvm.x86.avx2.pmadd.wd", result, [argument, argument])
    pairs = zip(_halves(builder, a), _halves(builder, b), strict=True)
    return _joined(builder, [builder.call(function, pair) for pair in pairs])


def multiply_pairs_avx2(builder: ir.IRBuilder, args: Sequence[Any]) -> Any:
    """`vpmaddubsw` on both halves."""
    weights, x = (builder.bitcast(a, V_BYTES) for a in args)
    result, argument = ir.VectorType(I16, 16), ir.VectorType(I8, 32)
    function = declared(builder, "llvm.x86.avx2.pmadd.ub.sw", result, [argument, argument])
    pairs = zip(_halves(builder, weights), _halves(builder, x), strict=True)
    return builder.bitcast(_joined(builder, [builder.call(function, pair) for pair in pairs]), V_I32)


def multiply_pairs_generic(builder: ir.IRBuilder, args: Sequence[Any]) -> Any:
    """Even and odd bytes apart, as 16-bit products."""
    weights, x = (builder.bitcast(a, V_SHORTS) for a in args)
    eight = constant(V_SHORTS, 8)
    even = builder.mul(
        builder.and_(weights, constant(V_SHORTS, 0x00FF)), builder.ashr(builder.shl(x, eight), eight)
    )
    odd = builder.mul(builder.lshr(weights, eight), builder.ashr(x, eight))
    return builder.bitcast(builder.add(even, odd), V_I32)


def add_pairs(builder: ir.IRBuilder, args: Sequence[Any]) -> Any:
    """`vpaddw`, which more units of a processor can do than the saturating one."""
    a, b = (builder.bitcast(value, V_SHORTS) for value in args)
    return builder.bitcast(builder.add(a, b), V_I32)


def dot2_avx2(builder: ir.IRBuilder, args: Sequence[Any]) -> Any:
    """`vpmaddwd`."""
    a, b = (builder.bitcast(value, V_SHORTS) for value in args[1:])
    return builder.add(args[0], _multiply_add_shorts(builder, a, b))


def dot2_generic(builder: ir.IRBuilder, args: Sequence[Any]) -> Any:
    """Shifts extend the signs of both halves of a lane."""
    acc, a, b = args
    sixteen = constant(V_I32, 16)
    low = builder.mul(*(builder.ashr(builder.shl(value, sixteen), sixteen) for value in (a, b)))
    high = builder.mul(*(builder.ashr(value, sixteen) for value in (a, b)))
    return builder.add(acc, builder.add(low, high))


def in_order_avx2(builder: ir.IRBuilder, args: Sequence[Any]) -> Any:
    """No instruction, but one that LLVM may not move against others of its kind."""
    half = ir.VectorType(I32, 8)
    kind = ir.FunctionType(half, [half])
    parts = [builder.asm(kind, "", "=x,0", [part], side_effect=True) for part in _halves(builder, args[0])]
    return _joined(builder, parts)


def sum_pairs_avx2(builder: ir.IRBuilder, args: Sequence[Any]) -> Any:
    """`vpmaddwd` with ones."""
    shorts = builder.bitcast(args[1], V_SHORTS)
    return builder.add(args[0], _multiply_add_shorts(builder, shorts, constant(V_SHORTS, 1)))


def sum_pairs_generic(builder: ir.IRBuilder, args: Sequence[Any]) -> Any:
    """Shifts extend the signs of both halves of a lane."""
    sixteen = constant(V_I32, 16)
    low = builder.ashr(builder.shl(args[1], sixteen), sixteen)
    return builder.add(builder.add(args[0], low), builder.ashr(args[1], sixteen))


def dot4_signed_avx2(builder: ir.IRBuilder, args: Sequence[Any]) -> Any:
    """|w| times x with the sign of w: `vpmaddubsw` takes one unsigned operand. 2 · 128 · 127 fits 16 bits."""
    weights, x = (builder.bitcast(a, V_BYTES) for a in args[1:])
    magnitude = declared(builder, "llvm.abs.v64i8", V_BYTES, [V_BYTES, ir.IntType(1)])
    argument = ir.VectorType(I8, 32)
    signed = declared(builder, "llvm.x86.avx2.psign.b", argument, [argument, argument])
    pairs = zip(_halves(builder, x), _halves(builder, weights), strict=True)
    turned = _joined(builder, [builder.call(signed, pair) for pair in pairs])
    products = multiply_pairs_avx2(builder, [builder.call(magnitude, [weights, ir.IntType(1)(0)]), turned])
    return sum_pairs_avx2(builder, [args[0], products])


def dot4_signed_neon(builder: ir.IRBuilder, args: Sequence[Any]) -> Any:
    """`sdot` on each of four registers."""
    words, bytes_ = ir.VectorType(I32, 4), ir.VectorType(I8, 16)
    function = declared(builder, "llvm.aarch64.neon.sdot.v4i32.v16i8", words, [words, bytes_, bytes_])
    acc, weights, x = (_quarters(builder, value) for value in args)
    sums = [
        builder.call(function, [a, builder.bitcast(w, bytes_), builder.bitcast(v, bytes_)])
        for a, w, v in zip(acc, weights, x, strict=True)
    ]
    return _joined(builder, [_joined(builder, sums[:2]), _joined(builder, sums[2:])])


def look_up_neon(builder: ir.IRBuilder, args: Sequence[Any]) -> Any:
    """`tbl` on each of four registers."""
    bytes_ = ir.VectorType(I8, 16)
    function = declared(builder, "llvm.aarch64.neon.tbl1.v16i8", bytes_, [bytes_, bytes_])
    table = builder.bitcast(_quarters(builder, builder.bitcast(_table(builder, args), V_I32))[0], bytes_)
    found = [
        builder.bitcast(builder.call(function, [table, builder.bitcast(part, bytes_)]), ir.VectorType(I32, 4))
        for part in _quarters(builder, args[0])
    ]
    return _joined(builder, [_joined(builder, found[:2]), _joined(builder, found[2:])])


def _quarters(builder: ir.IRBuilder, vector: Any) -> list[Any]:
    """The four 128-bit quarters of a 512-bit vector of 32-bit integers."""
    return [part for half in _halves(builder, vector) for part in _halves(builder, half)]


def dot4_signed_generic(builder: ir.IRBuilder, args: Sequence[Any]) -> Any:
    """Byte by byte in 32-bit lanes."""
    return _bytewise(builder, args, builder.ashr)


def dot4_avx2(builder: ir.IRBuilder, args: Sequence[Any]) -> Any:
    """Even and odd bytes apart, as 16-bit products that cannot overflow 32-bit sums."""
    weights, x = (builder.bitcast(a, V_SHORTS) for a in args[1:])
    eight = constant(V_SHORTS, 8)
    low = builder.and_(weights, constant(V_SHORTS, 0x00FF))
    high = builder.lshr(weights, eight)
    even = _multiply_add_shorts(builder, low, builder.ashr(builder.shl(x, eight), eight))
    odd = _multiply_add_shorts(builder, high, builder.ashr(x, eight))
    return builder.add(builder.add(args[0], even), odd)


def dot4_generic(builder: ir.IRBuilder, args: Sequence[Any]) -> Any:
    """Byte by byte in 32-bit lanes."""
    return _bytewise(builder, args, builder.lshr)


def _bytewise(builder: ir.IRBuilder, args: Sequence[Any], extend: Callable[[Any, Any], Any]) -> Any:
    """Shifts put a byte at the top, shifts back extend its sign, or zeros."""
    acc, weights, x = args
    for byte in range(4):
        to_top = constant(V_I32, 24 - 8 * byte)
        top = constant(V_I32, 24)
        w = extend(builder.shl(weights, to_top), top)
        acc = builder.add(acc, builder.mul(w, builder.ashr(builder.shl(x, to_top), top)))
    return acc


def look_up_x86(builder: ir.IRBuilder, args: Sequence[Any], wide: bool) -> Any:
    """`vpshufb` looks up in each 128 bits apart; the table is in all of them."""
    table, indices = _table(builder, args), builder.bitcast(args[0], V_BYTES)
    if wide:
        name = "llvm.x86.avx512.pshuf.b.512"
        return builder.bitcast(
            builder.call(declared(builder, name, V_BYTES, [V_BYTES, V_BYTES]), [table, indices]), V_I32
        )
    kind = ir.VectorType(I8, 32)
    function = declared(builder, "llvm.x86.avx2.pshuf.b", kind, [kind, kind])
    pairs = zip(_halves(builder, table), _halves(builder, indices), strict=True)
    return builder.bitcast(_joined(builder, [builder.call(function, pair) for pair in pairs]), V_I32)


def look_up_generic(builder: ir.IRBuilder, args: Sequence[Any]) -> Any:
    """One choice for each entry of the table."""
    table, indices = _table(builder, args), builder.bitcast(args[0], V_BYTES)
    found = constant(V_BYTES, 0)
    undefined = ir.Constant(V_BYTES, ir.Undefined)
    for entry in range(16):
        chosen = builder.shuffle_vector(table, undefined, ir.Constant(ir.VectorType(I32, 64), [entry] * 64))
        found = builder.select(builder.icmp_unsigned("==", indices, constant(V_BYTES, entry)), chosen, found)
    return builder.bitcast(found, V_I32)


def _table(builder: ir.IRBuilder, args: Sequence[Any]) -> Any:
    """The 16 bytes of a table, four times."""
    words = ir.VectorType(I64, 8)
    table = ir.Constant(words, ir.Undefined)
    for i in range(8):
        table = builder.insert_element(table, args[1 + i % 2], I32(i))
    return builder.bitcast(table, V_BYTES)
