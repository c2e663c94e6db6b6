//! Linear layers: exact integer dots over block formats (section 2), fused sums over float ones
//! (section 3). The order over K is a function of K alone.

use std::ops::Range;

use crate::a8::{self, A8};
use crate::a16::{self, A16};
use crate::base::{Arith, SLICE_VALUES};
use crate::count;
use crate::float::{SPOILT, flush, fma, is_spoilt};
use crate::format::{Matrix, read_float};

/// Groups that the slices of a row form, added as a balanced tree.
pub const GROUPS: usize = 8;
/// Most values of a block in any format.
const BLOCK_VALUES_MAX: usize = 128;

/// Slices that group `group` of eight owns when K has `slices` slices:
/// `ceil(group * slices / 8) .. ceil((group + 1) * slices / 8)`; may be empty.
pub fn group_slices(group: usize, slices: usize) -> Range<usize> {
    (group * slices).div_ceil(GROUPS)..((group + 1) * slices).div_ceil(GROUPS)
}

/// Which slices each of the eight groups owns, of a whole K or of a share of it: a **share** is an
/// aligned half, quarter or eighth of the groups, whose outputs are one node of the tree.
///
/// A share is computed as if it were the whole row, the groups of others empty: +0 plus a node is
/// that node, since no sum that begins at +0 is ever -0. What is left out is the flush, which
/// belongs to the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// Group `k` owns slices `starts[k] .. starts[k + 1]`, counted from the share's first.
    starts: [u32; GROUPS + 1],
    first: usize,
    node: bool,
}

impl Groups {
    /// Of a whole K of `cols` values.
    pub fn of(cols: usize) -> Self {
        Self::share(cols, 0..GROUPS)
    }

    /// Of the groups `groups` of a K of `cols` values.
    ///
    /// # Panics
    /// Where they are not all eight, or an aligned half, quarter or eighth.
    pub fn share(cols: usize, groups: Range<usize>) -> Self {
        let count = groups.len();
        let aligned = count.is_power_of_two() && groups.start.is_multiple_of(count);
        assert!(aligned && groups.end <= GROUPS, "no node of the tree is groups {groups:?}");
        let start = |group: usize| (group * cols.div_ceil(SLICE_VALUES)).div_ceil(GROUPS);
        let starts = std::array::from_fn(|group| {
            (start(group.clamp(groups.start, groups.end)) - start(groups.start)) as u32
        });
        Self { starts, first: groups.start, node: count < GROUPS }
    }

    /// The values along K that the groups `groups` of a K of `cols` values own; may be empty.
    pub fn values(cols: usize, groups: Range<usize>) -> Range<usize> {
        let slices = cols.div_ceil(SLICE_VALUES);
        let start = |group: usize| cols.min((group * slices).div_ceil(GROUPS) * SLICE_VALUES);
        start(groups.start)..start(groups.end)
    }

    /// The slices of group `group`, counted from the share's first; may be empty.
    #[inline]
    pub fn slices(&self, group: usize) -> Range<usize> {
        self.starts[group] as usize..self.starts[group + 1] as usize
    }

    /// The first group of a share; 0 of a whole K.
    pub fn first(&self) -> usize {
        self.first
    }

    /// Slices of all groups.
    pub fn count(&self) -> usize {
        self.starts[GROUPS] as usize
    }

    /// Whether the outputs are a node of the tree, not flushed.
    #[inline]
    pub fn is_node(&self) -> bool {
        self.node
    }
}

/// `((g0 + g1) + (g2 + g3)) + ((g4 + g5) + (g6 + g7))`.
#[inline]
pub fn tree(g: &[f32; GROUPS]) -> f32 {
    let add = |a: f32, b: f32| count::note(a + b);
    add(add(add(g[0], g[1]), add(g[2], g[3])), add(add(g[4], g[5]), add(g[6], g[7])))
}

/// One row through a matrix: `out[n] = sum over K of W[n] * x`, `out` as long as the matrix has
/// rows. Outputs are flushed; a spoilt row gives [`SPOILT`] everywhere.
pub fn linear(arith: Arith, matrix: &Matrix<'_>, x: &[f32], out: &mut [f32]) {
    linear_share(arith, matrix, &Groups::of(matrix.cols), x, out);
}

/// As [`linear`] over a share of K, of which `matrix` and `x` hold the groups `groups` alone: the
/// nodes of the tree, not flushed. [`join`] makes outputs of the nodes of all shares.
pub fn linear_share(
    arith: Arith,
    matrix: &Matrix<'_>,
    groups: &Groups,
    x: &[f32],
    out: &mut [f32],
) {
    assert_eq!(groups.count(), matrix.cols.div_ceil(SLICE_VALUES), "slices of the matrix");
    assert_eq!(x.len(), matrix.cols);
    assert_eq!(out.len(), matrix.rows);
    if is_spoilt(x) {
        return out.fill(SPOILT);
    }
    let mut fill = |dot: &dyn Fn(usize) -> f32| {
        out.iter_mut().enumerate().for_each(|(n, out)| *out = dot(n));
    };
    match arith {
        _ if matrix.format.is_float() => fill(&|n| dot_float(matrix, groups, n, x)),
        Arith::One => {
            let x = a16::quantise(x).unwrap_or_default();
            fill(&|n| dot_block(matrix, groups, n, &x));
        }
        Arith::Two => {
            let x = a8::quantise(x).unwrap_or_default();
            fill(&|n| dot_block_a8(matrix, groups, n, &x));
        }
    }
}

/// Output `n` of a block format over a row of arith 1.
pub fn dot_block(matrix: &Matrix<'_>, groups: &Groups, n: usize, x: &A16) -> f32 {
    let row = matrix.row(n);
    grouped(matrix.cols, groups, |slice, values, g| {
        fma(slice_block(matrix, row, values, &x.q), x.d[slice], g)
    })
}

/// Output `n` of a block format over a row of arith 2.
pub fn dot_block_a8(matrix: &Matrix<'_>, groups: &Groups, n: usize, x: &A8) -> f32 {
    let row = matrix.row(n);
    grouped(matrix.cols, groups, |_, values, g| {
        count::note(g + slice_block_a8(matrix, row, values, x))
    })
}

/// Output `n` of a float format over an f32 row.
pub fn dot_float(matrix: &Matrix<'_>, groups: &Groups, n: usize, x: &[f32]) -> f32 {
    let row = matrix.row(n);
    grouped(matrix.cols, groups, |_, values, g| {
        let acc = values.fold(0.0, |acc, i| fma(read_float(matrix.format, row, i), x[i], acc));
        count::note(g + acc)
    })
}

/// Walks the slices of each group in order, `add(slice, values, g)` giving the group's next sum,
/// then the tree over the groups, and the flush where this is its root.
fn grouped(
    cols: usize,
    groups: &Groups,
    mut add: impl FnMut(usize, Range<usize>, f32) -> f32,
) -> f32 {
    let mut sums = [0.0; GROUPS];
    for (group, g) in sums.iter_mut().enumerate() {
        for slice in groups.slices(group) {
            let from = slice * SLICE_VALUES;
            *g = add(slice, from..cols.min(from + SLICE_VALUES), *g);
        }
    }
    let sum = tree(&sums);
    if groups.is_node() { sum } else { flush(sum) }
}

/// The outputs of a linear layer from its nodes: `nodes` holds those of 2, 4 or 8 shares of the
/// same size, one share after the other, each as long as `out`. Flushed; where a share's row was
/// spoilt all of its nodes are, and so is every output.
///
/// # Panics
/// For another number of shares.
pub fn join(nodes: &[f32], out: &mut [f32]) {
    let (len, add) = (out.len(), |a: f32, b: f32| count::note(a + b));
    if len == 0 {
        return;
    }
    assert!(nodes.len().is_multiple_of(len), "whole shares");
    let shares: Vec<&[f32]> = nodes.chunks_exact(len).collect();
    let end = |sum: f32| if sum.is_nan() { SPOILT } else { flush(sum) };
    match shares[..] {
        [a, b] => out.iter_mut().enumerate().for_each(|(i, out)| *out = end(add(a[i], b[i]))),
        [a, b, c, d] => {
            for (i, out) in out.iter_mut().enumerate() {
                *out = end(add(add(a[i], b[i]), add(c[i], d[i])));
            }
        }
        [..] if shares.len() == GROUPS => {
            for (i, out) in out.iter_mut().enumerate() {
                *out = end(tree(&std::array::from_fn(|k| shares[k][i])));
            }
        }
        _ => panic!("nodes of {} shares", shares.len()),
    }
}

/// The sum of one slice before its scale: blocks in order,
/// `acc = fma(f32(dot), a, acc)`, then `acc = fma(f32(sum q), c, acc)` where there are offsets.
pub fn slice_block(matrix: &Matrix<'_>, row: &[u8], values: Range<usize>, q: &[i16]) -> f32 {
    let width = matrix.format.block_values();
    let mut w = [0; BLOCK_VALUES_MAX];
    let mut acc = 0.0;
    for from in values.step_by(width) {
        let affine = matrix.read_block(row, from / width, &mut w[..width]);
        let q = &q[from..from + width];
        let dot: i32 = w.iter().zip(q).map(|(&w, &q)| i32::from(w) * i32::from(q)).sum();
        acc = fma(dot as f32, affine.a, acc);
        if let Some(c) = affine.c {
            let sum: i32 = q.iter().map(|&q| i32::from(q)).sum();
            acc = fma(sum as f32, c, acc);
        }
    }
    acc
}

/// The sum of one slice in arith 2: pieces of 32 values (of 16 where blocks are), in order,
/// `acc = fma(f32(dot), a * d, acc)`, then `acc = fma(f32(sum q), c * d, acc)` where there are
/// offsets; both products rounded.
pub fn slice_block_a8(matrix: &Matrix<'_>, row: &[u8], values: Range<usize>, x: &A8) -> f32 {
    let width = matrix.format.block_values();
    let mut w = [0; BLOCK_VALUES_MAX];
    let mut acc = 0.0;
    for from in values.step_by(width) {
        let affine = matrix.read_block(row, from / width, &mut w[..width]);
        for (piece, w) in w[..width].chunks(a8::BLOCK_VALUES).enumerate() {
            let from = from + piece * a8::BLOCK_VALUES;
            let q = &x.q[from..from + w.len()];
            let d = x.d[from / a8::BLOCK_VALUES];
            let dot: i32 = w.iter().zip(q).map(|(&w, &q)| i32::from(w) * i32::from(q)).sum();
            acc = fma(dot as f32, count::note(affine.a * d), acc);
            if let Some(c) = affine.c {
                let sum: i32 = q.iter().map(|&q| i32::from(q)).sum();
                acc = fma(sum as f32, count::note(c * d), acc);
            }
        }
    }
    acc
}
