"""From a Program to instructions: which kernel does an op, where its operands lie, what can be fused.

An op never looks at a batch here: one lowering serves every batch that uses the same tiles. Fusions: a norm
or gated unit whose output only feeds quantised products writes int8 directly; the rotation of keys is done
while they are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ostinato.ops.cpu.buffers import (
    PAIR_GATE,
    PAIR_HIDDEN,
    PAIR_OUT,
    PAIR_UP,
    ROUTE_EXPERTS,
    ROUTE_PAIRS,
    ROUTE_SHARES,
    ROUTE_STARTS,
    Buffer,
    Buffers,
    KVPool,
    RopeTable,
)
from ostinato.ops.cpu.instructions import Instruction, Items
from ostinato.ops.cpu.kernel import Kernel
from ostinato.ops.cpu.kernels import attention, experts, kv, rows
from ostinato.ops.cpu.kernels.common import GROUP
from ostinato.ops.cpu.kernels.matmul import EXPERTS, MATMUL
from ostinato.ops.cpu.memory import Arena
from ostinato.ops.cpu.packing import GROUP_COLUMNS
from ostinato.ops.cpu.simd import LANES
from ostinato.ops.cpu.tiles import Tiles
from ostinato.ops.cpu.weights import Matrix, PackedWeights
from ostinato.ops.program import (
    Attention,
    Embed,
    Experts,
    GatedUnit,
    MatMul,
    Op,
    Program,
    RmsNorm,
    Rope,
    Softcap,
    StoreKV,
    TakeRows,
    Weight,
)

LONG_RUN_BYTES = 1 << 17
"""Memory read in one go, as long as no more than that is at stake when a worker is held up."""

EXPERT_TILE = 4
"""Pairs a tile of an expert: with many experts each has few."""

SMALL = 16
"""Items to a chunk where an item is done in less time than a chunk is claimed."""


@dataclass(slots=True)
class Memory:
    """Everything that instructions may point to."""

    weights: PackedWeights
    buffers: Buffers
    kv: KVPool
    rope_tables: dict[tuple[tuple[float, ...], float], RopeTable]
    scratch: Arena
    scratch_bytes: int
    states: Arena


@dataclass(slots=True)
class _Lowering:
    program: Program
    memory: Memory
    tiles: Tiles
    out: list[Instruction] = field(default_factory=list)
    quantized: set[str] = field(default_factory=set)
    rows: set[str] = field(default_factory=set)

    def run(self) -> list[Instruction]:
        ops = self.program.ops
        i = 0
        while i < len(ops):
            i += self._op(ops[i], ops[i + 1 :])
        return self.out

    def _op(self, op: Op, rest: Sequence[Op]) -> int:
        """Lower one op, or a few together; return how many."""
        match op:
            case Embed():
                self._embed(op)
            case RmsNorm():
                self._rms_norm(op, rest)
            case MatMul():
                self._matmul(op)
            case Rope():
                if rest and isinstance(rest[0], StoreKV) and rest[0].k == op.x:
                    self._store_kv(rest[0], op)
                    return 2
                self._rope(op)
            case StoreKV():
                self._store_kv(op, None)
            case Attention():
                self._attention(op)
            case GatedUnit():
                self._gated_unit(op, rest)
            case TakeRows():
                self._take_rows(op)
            case Softcap():
                self._softcap(op)
            case Experts():
                self._experts(op)
        return 1

    def _emit(
        self, kernel: Kernel, items: Items, reads: Sequence[str], writes: Sequence[str], **values: int | float
    ) -> None:
        self.out.append(Instruction(kernel, items, values, frozenset(reads), frozenset(writes)))

    def _each(self, like: str, factor: int = 1, least: int = 1) -> Items:
        """An item, or `factor` items, for each row of a buffer."""
        return Items(factor, "num_rows" if like in self.rows else "num_tokens", least=least)

    def _panels(self, matrix: Matrix, tile: int) -> Items:
        """The panels of a matrix; where each is read for one token only, a chunk is a long run of memory."""
        least = -(-LONG_RUN_BYTES * matrix.panels // matrix.num_bytes) if tile == 1 else 1
        return Items(matrix.panels, least=least)

    def _wants(self, name: str, rest: Sequence[Op]) -> tuple[bool, bool]:
        """Return whether later ops read a buffer as floats, and as int8, before it is written again."""
        floats = quantized = False
        for op in rest:
            if isinstance(op, MatMul | Experts) and op.x == name and self._takes_int8(op):
                quantized = True
            elif name in _inputs(op):
                floats = True
            if name in _outputs(op):
                break
        return floats, quantized

    def _takes_int8(self, op: MatMul | Experts) -> bool:
        weight = op.weight if isinstance(op, MatMul) else op.gate[0]
        return self.memory.weights.matrices[weight].layout.quantized

    def _by_rows(self, name: str) -> int:
        return int(name in self.rows)

    def _written(self, name: str, like: str) -> None:
        """Note that a buffer has new floats, of rows if the buffer it was made from has."""
        self.quantized.discard(name)
        if like in self.rows:
            self.rows.add(name)

    def _embed(self, op: Embed) -> None:
        matrix, x = self.memory.weights.matrices[op.weight], self.memory.buffers[op.out]
        size = {"groups": matrix.columns // GROUP} if matrix.layout.quantized else {"columns": matrix.columns}
        self._emit(
            rows.EMBED[matrix.layout],
            self._each(op.out),
            [],
            [op.out],
            weights=matrix.address,
            x=x.address,
            stride=x.stride,
            scale=op.scale,
            **size,
            **(self._scratch_fields() if matrix.layout.quantized else {}),
        )
        self._written(op.out, op.out)

    def _rms_norm(self, op: RmsNorm, rest: Sequence[Op]) -> None:
        x, y = self.memory.buffers[op.x], self.memory.buffers[op.out]
        floats, quantized = self._wants(op.out, rest)
        quantized = quantized and op.heads == 1 and not op.accumulate
        width = x.width // op.heads
        assert op.heads == 1 or width % LANES == 0, (op, width)
        common = {
            "x": x.address,
            "weight": self.memory.weights.vectors[op.weight],
            "stride": x.stride,
            "width": width,
            "eps": op.eps,
        }
        self._written(op.out, op.x)
        if quantized:
            self._emit(
                rows.rms_norm_quantize,
                self._each(op.x),
                [op.x],
                [_q8(op.out)],
                **common,
                **_quantized_fields(y),
            )
            self.quantized.add(op.out)
        if floats or not quantized:
            self._emit(
                rows.rms_norm,
                self._each(op.x),
                [op.x, *([op.out] if op.accumulate else [])],
                [op.out],
                **common,
                y=y.address,
                heads=op.heads,
                part=x.stride if op.heads == 1 else width,
                accumulate=int(op.accumulate),
            )

    def _matmul(self, op: MatMul) -> None:
        matrix, buffers = self.memory.weights.matrices[op.weight], self.memory.buffers
        x, y = buffers[op.x], buffers[op.out]
        tile = self.tiles.rows if op.x in self.rows else self.tiles.tokens
        kernel, items = MATMUL[matrix.layout, tile], self._panels(matrix, tile)
        common = {
            "by_rows": self._by_rows(op.x),
            "weights": matrix.address,
            "y": y.address,
            "y_stride": y.stride,
            "accumulate": int(op.accumulate),
            "bias": self.memory.weights.vectors[op.bias] if op.bias else 0,
            "scale": op.scale,
        }
        reads = [op.out] if op.accumulate else []
        if matrix.layout.quantized:
            self._quantize(x)
            fields = {"groups": matrix.columns // GROUP_COLUMNS, **_quantized_fields(x)}
            fields |= self._scratch_fields()
            self._emit(kernel, items, [_q8(op.x), *reads], [op.out], **common, **fields)
        else:
            fields = {"columns": matrix.columns, "x": x.address, "x_stride": x.stride}
            self._emit(kernel, items, [op.x, *reads], [op.out], **common, **fields)
        self._written(op.out, op.x)

    def _quantize(self, x: Buffer) -> None:
        """Make sure that a buffer's quantised twin is there."""
        if x.name in self.quantized:
            return
        groups = x.width // GROUP
        self._emit(
            rows.quantize,
            self._each(x.name, groups, SMALL),
            [x.name],
            [_q8(x.name)],
            x=x.address,
            stride=x.stride,
            groups=groups,
            **_quantized_fields(x),
        )
        self.quantized.add(x.name)

    def _rotation(self, op: Rope | None) -> dict[str, int]:
        """Return the fields of a kernel that rotates; a table of 0 says not to."""
        if op is None:
            return {"table": 0, "rotated": 0}
        table = self.memory.rope_tables[op.frequencies, op.magnitude]
        return {"table": table.arena.address, "rotated": table.rotated}

    def _rope(self, op: Rope) -> None:
        x = self.memory.buffers[op.x]
        self._emit(
            kv.rope,
            self._each(op.x, op.heads, SMALL),
            [op.x],
            [op.x],
            x=x.address,
            stride=x.stride,
            heads=op.heads,
            head_dim=op.head_dim,
            **self._rotation(op),
        )
        self._written(op.x, op.x)

    def _kv_fields(self, layer: int) -> dict[str, int]:
        pool = self.memory.kv
        return {
            "pool": pool.arena.address,
            "layers": pool.shape.num_layers,
            "layer": layer,
            "kv_heads": pool.shape.heads,
            "head_dim": pool.shape.head_dim,
            **self._scratch_fields(),
        }

    def _scratch_fields(self) -> dict[str, int]:
        return {"scratch": self.memory.scratch.address, "scratch_bytes": self.memory.scratch_bytes}

    def _store_kv(self, op: StoreKV, rotation: Rope | None) -> None:
        shape = self.memory.kv.shape
        assert rotation is None or (rotation.heads, rotation.head_dim) == (shape.heads, shape.head_dim), (
            rotation
        )
        k, v = self.memory.buffers[op.k], self.memory.buffers[op.v]
        self._emit(
            kv.store_kv,
            self._each(op.k, self.memory.kv.shape.heads, SMALL),
            [op.k, op.v],
            [f"kv {op.layer}", *([op.k] if rotation else [])],
            k=k.address,
            v=v.address,
            stride=k.stride,
            **self._rotation(rotation),
            **self._kv_fields(op.layer),
        )
        if rotation:
            self._written(op.k, op.k)

    def _attention(self, op: Attention) -> None:
        q, y = self.memory.buffers[op.q], self.memory.buffers[op.out]
        per_kv, queries = op.heads // op.kv_heads, self.tiles.attention * op.heads // op.kv_heads
        common = {"scale": op.scale, "window": op.window, "softcap": op.softcap, **self._kv_fields(op.layer)}
        reads = [op.q, f"kv {op.layer}"]
        if self.tiles.split:
            kernel = attention.segments_kernel(per_kv, op.head_dim, self.tiles.accumulators)
            items = Items(op.kv_heads, "num_parts")
            states = self.memory.states.address
            self._emit(
                kernel, items, reads, ["states"], q=q.address, stride=q.stride, states=states, **common
            )
            self._emit(
                attention.merge_segments,
                Items(op.heads, "num_tokens"),
                ["states"],
                [op.out],
                y=y.address,
                stride=y.stride,
                kv_heads=op.kv_heads,
                heads_per_kv=per_kv,
                head_dim=op.head_dim,
                window=op.window,
                states=states,
            )
        else:
            self._emit(
                attention.attention_kernel(queries, per_kv, op.head_dim, self.tiles.accumulators),
                Items(op.kv_heads, "num_tokens", self.tiles.attention),
                reads,
                [op.out],
                q=q.address,
                y=y.address,
                stride=q.stride,
                **common,
            )
        self._written(op.out, op.q)

    def _gated_unit(self, op: GatedUnit, rest: Sequence[Op]) -> None:
        buffers = self.memory.buffers
        gate, up, y = buffers[op.gate], buffers[op.up], buffers[op.out]
        floats, quantized = self._wants(op.out, rest)
        common = {"gate": gate.address, "up": up.address}
        self._written(op.out, op.gate)
        if quantized:
            fields = {"groups": y.width // GROUP, "stride": gate.stride, **_quantized_fields(y)}
            self._emit(
                rows.GATED_QUANTIZE[op.activation],
                self._each(op.gate, y.width // GROUP, SMALL),
                [op.gate, op.up],
                [_q8(op.out)],
                **common,
                **fields,
            )
            self.quantized.add(op.out)
        if floats or not quantized:
            self._emit(
                rows.GATED[op.activation],
                self._each(op.gate, gate.stride // LANES, SMALL),
                [op.gate, op.up],
                [op.out],
                **common,
                y=y.address,
            )

    def _experts(self, op: Experts) -> None:
        """Choose experts, list their pairs, multiply pair by pair, and add up."""
        buffers, scores, out = (
            self.memory.buffers,
            self.memory.buffers[op.scores],
            self.memory.buffers[op.out],
        )
        experts_of, shares, starts, pairs = (
            buffers[name].address for name in (ROUTE_EXPERTS, ROUTE_SHARES, ROUTE_STARTS, ROUTE_PAIRS)
        )
        count, chosen = len(op.gate), op.chosen
        self._emit(
            experts.choose_experts,
            self._each(op.scores),
            [op.scores],
            [op.scores, ROUTE_SHARES],
            scores=scores.address,
            stride=scores.stride,
            experts=count,
            chosen=chosen,
            normalized=int(op.normalized),
            experts_of=experts_of,
            shares=shares,
        )
        self._emit(
            experts.group_pairs,
            Items(),
            [ROUTE_SHARES],
            [ROUTE_PAIRS],
            experts=count,
            chosen=chosen,
            experts_of=experts_of,
            starts=starts,
            pairs=pairs,
        )
        self._expert_products(op.gate, op.x, PAIR_GATE, chosen)
        self._expert_products(op.up, op.x, PAIR_UP, chosen)
        self._pair_unit(op)
        self._expert_products(op.down, PAIR_HIDDEN, PAIR_OUT, 1)
        self._emit(
            experts.add_experts,
            self._each(op.out),
            [PAIR_OUT, ROUTE_SHARES, op.out],
            [op.out],
            y=out.address,
            stride=out.stride,
            pair_rows=buffers[PAIR_OUT].address,
            chosen=chosen,
            shares=shares,
        )
        self._written(op.out, op.x)

    def _expert_products(self, weights: Sequence[Weight], x_name: str, y_name: str, share: int) -> None:
        """Multiply each expert's matrix with the rows of its pairs; `share` pairs have one row of x."""
        matrix, expert_bytes = self.memory.weights.stacked(weights)
        x, y = self.memory.buffers[x_name], self.memory.buffers[y_name]
        kernel = EXPERTS[matrix.layout, min(self.tiles.tokens, EXPERT_TILE)]
        common = {
            "weights": matrix.address,
            "expert_bytes": expert_bytes,
            "panels": matrix.panels,
            "y": y.address,
            "y_stride": y.stride,
            "starts": self.memory.buffers[ROUTE_STARTS].address,
            "pairs": self.memory.buffers[ROUTE_PAIRS].address,
            "share": share,
        }
        items = Items(len(weights) * matrix.panels, least=SMALL)
        if matrix.layout.quantized:
            if share > 1:
                self._quantize(x)
            fields = {"groups": matrix.columns // GROUP_COLUMNS, **_quantized_fields(x)}
            self._emit(kernel, items, [_q8(x_name), ROUTE_PAIRS], [y_name], **common, **fields)
        else:
            fields = {"columns": matrix.columns, "x": x.address, "x_stride": x.stride}
            self._emit(kernel, items, [x_name, ROUTE_PAIRS], [y_name], **common, **fields)

    def _pair_unit(self, op: Experts) -> None:
        """activation(gate) · up of every pair, in the form that the last product reads."""
        buffers = self.memory.buffers
        gate, up, hidden = buffers[PAIR_GATE], buffers[PAIR_UP], buffers[PAIR_HIDDEN]
        common = {"gate": gate.address, "up": up.address}
        if self.memory.weights.matrices[op.down[0]].layout.quantized:
            groups = hidden.width // GROUP
            self._emit(
                rows.GATED_QUANTIZE[op.activation],
                Items(op.chosen * groups, "num_tokens", least=SMALL),
                [PAIR_GATE, PAIR_UP],
                [_q8(PAIR_HIDDEN)],
                **common,
                stride=gate.stride,
                groups=groups,
                **_quantized_fields(hidden),
            )
        else:
            self._emit(
                rows.GATED[op.activation],
                Items(op.chosen * gate.stride // LANES, "num_tokens", least=SMALL),
                [PAIR_GATE, PAIR_UP],
                [PAIR_HIDDEN],
                **common,
                y=hidden.address,
            )

    def _softcap(self, op: Softcap) -> None:
        x = self.memory.buffers[op.x]
        items = self._each(op.x, x.stride // LANES, SMALL)
        self._emit(rows.softcap, items, [op.x], [op.x], x=x.address, cap=op.cap)
        self._written(op.x, op.x)

    def _take_rows(self, op: TakeRows) -> None:
        x, y = self.memory.buffers[op.x], self.memory.buffers[op.out]
        self._emit(
            rows.take_rows, Items(1, "num_rows"), [op.x], [op.out], x=x.address, y=y.address, stride=x.stride
        )
        self._written(op.out, op.x)
        self.rows.add(op.out)


def lower(program: Program, memory: Memory, tiles: Tiles) -> list[Instruction]:
    """Return the instructions of a program for batches of these tiles."""
    return _Lowering(program, memory, tiles).run()


def _q8(name: str) -> str:
    return f"{name} as int8"


def _quantized_fields(buffer: Buffer) -> dict[str, int]:
    q = buffer.quantized
    return {
        "values": q.values,
        "scales": q.scales,
        "scaled_sums": q.scaled_sums,
        "integer_sums": q.integer_sums,
    }


def _inputs(op: Op) -> tuple[str, ...]:
    match op:
        case Embed():
            return ()
        case MatMul(x, out, _, accumulate):
            return (x, out) if accumulate else (x,)
        case RmsNorm(x, out):
            return (x, out) if op.accumulate else (x,)
        case Rope(x) | TakeRows(x):
            return (x,)
        case StoreKV(k, v):
            return (k, v)
        case Attention(q):
            return (q,)
        case GatedUnit(gate, up):
            return (gate, up)
        case Experts(x, scores, out):
            return (x, scores, out)
        case Softcap(x):
            return (x,)


def _outputs(op: Op) -> tuple[str, ...]:
    match op:
        case StoreKV():
            return ()
        case Rope(x) | Softcap(x):
            return (x,)
        case _:
            return (op.out,)
