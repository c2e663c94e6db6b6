//! Shares of K: nodes of the tree, computed apart, are the whole sum.

use arith::base::Arith;
use arith::float::{SPOILT, flush};
use arith::format::{Format, Matrix};
use arith::linear::{GROUPS, Groups, join, linear, linear_share};

use super::Noise;

/// Slices 1 to 9, 20, 24 and 68, a last one that is short.
const COLS: [usize; 8] = [288, 512, 1_056, 2_048, 2_304, 5_120, 6_144, 17_408];
const OUTPUTS: usize = 5;

/// The columns of `matrix` that a share has, as a matrix.
fn columns<'a>(
    matrix: &Matrix<'_>,
    cols: std::ops::Range<usize>,
    to: &'a mut Vec<u8>,
) -> Matrix<'a> {
    let (values, bytes) = (matrix.format.unit_values(), matrix.format.unit_bytes());
    let units = cols.start / values * bytes..cols.end / values * bytes;
    to.clear();
    (0..matrix.rows).for_each(|row| to.extend(&matrix.row(row)[units.clone()]));
    Matrix { cols: cols.len(), bytes: to, ..*matrix }
}

/// The nodes of `count` shares, one share after the other; `None` where one has no slice.
fn nodes(arith: Arith, matrix: &Matrix<'_>, x: &[f32], count: usize) -> Option<Vec<f32>> {
    let (mut bytes, mut all) = (Vec::new(), Vec::new());
    for groups in (0..count).map(|i| i * GROUPS / count..(i + 1) * GROUPS / count) {
        let cols = Groups::values(matrix.cols, groups.clone());
        if cols.is_empty() {
            return None;
        }
        let mut out = vec![0.0; matrix.rows];
        let groups = Groups::share(matrix.cols, groups);
        let share = columns(matrix, cols.clone(), &mut bytes);
        linear_share(arith, &share, &groups, &x[cols], &mut out);
        all.extend(out);
    }
    Some(all)
}

/// Rows of all kinds: even, tiny enough that nodes flush where sums do not, in pairs that cancel,
/// and of zeros.
fn rows(noise: &mut Noise, cols: usize) -> Vec<Vec<f32>> {
    let mut rows = vec![noise.units(cols), vec![0.0; cols]];
    for power in [-30, -33, -36] {
        rows.push(noise.units(cols).iter().map(|x| x * 2f32.powi(power)).collect());
    }
    let half = noise.units(cols.div_ceil(2));
    rows.push((0..cols).map(|i| half[i / 2] * if i % 2 == 0 { 1.0 } else { -1.0 }).collect());
    rows
}

/// Calls `each` with matrices, rows and share counts.
fn cases(mut each: impl FnMut(&str, Arith, &Matrix<'_>, &[f32], usize)) {
    let mut noise = Noise(8);
    for format in [Format::Q4_1, Format::Q8_0, Format::Q6K, Format::Bf16] {
        for cols in COLS.into_iter().filter(|cols| cols.is_multiple_of(format.unit_values())) {
            let bytes: Vec<u8> = match format {
                Format::Bf16 => noise
                    .units(OUTPUTS * cols)
                    .iter()
                    .flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes())
                    .collect(),
                _ => (0..OUTPUTS).flat_map(|_| noise.row_bytes(format, cols)).collect(),
            };
            let matrix = Matrix { format, rows: OUTPUTS, cols, bytes: &bytes };
            for x in rows(&mut noise, cols) {
                for (arith, count) in Arith::ALL.into_iter().flat_map(|a| [2, 4, 8].map(|n| (a, n)))
                {
                    let case = format!("{format} over {cols} in {count}, arith {arith}");
                    each(&case, arith, &matrix, &x, count);
                }
            }
        }
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn joined_nodes_are_the_whole_sum_and_none_is_minus_zero() {
    let (mut shared, mut flushed_first) = (0, 0);
    cases(|case, arith, matrix, x, count| {
        let Some(mut nodes) = nodes(arith, matrix, x, count) else { return };
        let (mut whole, mut found) = ([0.0; OUTPUTS], [0.0; OUTPUTS]);
        linear(arith, matrix, x, &mut whole);
        join(&nodes, &mut found);
        assert_eq!(bits(&found), bits(&whole), "{case}");
        assert!(nodes.iter().all(|node| node.to_bits() != 1 << 31), "{case}: -0 in {nodes:?}");
        nodes.iter_mut().for_each(|node| *node = flush(*node));
        join(&nodes, &mut found);
        shared += 1;
        flushed_first += usize::from(found != whole);
    });
    // What the cases are for: nodes that flush too early are seen.
    assert!(shared > 500 && flushed_first > 20, "{flushed_first} of {shared}");
}

#[test]
fn nodes_joined_in_another_order_are_seen() {
    let mut differ = 0;
    cases(|_, arith, matrix, x, count| {
        let Some(nodes) = nodes(arith, matrix, x, count).filter(|_| count > 2) else { return };
        let mut order: Vec<usize> = (0..count).collect();
        order.swap(1, 2);
        let others: Vec<f32> =
            order.iter().flat_map(|i| nodes[i * OUTPUTS..][..OUTPUTS].to_vec()).collect();
        let (mut found, mut expected) = ([0.0; OUTPUTS], [0.0; OUTPUTS]);
        join(&nodes, &mut expected);
        join(&others, &mut found);
        differ += usize::from(found != expected);
    });
    assert!(differ > 50, "{differ}");
}

#[test]
fn a_row_that_is_spoilt_in_one_share_is_spoilt_in_all_outputs() {
    let mut noise = Noise(9);
    let (format, cols) = (Format::Q8_0, 2_304);
    let bytes: Vec<u8> = (0..OUTPUTS).flat_map(|_| noise.row_bytes(format, cols)).collect();
    let matrix = Matrix { format, rows: OUTPUTS, cols, bytes: &bytes };
    for (at, value) in [(0, f32::NAN), (2_303, f32::INFINITY), (1_200, 2f32.powi(60))] {
        let mut x = noise.units(cols);
        x[at] = value;
        for count in [2, 4, 8] {
            let mut out = [0.0; OUTPUTS];
            join(&nodes(Arith::One, &matrix, &x, count).unwrap(), &mut out);
            assert!(out.iter().all(|x| x.to_bits() == SPOILT.to_bits()), "{out:?}");
        }
    }
}

#[test]
fn shares_are_whole_groups_in_the_sizes_that_the_page_says() {
    let sizes = |cols: usize, count: usize| -> Vec<usize> {
        let share = |i| Groups::values(cols, i * GROUPS / count..(i + 1) * GROUPS / count).len();
        (0..count).map(share).collect()
    };
    assert_eq!(sizes(5_120, 4), [1_280; 4]);
    assert_eq!(sizes(6_144, 8), [768; 8]);
    assert_eq!(sizes(17_408, 4), [4_352; 4]);
    assert_eq!(sizes(17_408, 8), [2_304, 2_048, 2_304, 2_048, 2_304, 2_048, 2_304, 2_048]);
    assert_eq!(sizes(576, 2), [512, 64], "the last slice is short");
    assert_eq!(sizes(256, 2), [256, 0]);
    for cols in COLS {
        assert_eq!(Groups::of(cols).count(), cols.div_ceil(256));
        assert_eq!(Groups::values(cols, 0..GROUPS), 0..cols);
    }
}
