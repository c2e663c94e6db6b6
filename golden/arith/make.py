"""Writes cases.txt: ops of docs/arithmetic.md computed in exact rationals, rounded where the page
rounds. Shares no code with the Rust reference. Run: python3 golden/arith/make.py"""

import math
import struct
from fractions import Fraction as F
from pathlib import Path

MASK = (1 << 64) - 1


def mix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


class Noise:
    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        return mix(self.state)

    def unit(self):
        return F((self.next() >> 40) - (1 << 23), 1 << 23)

    def units(self, n):
        return [self.unit() for _ in range(n)]


def half_even(x):
    low = math.floor(x)
    rest = x - low
    return low + (rest > F(1, 2) or (rest == F(1, 2) and low % 2 == 1))


def r32(x):
    """To binary32, nearest even; no subnormals, no overflow."""
    x = F(x)
    if x == 0:
        return x
    e = math.floor(math.log2(abs(x.numerator)) - math.log2(x.denominator))
    while F(2) ** (e + 1) <= abs(x):
        e += 1
    while F(2) ** e > abs(x):
        e -= 1
    assert -126 <= e < 127, e
    unit = F(2) ** (e - 23)
    return half_even(x / unit) * unit


def bits(x):
    return "%08x" % struct.unpack("<I", struct.pack("<f", float(x)))[0]


def from_bits(u):
    return F(struct.unpack("<f", struct.pack("<I", u))[0])


def fma(a, b, c):
    return r32(a * b + c)


def z(x, below=-36):
    return F(0) if abs(x) < F(2) ** below else x


def sqrt32(x):
    guess = r32(F(math.sqrt(x)))
    unit = F(2) ** (math.floor(math.log2(guess)) - 23)
    low = guess - unit if guess * guess > x else guess
    middle = low + unit / 2  # never a tie: a square root of a binary32 has no 25-bit value
    return low + unit if x > middle * middle else low


# Section 2 and 3


def slices(k):
    return [(i, min(i + 256, k)) for i in range(0, k, 256)]


def quantise(x):
    q, d = [], []
    for a, b in slices(len(x)):
        amax = max(abs(v) for v in x[a:b])
        if amax < F(2) ** -30:
            q += [0] * (b - a)
            d.append(F(0))
            continue
        inv = r32(F(32639) / amax)
        q += [max(-32639, min(32639, half_even(r32(v * inv)))) for v in x[a:b]]
        d.append(r32(amax / 32639))
    return q, d


def quantise8(x):
    q, d = [], []
    for a in range(0, len(x), 32):
        part = x[a : a + 32]
        amax = max(abs(v) for v in part)
        small = amax < F(2) ** -30
        inv = F(0) if small else r32(F(127) / amax)
        q += [max(-127, min(127, half_even(r32(v * inv)))) for v in part]
        d.append(F(0) if small else r32(amax / 127))
    return q, d


def grouped(k, step):
    parts = slices(k)
    count = len(parts)
    g = []
    for group in range(8):
        total = F(0)
        for s in range(-(-group * count // 8), -(-(group + 1) * count // 8)):
            total = step(total, s, *parts[s])
        g.append(total)
    pair = [r32(g[i] + g[i + 1]) for i in (0, 2, 4, 6)]
    return z(r32(r32(pair[0] + pair[1]) + r32(pair[2] + pair[3])))


def half(u):
    exponent, fraction = (u >> 10) & 31, F(u & 1023, 1024)
    value = fraction * F(2) ** -14 if exponent == 0 else (1 + fraction) * F(2) ** (exponent - 15)
    return -value if u >> 15 else value


def halves(data, at):
    return half(data[at] | data[at + 1] << 8)


def bit(data, at):
    return data[at // 8] >> at % 8 & 1


def code(data, at, bits):
    """The integer of `bits` bits from bit `at` of a little-endian stream on."""
    return sum(bit(data, at + i) << i for i in range(bits))


def signed(byte):
    return byte - 256 if byte > 127 else byte


def fives(data, at, fifth, zero):
    low = [b & 15 for b in data[at : at + 16]] + [b >> 4 for b in data[at : at + 16]]
    return [w + 16 * (bit(data, 8 * fifth + i) if fifth else 0) - zero for i, w in enumerate(low)]


def k_quant(data, fifth):
    """Eight blocks; 6-bit factors as llama.cpp packs them."""
    d, least, packed = halves(data, 0), halves(data, 2), data[4:16]
    codes = data[48 if fifth else 16 :]
    out = []
    for b in range(8):
        if b < 4:
            scale, offset = packed[b] % 64, packed[b + 4] % 64
        else:
            scale = packed[b + 4] % 16 + packed[b - 4] // 64 * 16
            offset = packed[b + 4] // 16 + packed[b] // 64 * 16
        w = [(codes[b // 2 * 32 + i] >> (b % 2 * 4)) % 16 for i in range(32)]
        if fifth:
            w = [v + 16 * (data[16 + i] >> b & 1) for i, v in enumerate(w)]
        out.append((r32(d * scale), -r32(least * offset), w))
    return out


def q6_k(data):
    low, high, factors, d = data[:128], data[128:192], data[192:208], halves(data, 208)
    w = [0] * 256
    for part in range(2):
        for i in range(32):
            h = high[32 * part + i]
            a, b = low[64 * part + i], low[64 * part + 32 + i]
            for quarter, nibble in enumerate((a % 16, b % 16, a // 16, b // 16)):
                at = 128 * part + 32 * quarter + i
                w[at] = nibble + 16 * (h >> 2 * quarter & 3) - 32
    return [(r32(d * signed(f)), None, w[16 * i : 16 * i + 16]) for i, f in enumerate(factors)]


def mlx(data, bits, group, scales):
    if scales == "F16":
        a, c, rest = halves(data, 0), halves(data, 2), data[4:]
    elif scales == "BF16":
        a, c, rest = from_bits(code(data, 0, 16) << 16), from_bits(code(data, 16, 16) << 16), data[4:]
    else:
        a, c, rest = from_bits(code(data, 0, 32)), from_bits(code(data, 32, 32)), data[8:]
    return [(a, c, [code(rest, i * bits, bits) for i in range(group)])]


def unit(kind, data):
    """The blocks of a stored unit: scale, offset or None, integers."""
    if kind.startswith("MLX"):
        bits, group, scales = kind[3:].split("/")
        found = mlx(data, int(bits), int(group), scales)
    else:
        found = {
            "Q4_0": lambda: [(halves(data, 0), None, fives(data, 2, 0, 8))],
            "Q4_1": lambda: [(halves(data, 0), halves(data, 2), fives(data, 4, 0, 0))],
            "Q5_0": lambda: [(halves(data, 0), None, fives(data, 6, 2, 16))],
            "Q5_1": lambda: [(halves(data, 0), halves(data, 2), fives(data, 8, 4, 0))],
            "Q8_0": lambda: [(halves(data, 0), None, [signed(b) for b in data[2:34]])],
            "Q4_K": lambda: k_quant(data, False),
            "Q5_K": lambda: k_quant(data, True),
            "Q6_K": lambda: q6_k(data),
        }[kind]()
    return [(z(a, -30), c if c is None else z(c, -30), w) for a, c, w in found]


# Values and bytes of a unit.
UNITS = {
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
}
for _kind in "2/32/F16 3/64/BF16 4/64/BF16 5/128/F32 6/32/F32 8/128/F16".split():
    _bits, _group, _scales = _kind.split("/")
    _floats = 8 if _scales == "F32" else 4
    UNITS["MLX" + _kind] = (int(_group), _floats + int(_bits) * int(_group) // 8)


def scale_bytes(noise, kind):
    x = noise.next()
    u = (x & 0x83FF) | (8 + (x >> 16) % 6) << 10
    if kind.endswith("/BF16") or kind.endswith("/F32"):
        value = struct.pack("<f", float(half(u)))
        return list(value[2:] if kind.endswith("/BF16") else value)
    return [u & 255, u >> 8]


def row_bytes(noise, kind, cols):
    values, size = UNITS[kind]
    data = []
    for _ in range(cols // values):
        end = len(data) + size
        if kind == "Q6_K":  # its scale comes last
            data += [noise.next() & 255 for _ in range(size - 2)]
        for _ in range(2 if kind in ("Q4_1", "Q5_1", "Q4_K", "Q5_K") or "/" in kind else 1):
            data += scale_bytes(noise, kind)
        data += [noise.next() & 255 for _ in range(end - len(data))]
    return data


def linear_block(kind, data, x):
    q, d = quantise(x)
    values, size = UNITS[kind]
    blocks = [b for at in range(0, len(data), size) for b in unit(kind, data[at : at + size])]
    width = len(blocks[0][2])

    def step(total, s, a, b):
        acc = F(0)
        for at in range(a, b, width):
            scale, offset, w = blocks[at // width]
            acc = fma(r32(sum(p * r for p, r in zip(w, q[at : at + width]))), scale, acc)
            if offset is not None:
                acc = fma(r32(sum(q[at : at + width])), offset, acc)
        return fma(acc, d[s], total)

    return grouped(len(x), step)


def linear_block8(kind, data, x):
    """Arith 2: a block's integers by pieces that share an activation scale."""
    q, d = quantise8(x)
    values, size = UNITS[kind]
    w, scale, offset = [], [], []
    for at in range(0, len(data), size):
        for a, c, integers in unit(kind, data[at : at + size]):
            w += integers
            scale += [a] * len(integers)
            offset += [c] * len(integers)
    piece = min(32, values) if kind != "Q6_K" else 16

    def step(total, s, a, b):
        acc = F(0)
        for at in range(a, b, piece):
            part = range(at, at + piece)
            dot = sum(w[i] * q[i] for i in part)
            acc = fma(r32(dot), r32(scale[at] * d[at // 32]), acc)
            if offset[at] is not None:
                acc = fma(r32(sum(q[i] for i in part)), r32(offset[at] * d[at // 32]), acc)
        return r32(total + acc)

    return grouped(len(x), step)


def linear_float(w, x):
    def step(total, _, a, b):
        acc = F(0)
        for i in range(a, b):
            acc = fma(z(w[i]), x[i], acc)
        return r32(total + acc)

    return grouped(len(x), step)


# Section 4


def fold(lanes):
    width = 16
    while width:
        for j in range(width):
            lanes[j] = r32(lanes[j] + lanes[j + width])
        width //= 2
    return lanes[0]


def rms_norm(x, w, eps):
    lanes = [F(0)] * 32
    for i, v in enumerate(x):
        lanes[i % 32] = fma(v, v, lanes[i % 32])
    r = r32(1 / sqrt32(fma(fold(lanes), r32(F(1, len(x))), eps)))
    return [z(r32(r32(v * r) * u)) for v, u in zip(x, w)]


def rope(x, dims, theta, position, adjacent):
    out = list(x)
    for i in range(dims // 2):
        angle = position * math.pow(theta, -2.0 * i / dims)
        cos, sin = r32(F(math.cos(angle))), r32(F(math.sin(angle)))
        a, b = (2 * i, 2 * i + 1) if adjacent else (i, i + dims // 2)
        out[a] = z(fma(x[a], cos, -r32(x[b] * sin)))
        out[b] = z(fma(x[b], cos, r32(x[a] * sin)))
    return out


def tile(q, k, v, scale):
    s = []
    for key in k:
        total = F(0)
        for a, b in zip(q, key):
            total = fma(a, b, total)
        s.append(r32(total * scale))
    m = max(s)
    p = [exp(r32(x - m)) for x in s]
    lanes = [F(0)] * 32
    for i, x in enumerate(p):
        lanes[i % 32] = r32(lanes[i % 32] + x)
    o = [F(0)] * len(q)
    for x, value in zip(p, v):
        o = [fma(x, u, t) for u, t in zip(value, o)]
    return m, fold(lanes), [z(x) for x in o]


def merge(one, two):
    m = max(one[0], two[0])
    f1, f2 = exp(r32(one[0] - m)), exp(r32(two[0] - m))
    o = [fma(a, f1, r32(b * f2)) for a, b in zip(one[2], two[2])]
    return m, fma(one[1], f1, r32(two[1] * f2)), o


def attend(q, k, v):
    scale = r32(F(1.0 / math.sqrt(len(q))))
    whole = None
    for c in range(0, len(k), 512):
        part = None
        for t in range(c, min(c + 512, len(k)), 64):
            end = min(t + 64, len(k))
            one = tile(q, k[t:end], v[t:end], scale)
            part = merge(part, one) if part else one
        whole = merge(whole, part) if whole else part
    r = r32(1 / whole[1])
    return [z(r32(x * r)) for x in whole[2]]


# Section 5

LOG2E, LN2_HI, LN2_LO = map(from_bits, (0x3FB8AA3B, 0x3F317218, 0xB102E308))
EXP_BITS = "3f800000 3f800000 3efffffe 3e2aaa49 3d2aac57 3c091cc0 3ab527b9"
LOG1P_BITS = "bf000000 3eaaaad2 be800023 3e4cb4bd be2a7714 3e1441df be06cca1 3dd66b94 bd38d103"
EXP = [from_bits(int(u, 16)) for u in EXP_BITS.split()]
LOG1P = [from_bits(int(u, 16)) for u in LOG1P_BITS.split()]


def horner(c, x):
    total = c[-1]
    for a in reversed(c[:-1]):
        total = fma(total, x, a)
    return total


def exp(x):
    if x < -40:
        return F(0)
    x = min(x, F(60))
    n = half_even(r32(x * LOG2E))
    r = fma(n, -LN2_LO, fma(n, -LN2_HI, x))
    return horner(EXP, r) * F(2) ** n


def log1p(x):
    u = int(bits(r32(1 + x)), 16)
    k = (u - 0x3F400000) >> 23
    s = F(2) ** -k
    f = fma(x, s, r32(s - 1))
    return fma(k, LN2_HI, fma(r32(f * f), horner(LOG1P, f), f))


def sigmoid(x):
    return r32(1 / r32(1 + exp(-x)))


def silu(x):
    return F(0) if x < -40 else r32(x * sigmoid(x))


def softplus(x):
    return x if x > 20 else log1p(exp(x))


# Section 6


def squares(x):
    lanes = [F(0)] * 32
    for i, v in enumerate(x):
        lanes[i % 32] = fma(v, v, lanes[i % 32])
    return fold(lanes)


class Gdn:
    """2 key heads of 36, 4 value heads of 3, 4 taps."""

    def __init__(self, taps, dt_bias, amplitude):
        self.taps, self.dt_bias, self.amplitude = taps, dt_bias, amplitude

    def convolve(self, rows):
        """`rows`: this one and the three before it, oldest first."""
        out = []
        for c in range(156):
            total = F(0)
            for taps, row in zip(self.taps, rows):
                total = fma(taps[c], row[c], total)
            out.append(z(silu(total)))
        for head in range(4):
            x = out[36 * head : 36 * head + 36]
            r = r32(1 / sqrt32(r32(squares(x) + r32(F(1, 1000000)))))
            x = [r32(v * r) for v in x]
            if head < 2:
                x = [r32(v * r32(F(1, 6))) for v in x]
            out[36 * head : 36 * head + 36] = [z(v) for v in x]
        return out

    def gates(self, b, a):
        beta = [z(sigmoid(v)) for v in b]
        decay = []
        for v, dt, amplitude in zip(a, self.dt_bias, self.amplitude):
            decay.append(z(exp(-r32(amplitude * softplus(r32(v + dt))))))
        return beta, decay

    def delta(self, state, x, beta, decay, key_of):
        """One row; `state[h][v]` is a column of S."""
        out = []
        for h in range(4):
            head = key_of(h)
            query, key = x[36 * head :][:36], x[72 + 36 * head :][:36]
            for v in range(3):
                s = [z(r32(e * decay[h])) for e in state[h][v]]
                delta = z(r32(beta[h] * r32(x[144 + 3 * h + v] - lanes4(s, key))))
                s = [z(fma(k, delta, e)) for k, e in zip(key, s)]
                out.append(z(lanes4(s, query)))
                state[h][v] = s
        return out


def lanes4(s, x):
    lanes = [F(0)] * 4
    for i, (a, b) in enumerate(zip(s, x)):
        lanes[i % 4] = fma(a, b, lanes[i % 4])
    return r32(r32(lanes[0] + lanes[2]) + r32(lanes[1] + lanes[3]))


def gated_norm(x, w, gate):
    r = r32(1 / sqrt32(fma(squares(x), r32(F(1, len(x))), r32(F(1, 1000000)))))
    return [z(r32(r32(r32(v * r) * u) * silu(g))) for v, u, g in zip(x, w, gate)]


def gdn_cases(case):
    g = Noise(8)
    gdn = Gdn([g.units(156) for _ in range(4)], g.units(4), [abs(4 * v) for v in g.units(4)])
    rows = [[F(0)] * 156] * 3 + [g.units(156) for _ in range(5)]
    convolved = [gdn.convolve(rows[i : i + 4]) for i in range(5)]
    case("convolve", [v for row in convolved for v in row])
    gates = [gdn.gates([8 * v for v in g.units(4)], [8 * v for v in g.units(4)]) for _ in range(5)]
    case("gates", [v for pair in gates for half in pair for v in half])
    orders = (("grouped", lambda h: h // 2, 0), ("tiled", lambda h: h % 2, 0))
    for name, key_of, shift in orders + (("faint", lambda h: h // 2, -27),):
        state, out = [[[F(0)] * 36 for _ in range(3)] for _ in range(4)], []
        for row, (beta, decay) in zip(convolved, gates):
            x = row[:144] + [z(v * F(2) ** shift) for v in row[144:]]
            out += gdn.delta(state, x, beta, decay, key_of)
        case("delta_" + name, out)
        case("state_" + name, [state[h][v][k] for h in range(4) for k in range(36) for v in range(3)])
    w, x, gate = g.units(77), g.units(77), [8 * v for v in g.units(77)]
    case("gated_norm", gated_norm(x, w, gate))


# Section 7


def noise(seed, position, token):
    x = mix((seed + 0x9E3779B97F4A7C15) & MASK)
    x = mix(x ^ (position * 0xD1B54A32D192ED03 & MASK))
    x = mix(x ^ token)
    return -math.log(-math.log((x >> 11) * 2.0**-53 + 2.0**-54))


def main():
    lines = []

    def case(name, values):
        lines.append(" ".join([name] + [v if isinstance(v, str) else bits(v) for v in values]))

    g = Noise(1)
    q, d = quantise(g.units(300))
    case("a16", ["%04x" % (v & 0xFFFF) for v in q] + [bits(v) for v in d])
    q, d = quantise8(Noise(1).units(300))
    case("a8", ["%02x" % (v & 0xFF) for v in q] + [bits(v) for v in d])
    for kind, (values, _) in UNITS.items():
        g = Noise(2)
        cols = 2336 // values * values
        x = g.units(cols)
        rows = [row_bytes(g, kind, cols) for _ in range(4)]
        case(kind, [linear_block(kind, row, x) for row in rows])
        case(kind + ":2", [linear_block8(kind, row, x) for row in rows])
    g = Noise(3)
    x = g.units(2100)
    case("F32", [linear_float(g.units(2100), x) for _ in range(4)])
    g = Noise(4)
    case("rms_norm", rms_norm(g.units(77), g.units(77), r32(F(1, 100000))))
    g = Noise(5)
    x = g.units(12)
    case("rope_adjacent", rope(x, 10, 1e5, 777, True))
    case("rope_halves", rope(x, 10, 1e5, 777, False))
    g = Noise(6)
    keys = [g.units(8) for _ in range(700)]
    values = [g.units(8) for _ in range(700)]
    queries = [[8 * v for v in g.units(8)] for _ in range(8)]
    case("attend", [x for query in queries for x in attend(query, keys, values)])
    g = Noise(7)
    points = [r32(40 * v) for v in g.units(40)]
    for f in (exp, sigmoid, silu, softplus):
        case(f.__name__, [f(v) for v in points])
    case("log1p", [log1p(abs(v)) for v in points])
    gdn_cases(case)
    drawn = [noise(s, p, t) for s, p, t in ((0, 0, 0), (1, 2, 3), (MASK, 4095, 49151), (42, 7, 2))]
    case("noise", ["%.15e" % v for v in drawn])
    Path(__file__).with_name("cases.txt").write_text("\n".join(lines) + "\n")


main()
