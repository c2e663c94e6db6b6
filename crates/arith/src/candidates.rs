//! The best candidates of rows of logits in few values: what a draw that needs no more is from.

use crate::{float, head};

/// Values of a candidate: the bits of its id, and its logit.
pub const VALUES: usize = 2;

/// Values that stand for a row of `width` logits of which `best` are needed: that many candidates,
/// or the row where `best` is 0, which is all, or where it is no longer.
pub fn given(width: usize, best: u32) -> usize {
    match best as usize {
        0 => width,
        best => width.min(best.saturating_mul(VALUES)),
    }
}

/// Whether those are candidates, best first, as [`head::leading`] orders them.
pub fn are_few(width: usize, best: u32) -> bool {
    given(width, best) < width
}

/// Puts behind `to` what stands for a row, whose logits begin at id `first`. Where `best` is above
/// 0 and the row is spoilt, every logit of it is NaN. A candidate of -0 is one of 0.
pub fn pack(row: &[f32], first: u32, best: u32, to: &mut Vec<f32>) {
    if best > 0 && float::is_spoilt(row) {
        return spoilt(row.len(), first, best, to);
    }
    if !are_few(row.len(), best) {
        return to.extend_from_slice(row);
    }
    for id in head::leading(row, best as usize) {
        to.extend([f32::from_bits(first + id), row[id as usize] + 0.0]);
    }
}

/// As [`pack`] of a spoilt row of `width` logits; `best` is above 0.
pub fn spoilt(width: usize, first: u32, best: u32, to: &mut Vec<f32>) {
    if are_few(width, best) {
        (0..best).for_each(|_| to.extend([f32::from_bits(first), float::SPOILT]));
    } else {
        to.extend(std::iter::repeat_n(float::SPOILT, width));
    }
}

/// What stands for whole rows of logits, of which `best` are needed of each.
pub fn pack_rows(logits: &[f32], best: &[u32]) -> Vec<f32> {
    let width = logits.len() / best.len().max(1);
    let mut packed = Vec::new();
    for (row, &best) in logits.chunks_exact(width.max(1)).zip(best) {
        pack(row, 0, best, &mut packed);
    }
    packed
}

/// The candidates that stand for a row.
pub fn read(values: &[f32]) -> &[[f32; VALUES]] {
    values.as_chunks().0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(row: &[f32], first: u32, best: u32) -> Vec<(u32, f32)> {
        let mut to = Vec::new();
        pack(row, first, best, &mut to);
        assert_eq!(to.len(), given(row.len(), best));
        read(&to).iter().map(|[id, x]| (id.to_bits(), *x)).collect()
    }

    #[test]
    fn few_values_are_given_where_few_are_needed() {
        assert_eq!([given(124_160, 0), given(124_160, 1), given(124_160, 20)], [124_160, 2, 40]);
        assert_eq!([given(16, 20), given(3, 1), given(1, 1)], [16, 2, 1]);
        assert_eq!([are_few(40, 20), are_few(41, 20), are_few(41, 0)], [false, true, false]);
    }

    #[test]
    fn candidates_are_the_best_of_a_row_with_the_ids_of_the_whole_one() {
        let row = [-1.0, 3.0, -0.0, 3.0, f32::MIN_POSITIVE, 0.0, 2.0];
        assert_eq!(packed(&row, 100, 3), [(101, 3.0), (103, 3.0), (106, 2.0)]);
        assert_eq!(packed(&[-0.0, -1.0, -1.0], 0, 1)[0].1.to_bits(), 0);
        assert_eq!(pack_rows(&[row, row].concat(), &[0, 4])[..7], row);
        assert_eq!(pack_rows(&[row, row].concat(), &[0, 4])[7..], row);
    }

    #[test]
    fn a_row_that_is_spoilt_is_no_number_where_its_best_are_needed() {
        for x in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::from_bits(0x5d80_0000)] {
            let row = [1.0, 2.0, x, 0.5, 0.25];
            assert!(packed(&row, 7, 2).iter().all(|(id, x)| *id == 7 && x.is_nan()));
            assert!(pack_rows(&row, &[4]).iter().all(|x| x.is_nan()));
            assert_eq!(pack_rows(&row, &[0])[..2], [1.0, 2.0]);
        }
    }
}
