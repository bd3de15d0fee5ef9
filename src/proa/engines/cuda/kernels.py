"""The kernels of a decode step and of a pass over prompts.

Each computes a row, or a block of 64 tokens of one sequence, from that row's data alone and in an order that does not
depend on how many others there are: so no bit of a sequence depends on its company.
"""

from __future__ import annotations

import triton
import triton.language as tl

# What is known of a row that is decoded, as columns of one tensor of int64.
TOKEN: tl.constexpr = tl.constexpr(0)  # chosen, not in the cache yet
POSITION: tl.constexpr = tl.constexpr(1)  # of that token; negative where nothing is decoded
PROMPT: tl.constexpr = tl.constexpr(2)  # tokens in the blocks that a group shares
SEED: tl.constexpr = tl.constexpr(3)
COUNT: tl.constexpr = tl.constexpr(4)  # tokens chosen since it has this row
FORCED: tl.constexpr = tl.constexpr(5)  # of these, how many are given
LIMIT: tl.constexpr = tl.constexpr(6)  # how many are chosen at the most
TEMPERATURE: tl.constexpr = tl.constexpr(7)  # the bits of a float64; 0 is greedy
TOP_K: tl.constexpr = tl.constexpr(8)  # 0 keeps all
TOP_P: tl.constexpr = tl.constexpr(9)  # the bits of a float64; 1 keeps all
LEAST: tl.constexpr = tl.constexpr(10)  # the bits of a float64: the logarithm of min-p; -inf keeps all
PENALTY: tl.constexpr = tl.constexpr(11)  # the bits of a float64; 1 is none
FIELDS = 12
_FIELDS: tl.constexpr = tl.constexpr(FIELDS)

GOLDEN: tl.constexpr = tl.constexpr(0x9E3779B97F4A7C15)


@triton.jit
def _normed(x, weight, epsilon, WIDTH: tl.constexpr):
    """A root-mean-square norm over the last dimension, rounded where Hugging Face rounds."""
    wide = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, -1) / WIDTH + epsilon)
    if len(x.shape) == 2:
        return (wide * scale[:, None]).to(x.dtype) * weight[None, :]
    return (wide * scale).to(x.dtype) * weight


@triton.jit
def embed(tokens, stride, embeddings, weight, residual, normed, epsilon, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """The embeddings of tokens, and their norm."""
    row = tl.program_id(0)
    d = tl.arange(0, PADDED)
    inside = d < WIDTH
    token = tl.load(tokens + row * stride).to(tl.int64)
    x = tl.load(embeddings + token * WIDTH + d, mask=inside, other=0.0)
    tl.store(residual + row * WIDTH + d, x, mask=inside)
    y = _normed(x, tl.load(weight + d, mask=inside, other=0.0), epsilon, WIDTH)
    tl.store(normed + row * WIDTH + d, y, mask=inside)


@triton.jit
def add_norm(
    parts, bias, weight, residual, normed, epsilon, rows,
    PARTS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """Add a product, which comes in parts, to the residual; and the norm of that."""
    row = tl.program_id(0)
    d = tl.arange(0, PADDED)
    inside = d < WIDTH
    total = tl.zeros((PADDED,), tl.float32)
    for part in tl.static_range(PARTS):
        total += tl.load(parts + (part * rows + row) * WIDTH + d, mask=inside, other=0.0)
    if BIASED:
        total += tl.load(bias + d, mask=inside, other=0.0).to(tl.float32)
    x = tl.load(residual + row * WIDTH + d, mask=inside, other=0.0)
    x = (x.to(tl.float32) + total.to(x.dtype).to(tl.float32)).to(x.dtype)
    tl.store(residual + row * WIDTH + d, x, mask=inside)
    y = _normed(x, tl.load(weight + d, mask=inside, other=0.0), epsilon, WIDTH)
    tl.store(normed + row * WIDTH + d, y, mask=inside)


@triton.jit
def product(
    inputs, weight, bias, out, rows, columns, depth,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PARTS: tl.constexpr, BIASED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """`inputs @ weight.T`, each part over its share of the depth; the weight is `(columns, depth)`."""
    part = tl.program_id(2)
    m = tl.program_id(1) * M + tl.arange(0, M)
    n = tl.program_id(0) * N + tl.arange(0, N)
    k = tl.arange(0, K)
    is_row, is_column = m < rows, n < columns
    share = depth // PARTS
    left = inputs + m[:, None] * depth + part * share + k[None, :]
    right = weight + n[None, :].to(tl.int64) * depth + part * share + k[:, None]
    total = tl.zeros((M, N), tl.float32)
    for _ in range(0, share, K):
        a = tl.load(left, mask=is_row[:, None], other=0.0)
        b = tl.load(right, mask=is_column[None, :], other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
        left += K
        right += K
    if BIASED:
        total += tl.load(bias + n, mask=is_column, other=0.0).to(tl.float32)[None, :]
    place = (part * rows + m[:, None]).to(tl.int64) * columns + n[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


@triton.jit
def gated_product(
    inputs, weight, out, rows, columns, depth,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`silu(inputs @ gate.T) * (inputs @ up.T)`; the weight is `(2 * columns, depth)`, the gate first."""
    m = tl.program_id(1) * M + tl.arange(0, M)
    n = tl.program_id(0) * N + tl.arange(0, N)
    k = tl.arange(0, K)
    is_row, is_column = m < rows, n < columns
    left = inputs + m[:, None] * depth + k[None, :]
    gates = weight + n[None, :].to(tl.int64) * depth + k[:, None]
    ups = gates + columns.to(tl.int64) * depth
    gate = tl.zeros((M, N), tl.float32)
    up = tl.zeros((M, N), tl.float32)
    for _ in range(0, depth, K):
        a = tl.load(left, mask=is_row[:, None], other=0.0)
        gate = tl.dot(a, tl.load(gates, mask=is_column[None, :], other=0.0), gate, input_precision=PRECISION)
        up = tl.dot(a, tl.load(ups, mask=is_column[None, :], other=0.0), up, input_precision=PRECISION)
        left += K
        gates += K
        ups += K
    dtype = out.dtype.element_ty
    gate = gate.to(dtype).to(tl.float32)
    active = (gate * tl.sigmoid(gate)).to(dtype).to(tl.float32)
    value = (active * up.to(dtype).to(tl.float32)).to(dtype)
    tl.store(out + m[:, None].to(tl.int64) * columns + n[None, :], value, mask=is_row[:, None] & is_column[None, :])


@triton.jit
def _turned(heads, d, weight, cosine, sine, epsilon, inside, WIDTH: tl.constexpr, NORMED: tl.constexpr):
    """Heads in `(heads, width)` memory, normed and rotated: each element pairs with the one half a width away."""
    other = (d + WIDTH // 2) % WIDTH
    x = tl.load(heads + d[None, :], mask=inside[:, None], other=0.0)
    y = tl.load(heads + other[None, :], mask=inside[:, None], other=0.0)
    if NORMED:
        wide = x.to(tl.float32)
        scale = tl.rsqrt(tl.sum(wide * wide, 1) / WIDTH + epsilon)[:, None]
        x = (wide * scale).to(x.dtype) * tl.load(weight + d)[None, :]
        y = (y.to(tl.float32) * scale).to(y.dtype) * tl.load(weight + other)[None, :]
    return (x.to(tl.float32) * cosine[None, :] + y.to(tl.float32) * sine[None, :]).to(x.dtype)


@triton.jit
def _together(
    mixtures, sums, first, programs, is_head, d, SHARED: tl.constexpr, PADDED: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """The parts that programs have computed of one row's attention, put together in the order of the programs."""
    peak = tl.full((PADDED,), float("-inf"), tl.float32)
    for other in range(programs):
        part = first + other * SHARED
        peak = tl.maximum(peak, tl.load(sums + part * 2, mask=is_head, other=0.0, cache_modifier=".cg"))
    total = tl.zeros((PADDED,), tl.float32)
    mixed = tl.zeros((PADDED, WIDTH), tl.float32)
    for other in range(programs):
        part = first + other * SHARED
        shrink = tl.exp(tl.load(sums + part * 2, mask=is_head, other=0.0, cache_modifier=".cg") - peak)
        total += shrink * tl.load(sums + part * 2 + 1, mask=is_head, other=1.0, cache_modifier=".cg")
        place = mixtures + part[:, None] * WIDTH + d[None, :]
        mixed += shrink[:, None] * tl.load(place, mask=is_head[:, None], other=0.0, cache_modifier=".cg")
    return mixed / total[:, None]


@triton.jit
def attend(
    qkv, out, keys, values, state, table, query_weight, key_weight, cosines, sines, mixtures, sums, arrived,
    scale, epsilon, columns,
    HEADS: tl.constexpr, SHARED: tl.constexpr, PADDED: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    SPAN: tl.constexpr, SPLITS: tl.constexpr, NORMED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One token of every row: write its key and value, and attend to all of the row's tokens so far, for one key head.

    A row's tokens lie in blocks: those of a shared prompt first, up to the end of its last block, then its own. Several
    programs share a long row: each takes so many of its tokens, and whoever is last puts the parts together, in the
    order of the programs.
    """
    row = tl.program_id(0)
    head = tl.program_id(1)
    split = tl.program_id(2)
    position = tl.load(state + row * _FIELDS + POSITION).to(tl.int32)
    if position < 0:
        return
    prompt = tl.load(state + row * _FIELDS + PROMPT).to(tl.int32)
    own = (prompt + BLOCK - 1) // BLOCK * BLOCK
    slot = own + position - prompt
    programs = tl.minimum(tl.maximum((slot + SPAN - 1) // SPAN, 1), SPLITS)
    if split >= programs:
        return
    d = tl.arange(0, WIDTH)
    cosine = tl.load(cosines + position * WIDTH + d)
    sine = tl.load(sines + position * WIDTH + d)
    first = qkv + row * (HEADS * SHARED + 2 * HEADS) * WIDTH
    g = tl.arange(0, PADDED)
    queries = _turned(
        first + (head * SHARED + g[:, None]) * WIDTH, d, query_weight, cosine, sine, epsilon, g < SHARED, WIDTH, NORMED
    )
    peak = tl.full((PADDED,), float("-inf"), tl.float32)
    total = tl.zeros((PADDED,), tl.float32)
    mixed = tl.zeros((PADDED, WIDTH), tl.float32)
    if split == 0:  # the token itself, from registers
        one = tl.arange(0, 1)
        place = first + (HEADS * SHARED + head + one[:, None]) * WIDTH
        key = _turned(place, d, key_weight, cosine, sine, epsilon, one < 1, WIDTH, NORMED)
        value = tl.load(first + (HEADS * SHARED + HEADS + head) * WIDTH + d)
        block = tl.load(table + row * columns + slot // BLOCK).to(tl.int64)
        target = ((block * HEADS + head) * BLOCK + slot % BLOCK) * WIDTH
        tl.store(keys + target + one[:, None] + d[None, :], key)
        tl.store(values + target + d, value)
        peak = tl.sum(queries.to(tl.float32) * key.to(tl.float32), 1) * scale
        total += 1.0
        mixed += value.to(tl.float32)[None, :]
    t = tl.arange(0, BLOCK)
    end = tl.where(split == SPLITS - 1, slot, tl.minimum((split + 1) * SPAN, slot))
    for start in range(split * SPAN, end, BLOCK):  # one block at a time: its number is one load for all of its tokens
        at = start + t
        seen = (at < prompt) | ((at >= own) & (at < slot))
        block = tl.load(table + row * columns + start // BLOCK).to(tl.int64)
        offsets = ((block * HEADS + head) * BLOCK + t) * WIDTH
        tile = tl.load(keys + offsets[None, :] + d[:, None], mask=seen[None, :], other=0.0)
        scores = tl.dot(queries, tile, input_precision=PRECISION) * scale
        scores = tl.where(seen[None, :], scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        level = tl.where(higher == float("-inf"), 0.0, higher)  # of a block in which nothing is seen
        weights = tl.exp(scores - level[:, None])
        shrink = tl.exp(peak - level)
        tile = tl.load(values + offsets[:, None] + d[None, :], mask=seen[:, None], other=0.0)
        total = total * shrink + tl.sum(weights, 1)
        mixed = mixed * shrink[:, None] + tl.dot(weights.to(tile.dtype), tile, input_precision=PRECISION)
        peak = higher
    target = out + (row * HEADS * SHARED + head * SHARED + g[:, None]) * WIDTH + d[None, :]
    is_head = g < SHARED
    if programs == 1:
        tl.store(target, (mixed / total[:, None]).to(out.dtype.element_ty), mask=is_head[:, None])
        return
    pair = row * HEADS + head
    part = (pair * SPLITS + split) * SHARED + g
    tl.store(mixtures + part[:, None] * WIDTH + d[None, :], mixed, mask=is_head[:, None])
    tl.store(sums + part * 2, peak, mask=is_head)
    tl.store(sums + part * 2 + 1, total, mask=is_head)
    tl.debug_barrier()  # all of this program's stores are before its arrival
    if tl.atomic_add(arrived + pair, 1, sem="acq_rel") < programs - 1:
        return
    tl.store(arrived + pair, 0)
    whole = _together(mixtures, sums, pair * SPLITS * SHARED + g, programs, is_head, d, SHARED, PADDED, WIDTH)
    tl.store(target, whole.to(out.dtype.element_ty), mask=is_head[:, None])


@triton.jit
def write_prompt(
    qkv, keys, values, chunks, table, query_weight, key_weight, cosines, sines, epsilon, columns,
    HEADS: tl.constexpr, SHARED: tl.constexpr, PADDED: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    CHUNK: tl.constexpr, NORMED: tl.constexpr,
):  # fmt: skip
    """Turn the queries of a prompt's token in place, and write its key and value, for one key head."""
    token = tl.program_id(0)
    head = tl.program_id(1)
    chunk = token // CHUNK
    start = tl.load(chunks + chunk * 3)
    count = tl.load(chunks + chunk * 3 + 1)
    prompt = tl.load(chunks + chunk * 3 + 2)
    if token % CHUNK >= count:
        return
    position = start + token % CHUNK
    own = (prompt + BLOCK - 1) // BLOCK * BLOCK
    slot = tl.where(position < prompt, position, own + position - prompt)
    d = tl.arange(0, WIDTH)
    cosine = tl.load(cosines + position * WIDTH + d)
    sine = tl.load(sines + position * WIDTH + d)
    first = qkv + token * (HEADS * SHARED + 2 * HEADS) * WIDTH
    g = tl.arange(0, PADDED)
    place = first + (head * SHARED + g[:, None]) * WIDTH
    queries = _turned(place, d, query_weight, cosine, sine, epsilon, g < SHARED, WIDTH, NORMED)
    one = tl.arange(0, 1)
    key = _turned(
        first + (HEADS * SHARED + head + one[:, None]) * WIDTH,
        d,
        key_weight,
        cosine,
        sine,
        epsilon,
        one < 1,
        WIDTH,
        NORMED,
    )
    value = tl.load(first + (HEADS * SHARED + HEADS + head) * WIDTH + d)
    block = tl.load(table + chunk * columns + slot // BLOCK).to(tl.int64)
    target = ((block * HEADS + head) * BLOCK + slot % BLOCK) * WIDTH
    tl.store(keys + target + one[:, None] + d[None, :], key)
    tl.store(values + target + d, value)
    tl.debug_barrier()  # every half has been read before it is written over
    tl.store(place + d[None, :], queries, mask=(g < SHARED)[:, None])


@triton.jit
def attend_prompt(
    qkv, out, keys, values, chunks, table, scale, columns,
    HEADS: tl.constexpr, SHARED: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
    TILE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A chunk of one sequence's tokens, for one query head: attention to all tokens up to each."""
    chunk = tl.program_id(0)
    query_head = tl.program_id(1)
    head = query_head // SHARED
    start = tl.load(chunks + chunk * 3)
    count = tl.load(chunks + chunk * 3 + 1)
    prompt = tl.load(chunks + chunk * 3 + 2)
    if count == 0:
        return
    own = (prompt + BLOCK - 1) // BLOCK * BLOCK
    q = tl.arange(0, CHUNK)
    d = tl.arange(0, WIDTH)
    positions = start + q
    slots = tl.where(positions < prompt, positions, own + positions - prompt)
    last = tl.max(tl.where(q < count, slots, 0), 0)
    tokens = chunk * CHUNK + q
    queries = tl.load(
        qkv + (tokens[:, None] * (HEADS * SHARED + 2 * HEADS) + query_head) * WIDTH + d[None, :],
        mask=(q < count)[:, None], other=0.0,
    )  # fmt: skip
    peak = tl.full((CHUNK,), float("-inf"), tl.float32)
    total = tl.zeros((CHUNK,), tl.float32)
    mixed = tl.zeros((CHUNK, WIDTH), tl.float32)
    t = tl.arange(0, TILE)
    for first in range(0, last + 1, TILE):
        at = first + t
        there = (at < prompt) | (at >= own)
        blocks = tl.load(table + chunk * columns + at // BLOCK, mask=there & (at <= last), other=0).to(tl.int64)
        offsets = ((blocks * HEADS + head) * BLOCK + at % BLOCK) * WIDTH
        tile = tl.load(keys + offsets[None, :] + d[:, None], mask=(there & (at <= last))[None, :], other=0.0)
        scores = tl.dot(queries, tile, input_precision=PRECISION) * scale
        seen = there[None, :] & (at[None, :] <= slots[:, None])
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        weights = tl.exp(scores - higher[:, None])
        shrink = tl.exp(peak - higher)
        tile = tl.load(values + offsets[:, None] + d[None, :], mask=(there & (at <= last))[:, None], other=0.0)
        total = total * shrink + tl.sum(weights, 1)
        mixed = mixed * shrink[:, None] + tl.dot(weights.to(tile.dtype), tile, input_precision=PRECISION)
        peak = higher
    result = (mixed / total[:, None]).to(out.dtype.element_ty)
    tl.store(
        out + (tokens[:, None] * HEADS * SHARED + query_head) * WIDTH + d[None, :], result, mask=(q < count)[:, None]
    )


@triton.jit
def _temperature(state, row):
    return tl.load(state + row * _FIELDS + TEMPERATURE).to(tl.float64, bitcast=True).to(tl.float32)


@triton.jit
def _is_restricted(state, row):
    """Whether the row samples from less than the whole vocabulary."""
    top_p = tl.load(state + row * _FIELDS + TOP_P).to(tl.float64, bitcast=True)
    least = tl.load(state + row * _FIELDS + LEAST).to(tl.float64, bitcast=True)
    return (tl.load(state + row * _FIELDS + TOP_K) > 0) | (top_p < 1.0) | (least > float("-inf"))


@triton.jit
def penalise(logits, state, seen, penalised, vocabulary, SIZE: tl.constexpr):
    """A part of the logits that a row samples from: if it has a penalty, those of tokens that it has seen are
    divided by it, or multiplied if negative. The token that this step put into the cache is seen from now on."""
    row = tl.program_id(0)
    own = state + row * _FIELDS
    if tl.load(own + POSITION) < 0:
        return
    v = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    inside = v < vocabulary
    at = row.to(tl.int64) * vocabulary + v
    x = tl.load(logits + at, mask=inside, other=0.0)
    penalty = tl.load(own + PENALTY).to(tl.float64, bitcast=True).to(tl.float32)
    if penalty != 1.0:
        is_newest = v == tl.load(own + TOKEN)
        is_seen = is_newest | (tl.load(seen + at, mask=inside, other=0) != 0)
        tl.store(seen + at, is_seen.to(tl.uint8), mask=inside & is_newest)
        x = tl.where(is_seen, tl.where(x < 0, x * penalty, x / penalty), x)
    tl.store(penalised + at, x, mask=inside)


@triton.jit
def _scaled(logits, row, part, vocabulary, temperature, SIZE: tl.constexpr):
    """A part of a row's logits at its temperature."""
    v = part * SIZE + tl.arange(0, SIZE)
    x = tl.load(logits + row.to(tl.int64) * vocabulary + v, mask=v < vocabulary, other=float("-inf"))
    return tl.where(temperature > 0, x / temperature, x)


@triton.jit
def weigh(logits, state, peaks, sums, vocabulary, parts, SIZE: tl.constexpr):
    """Of a part of the vocabulary: its highest logit, and the sum of its weights relative to that."""
    row = tl.program_id(0)
    part = tl.program_id(1)
    if tl.load(state + row * _FIELDS + POSITION) < 0:
        return
    x = _scaled(logits, row, part, vocabulary, _temperature(state, row), SIZE)
    peak = tl.max(x)
    tl.store(peaks + row * parts + part, peak)
    tl.store(sums + row * parts + part, tl.sum(tl.exp(x - peak)))


@triton.jit
def _ordered(x):
    """Floats as integers of the same order."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _reaches(logits, row, vocabulary, parts, temperature, peak, least, WEIGHED: tl.constexpr, SIZE: tl.constexpr):
    """How many logits are at least so high, or how much they weigh."""
    found = tl.zeros((SIZE,), tl.float32)
    for part in range(parts):
        x = _scaled(logits, row, part, vocabulary, temperature, SIZE)
        found += tl.where(_ordered(x) >= least, tl.exp(x - peak) if WEIGHED else 1.0, 0.0)
    return tl.sum(found.to(tl.float64))


@triton.jit
def _highest_that_reaches(
    logits, row, vocabulary, parts, temperature, peak, goal, WEIGHED: tl.constexpr, SIZE: tl.constexpr
):  # fmt: skip
    """The highest level at which logits are enough, by halving what is left; levels are ordered integers."""
    low = tl.full((), -2147483647, tl.int64)
    high = tl.full((), 2147483647, tl.int64)
    for _ in range(32):
        middle = low + (high - low + 1) // 2
        enough = _reaches(logits, row, vocabulary, parts, temperature, peak, middle, WEIGHED, SIZE) >= goal
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle - 1)
    return low


@triton.jit
def restrict(
    logits, state, peaks, levels, kept, vocabulary, parts, PADDED_PARTS: tl.constexpr, SIZE: tl.constexpr
):  # fmt: skip
    """Of rows with top-k, top-p or min-p: the level below which no token is sampled, and what each part of the
    vocabulary weighs without those. Top-p counts among what top-k leaves, and the token that crosses it is in; of equal
    tokens all are in or none."""
    row = tl.program_id(0)
    if tl.load(state + row * _FIELDS + POSITION) < 0:
        return
    if not _is_restricted(state, row):
        return
    temperature = _temperature(state, row)
    p = tl.arange(0, PADDED_PARTS)
    peak = tl.max(tl.load(peaks + row * parts + p, mask=p < parts, other=float("-inf")))
    top_k = tl.load(state + row * _FIELDS + TOP_K)
    top_p = tl.load(state + row * _FIELDS + TOP_P).to(tl.float64, bitcast=True)
    level = tl.full((), -2147483647, tl.int64)
    if top_k > 0:
        goal = tl.minimum(top_k, vocabulary).to(tl.float64)
        level = _highest_that_reaches(logits, row, vocabulary, parts, temperature, peak, goal, False, SIZE)
    if top_p < 1.0:
        goal = top_p * _reaches(logits, row, vocabulary, parts, temperature, peak, level, True, SIZE)
        crossed = _highest_that_reaches(logits, row, vocabulary, parts, temperature, peak, goal, True, SIZE)
        level = tl.maximum(level, crossed)
    least = tl.load(state + row * _FIELDS + LEAST).to(tl.float64, bitcast=True).to(tl.float32)
    level = tl.maximum(level, _ordered(peak + least).to(tl.int64))
    tl.store(levels + row, level)
    for part in range(parts):
        x = _scaled(logits, row, part, vocabulary, temperature, SIZE)
        tl.store(kept + row * parts + part, tl.sum(tl.where(_ordered(x) >= level, tl.exp(x - peak), 0.0)))


@triton.jit
def _mixed(bits):
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB
    return bits ^ (bits >> 31)


@triton.jit
def choose(
    logits, peaks, sums, policy_logits, policy_peaks, policy_sums, state, forced, forced_columns, ends, end_count,
    levels, kept, chosen, log_probs, reasons, vocabulary, parts,
    PADDED_PARTS: tl.constexpr, SIZE: tl.constexpr, ENDS: tl.constexpr,
):  # fmt: skip
    """Every row's next token: the first whose cumulative weight exceeds the row's share of the total, a part first and
    a token in it then; or the one that it is given. Then the row is ready for its next step, or has ended. The
    log-probability is that of the policy's logits, which are others than it samples from where a row has a penalty."""
    row = tl.program_id(0)
    own = state + row * _FIELDS
    position = tl.load(own + POSITION)
    if position < 0:
        tl.store(reasons + row, -1)
        return
    temperature = _temperature(state, row)
    count = tl.load(own + COUNT)
    forced_count = tl.load(own + FORCED)
    p = tl.arange(0, PADDED_PARTS)
    is_part = p < parts
    highest = tl.load(peaks + row * parts + p, mask=is_part, other=float("-inf"))
    peak = tl.max(highest)
    weights = tl.load(sums + row * parts + p, mask=is_part, other=0.0) * tl.exp(highest - peak)
    weights = tl.where(is_part, weights, 0.0).to(tl.float64)
    policy_highest = tl.load(policy_peaks + row * parts + p, mask=is_part, other=float("-inf"))
    policy_peak = tl.max(policy_highest)
    policy_weights = tl.load(policy_sums + row * parts + p, mask=is_part, other=0.0)
    policy_weights *= tl.exp(policy_highest - policy_peak)
    whole = tl.sum(tl.where(is_part, policy_weights, 0.0).to(tl.float64))
    level = tl.full((), -2147483647, tl.int64)
    if _is_restricted(state, row):
        level = tl.load(levels + row)
        weights = tl.load(kept + row * parts + p, mask=is_part, other=0.0).to(tl.float64)
    cumulative = tl.cumsum(weights, 0)
    seed = tl.load(own + SEED).to(tl.uint64)
    bits = _mixed(_mixed(seed + GOLDEN) + (count - forced_count + 1).to(tl.uint64) * GOLDEN)
    target = (bits >> 12).to(tl.float64) * 2.220446049250313e-16 * tl.sum(weights)
    last_part = tl.max(tl.where(weights > 0, p, 0))
    part = tl.minimum(tl.sum((cumulative <= target).to(tl.int32)), last_part)
    part = tl.where(temperature > 0, part, tl.argmax(highest, 0))
    before = tl.sum(tl.where(p < part, weights, 0.0))
    x = _scaled(logits, row, part, vocabulary, temperature, SIZE)
    i = tl.arange(0, SIZE)
    inside = tl.where(_ordered(x) >= level, tl.exp(x - peak), 0.0)
    last = tl.max(tl.where(inside > 0, i, 0))
    sampled = tl.minimum(tl.sum((before + tl.cumsum(inside.to(tl.float64), 0) <= target).to(tl.int32)), last)
    sampled = part * SIZE + tl.where(temperature > 0, sampled, tl.argmax(x, 0))
    given = tl.load(forced + row * forced_columns + count, mask=count < forced_count, other=0)
    token = tl.where(count < forced_count, given, sampled)
    logit = tl.load(policy_logits + row.to(tl.int64) * vocabulary + token)
    logit = tl.where(temperature > 0, logit / temperature, logit)
    log_prob = logit - policy_peak - tl.log(whole).to(tl.float32)
    e = tl.arange(0, ENDS)
    is_end = tl.sum((tl.load(ends + e, mask=e < end_count, other=-1) == token).to(tl.int32)) > 0
    is_end = is_end & (count >= forced_count)
    is_last = count + 1 >= tl.load(own + LIMIT)
    tl.store(chosen + row, token.to(tl.int32))
    tl.store(log_probs + row, log_prob)
    tl.store(reasons + row, tl.where(is_end, 1, tl.where(is_last, 2, 0)))
    tl.store(own + TOKEN, token.to(tl.int64))
    tl.store(own + COUNT, count + 1)
    tl.store(own + POSITION, tl.where(is_end | is_last, -1, position + 1))
