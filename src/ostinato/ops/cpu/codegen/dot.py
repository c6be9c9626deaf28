"""Dot products of bytes for each set of instructions: sums of four products a lane, always exact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import llvmlite.binding
from llvmlite import ir

from ostinato.ops.cpu.codegen.types import (
    I8,
    I16,
    I32,
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


def dot4_avx2(builder: ir.IRBuilder, args: Sequence[Any]) -> Any:
    """Even and odd bytes apart, as 16-bit products that cannot overflow 32-bit sums."""
    weights, x = (builder.bitcast(a, V_SHORTS) for a in args[1:])
    eight = constant(V_SHORTS, 8)
    low = builder.and_(weights, constant(V_SHORTS, 0x00FF))
    high = builder.lshr(weights, eight)
    even = _multiply_add_shorts(builder, low, builder.ashr(builder.shl(x, eight), eight))
    odd = _multiply_add_shorts(builder, high, builder.ashr(x, eight))
    return builder.add(builder.add(args[0], even), odd)


def dot4_small_avx2(builder: ir.IRBuilder, args: Sequence[Any]) -> Any:
    """`vpmaddubsw` then `vpmaddwd`: a pair of products is at most 2 · 127 · 127, which fits 16 bits."""
    acc, weights, x = args[0], builder.bitcast(args[1], V_BYTES), builder.bitcast(args[2], V_BYTES)
    result, argument = ir.VectorType(I16, 16), ir.VectorType(I8, 32)
    function = declared(builder, "llvm.x86.avx2.pmadd.ub.sw", result, [argument, argument])
    pairs = zip(_halves(builder, weights), _halves(builder, x), strict=True)
    shorts = _joined(builder, [builder.call(function, pair) for pair in pairs])
    return builder.add(acc, _multiply_add_shorts(builder, shorts, constant(V_SHORTS, 1)))


def dot4_generic(builder: ir.IRBuilder, args: Sequence[Any]) -> Any:
    """Byte by byte in 32-bit lanes: shifts put a byte at the top, shifts back extend its sign (or zeros)."""
    acc, weights, x = args
    for byte in range(4):
        to_top = constant(V_I32, 24 - 8 * byte)
        top = constant(V_I32, 24)
        w = builder.lshr(builder.shl(weights, to_top), top)
        acc = builder.add(acc, builder.mul(w, builder.ashr(builder.shl(x, to_top), top)))
    return acc
