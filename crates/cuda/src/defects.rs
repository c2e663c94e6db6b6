//! Defects to plant in kernel sources, each of which the conformance suite must catch on a card.

use arith::base::Arith;

/// A source with one defect, for tests that must turn red.
#[derive(Clone, Copy, Debug)]
pub struct Defect {
    /// What it is.
    pub name: &'static str,
    pub(crate) unit: &'static str,
    /// What stands in the source, once at least, and what stands there instead.
    pub(crate) swap: [&'static str; 2],
}

impl Defect {
    /// The arithmetic in which it shows.
    pub fn arith(&self) -> Arith {
        if self.unit == "a8" { Arith::Two } else { Arith::One }
    }
}

/// Defects that the conformance suite must catch on the card.
pub const DEFECTS: [Defect; 47] = [
    defect(
        "another row's scale",
        "few",
        "here.d[i / 2 % ROW_TILES * TILE_ROWS + t]",
        "here.d[i / 2 % ROW_TILES * TILE_ROWS + (t ^ 1)]",
    ),
    defect(
        "sums of the first slice taken for those of the second",
        "few",
        "sums.fetch(first[i], ring[i]);",
        "sums.fetch(first[0], ring[i]);",
    ),
    defect(
        "a tile of outputs taken twice",
        "few",
        "(tile + 1) * 16 < m.n ? m.slices : 0",
        "(tile + 1) * 16 < m.n ? 0 : 0",
    ),
    defect(
        "a group's slices taken as its neighbour's",
        "few",
        "return groups.starts[group ^ turn];",
        "return groups.starts[group];",
    ),
    defect(
        "rows that go on where they should go back",
        "few",
        "left > 1 ? 1 : turns.back(turn)",
        "left > 1 ? 1 : 1",
    ),
    defect(
        "a tile alone taken as another",
        "pair",
        "whole ? 2 * part : p.pairs + part",
        "whole ? 2 * part : part",
    ),
    defect(
        "blocks of a slice out of order",
        "one",
        "both[i][0] = __shfl_sync(FULL, dot[set][0], i, 4);",
        "both[i][0] = __shfl_sync(FULL, dot[set][0], 3 - i, 4);",
    ),
    defect(
        "an output of the pair's other tile",
        "pair",
        "return (float)(t & 2 ? high : low);",
        "return (float)(t & 2 ? low : high);",
    ),
    defect(
        "a root taken after the weight",
        "one",
        "__fmul_rn(__fmul_rn(a.y, r), b.y)",
        "__fmul_rn(__fmul_rn(a.y, b.y), r)",
    ),
    defect(
        "a sum with what was not there before",
        "one",
        "flushed(__fadd_rn(before, y))",
        "flushed(__fadd_rn(before, before))",
    ),
    defect("a block's sum of another's", "pair", "+ lane / LANES]", "+ (lane / LANES ^ 1)]"),
    defect(
        "a tile left out of the merge",
        "tiles",
        "for (int i = 1; i < CHUNK_TILES; i++) {",
        "for (int i = 2; i < CHUNK_TILES; i++) {",
    ),
    defect(
        "chunks joined as tiles",
        "tiles",
        "from + i == 0 ? o : __fmaf_rn(total, f.x, __fmul_rn(o, f.y))",
        "from + i == 0 ? o : __fadd_rn(__fmul_rn(total, f.x), __fmul_rn(o, f.y))",
    ),
    defect(
        "a dropped slice",
        "linear",
        "m.groups.starts[group + 1]; s++",
        "m.groups.starts[group + 1] - 1; s++",
    ),
    defect(
        "a swapped tree",
        "linear",
        "__fadd_rn(__fadd_rn(g[0], g[stride])",
        "__fadd_rn(__fadd_rn(g[0], g[2 * stride])",
    ),
    defect(
        "an unfused product",
        "linear",
        "__fmaf_rn(dot, low.x, acc[0])",
        "__fadd_rn(__fmul_rn(dot, low.x), acc[0])",
    ),
    defect("one byte plane", "linear", "c[0] * 256 + c[1]", "c[0] * 256"),
    defect(
        "a tie away from even",
        "linear",
        "float y = round_half_even(__fmul_rn(v[i], by.inv));",
        "float y = roundf(__fmul_rn(v[i], by.inv));",
    ),
    defect(
        "an unflushed product",
        "rows",
        "flushed(__fmul_rn(silu_f32(p.x[i]), p.y[i]))",
        "__fmul_rn(silu_f32(p.x[i]), p.y[i])",
    ),
    defect(
        "an unfolded lane",
        "rows",
        "int w = 16; w > 0; w /= 2) lane",
        "int w = 16; w > 1; w /= 2) lane",
    ),
    defect(
        "an unrounded key",
        "attention",
        "((u16 *)c.k)[kt] = float_to_half(p.k[i])",
        "((u16 *)c.k)[kt] = float_to_half(p.k[i]) & 0xfffeu",
    ),
    defect(
        "a hidden key seen",
        "attention",
        "int visible = c.positions[row] + 1",
        "int visible = c.positions[row] + 2",
    ),
    defect(
        "tiles merged as one chunk",
        "attention",
        "#define CHUNK_TILES 8",
        "#define CHUNK_TILES 16",
    ),
    defect(
        "chunks merged backwards",
        "prompt",
        "__fmaf_rn(all_o[g][i][j], f1, __fmul_rn(x, f2))",
        "__fmaf_rn(all_o[g][i][j], f2, __fmul_rn(x, f1))",
    ),
    defect(
        "keys past the row's",
        "prompt",
        "int seen = first + row0 - tile * TILE_KEYS + 1,",
        "int seen = first + row0 - tile * TILE_KEYS + 2,",
    ),
    defect(
        "groups that join in another order",
        "wide",
        "for (int under = 0; under < level; under++) {",
        "for (int under = level - 1; under >= 0; under--) {",
    ),
    defect(
        "a stage read too early",
        "wide",
        "begin<LOG>(c, a, s.panels[place], 0, 0);",
        "begin<LOG>(c, a, s.panels[(place + 1) % RING], 0, 0);",
    ),
    defect(
        "a group that begins with the sums of the one before",
        "wide",
        "if (begins) clear(total);",
        "if (slice == 0) clear(total);",
    ),
    defect(
        "a stale tail",
        "gdn",
        "int at = walk.end - before + j;",
        "int at = walk.end - 1 - before + j;",
    ),
    defect(
        "decay after the update",
        "gdn",
        "own.template pass<true, true>(here, ring[at], row < rows ? gates.y : 1.0f);",
        "own.template pass<true, true>(here, ring[at], row > 0 && row < rows ? gates.y : 1.0f);",
    ),
    defect(
        "rows that are brought over those at hand",
        "gdn",
        "bringing.next(ring + (at + P::ROWS) % P::RING);",
        "bringing.next(ring + at);",
    ),
    defect(
        "a window's row that sees one key more",
        "tiles",
        "keys = s.position + row + 1 - s.tile * TILE_KEYS;",
        "keys = s.position + row + 2 - s.tile * TILE_KEYS;",
    ),
    defect(
        "a row's part of a tile that another kv head has",
        "tiles",
        "last ? t.heads - s.group + 1 : 1",
        "last ? 1 : 1",
    ),
    defect(
        "a window's weights summed in another order",
        "tiles",
        "for (int apart = 32; apart > 1; apart /= 2)",
        "for (int apart = 2; apart < 64; apart *= 2)",
    ),
    defect(
        "a row's key taken for the next one's",
        "fused",
        "own.pass<true, true>(normed[r], normed[r + 1], both[r].y);",
        "own.pass<true, true>(normed[r - 1], normed[r], both[r].y);",
    ),
    defect(
        "a residual sum that is not kept",
        "fused",
        "*(float4 *)(x + from) = a;",
        "if (from) *(float4 *)(x + from) = a;",
    ),
    defect(
        "a gate of another head",
        "fused",
        "__fmul_rn(p.gates.amplitude[h], soft)",
        "__fmul_rn(p.gates.amplitude[0], soft)",
    ),
    defect(
        "a key turned the other way",
        "fused",
        "own[first] = flushed(__fmaf_rn(a, cos[i], -__fmul_rn(b, sin[i])));",
        "own[first] = flushed(__fmaf_rn(a, cos[i], __fmul_rn(b, sin[i])));",
    ),
    defect(
        "a share's groups as a whole K's",
        "linear",
        "int s = m.groups.starts[group]; s < m.groups.starts[group + 1]; s++",
        "int s = group_start(group, slices); s < group_start(group + 1, slices); s++",
    ),
    defect(
        "a flushed node",
        "linear",
        "return groups.node ? y : flushed(y);",
        "return flushed(y);",
    ),
    defect(
        "of equal candidates the last",
        "best",
        "return key > best ? key : best;",
        "return key >> 32 > best >> 32 || key >> 32 == best >> 32 && key < best ? key : best;",
    ),
    defect("a spoilt logit unseen", "best", "if (spoilt(x))", "if (x != x)"),
    defect("zeros of two values", "best", "__fadd_rn(x, 0.0f)", "x"),
    defect("a run that rises", "best", "(left & run) == 0", "(left & run & (BEST_PIECE / 2)) == 0"),
    defect(
        "an offset that knows no scale of its row",
        "a8",
        "__fmaf_rn(s, __fmul_rn(affine.y, scale), acc[i])",
        "__fmaf_rn(__fmul_rn(s, scale), affine.y, acc[i])",
    ),
    defect(
        "another block's scale",
        "a8",
        "[block * (A8_ROWS / 2) + t];",
        "[(block & ~1ull) * (A8_ROWS / 2) + t];",
    ),
    defect(
        "an 8-bit tie away from even",
        "a8",
        "float y = round_half_even(__fmul_rn(v[i], inv));",
        "float y = roundf(__fmul_rn(v[i], inv));",
    ),
];

const fn defect(
    name: &'static str,
    unit: &'static str,
    from: &'static str,
    to: &'static str,
) -> Defect {
    Defect { name, unit, swap: [from, to] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::UNITS;

    #[test]
    fn every_defect_finds_its_place() {
        for Defect { name, unit, swap: [from, to] } in DEFECTS {
            let unit = UNITS.iter().find(|u| u.name == unit).unwrap_or_else(|| panic!("{name}"));
            assert!(unit.source().contains(from) && from != to, "{name}");
        }
    }
}
