//! The members' shares of the head's rows, joined on the first member: whole rows, or the best
//! candidates of each member by value and id.

use arith::{float, head};

use super::division::Pieces;
use crate::{Exchange, ExchangeError, Fault};

/// Values of a candidate: the bits of its id, and its logit.
const CANDIDATE: usize = 2;

/// What a member gives of its share, and what the first one has of all.
#[derive(Default)]
pub(super) struct Merge {
    fault: Option<Fault>,
    own: Vec<f32>,
    sizes: Vec<usize>,
    all: Vec<f32>,
}

/// Values of a row that a member of `share` logits gives where `best` are needed, 0 for all.
pub(super) fn given(share: usize, best: u32) -> usize {
    match best as usize {
        0 => share,
        best => share.min(best.saturating_mul(CANDIDATE)),
    }
}

impl Merge {
    pub(super) fn new(fault: Option<Fault>) -> Self {
        Self { fault, ..Self::default() }
    }

    /// Meets the others with this member's `share` of some rows, of which `best` are needed of
    /// each. On the first member `to` becomes the rows: what is no candidate is -infinity, and a
    /// row whose best were asked for is NaN throughout where any member's share is spoilt.
    pub(super) fn run(
        &mut self,
        exchange: &mut dyn Exchange,
        pieces: &Pieces,
        (share, best): (&[f32], &[u32]),
        to: &mut [f32],
    ) -> Result<(), ExchangeError> {
        let index = exchange.member().index;
        let first = pieces.runs(index)[0].start;
        self.own.clear();
        for (row, &best) in share.chunks_exact(pieces.values(index)).zip(best) {
            pack(row, first as u32, best, &mut self.own);
        }
        let values =
            |member| best.iter().map(|&best| given(pieces.values(member), best)).sum::<usize>();
        self.sizes.clear();
        self.sizes.extend((0..pieces.members().len()).map(values));
        exchange.collect(&self.own, &self.sizes, &mut self.all)?;
        if index == 0 {
            if self.fault == Some(Fault::SwappedPieces) {
                self.all.rotate_left(self.sizes[0]);
            }
            self.join(pieces, best, to)?;
        }
        Ok(())
    }

    fn join(&self, pieces: &Pieces, best: &[u32], to: &mut [f32]) -> Result<(), ExchangeError> {
        to.fill(f32::NEG_INFINITY);
        let mut rest = &self.all[..];
        let mut spoilt = vec![false; best.len()];
        for (member, runs) in pieces.members().iter().enumerate() {
            let share = pieces.values(member);
            let rows = to.chunks_exact_mut(pieces.width).zip(best);
            for ((row, &best), spoilt) in rows.zip(&mut spoilt) {
                let (values, after) = rest.split_at(given(share, best));
                rest = after;
                if values.len() == share {
                    row[runs[0].clone()].copy_from_slice(values);
                } else {
                    let (candidates, _) = values.as_chunks::<CANDIDATE>();
                    place(candidates, row).map_err(|reason| ExchangeError { member, reason })?;
                }
                // Of a spoilt share that is what all of it is, an id's bits beside it or not.
                *spoilt |= best > 0 && values.last().is_some_and(|x| x.is_nan());
            }
        }
        let rows = to.chunks_exact_mut(pieces.width).zip(best);
        for ((row, &best), spoilt) in rows.zip(spoilt) {
            if best == 0 {
                continue;
            }
            if spoilt {
                row.fill(float::SPOILT);
            }
            if self.fault == Some(Fault::HigherTie) {
                resolve_higher(row);
            }
        }
        Ok(())
    }
}

/// Puts candidates where their ids say.
fn place(candidates: &[[f32; CANDIDATE]], row: &mut [f32]) -> Result<(), String> {
    let most = row.len();
    for [id, x] in candidates {
        let id = id.to_bits() as usize;
        let Some(found) = row.get_mut(id) else {
            return Err(format!("OtherIds: expected ids below {most}, found {id}"));
        };
        *found = *x;
    }
    Ok(())
}

/// Puts what is given of one row of a share behind `to`; its logits begin at id `first`.
fn pack(row: &[f32], first: u32, best: u32, to: &mut Vec<f32>) {
    let is_whole = given(row.len(), best) == row.len();
    if best > 0 && float::is_spoilt(row) {
        match is_whole {
            true => to.extend(std::iter::repeat_n(float::SPOILT, row.len())),
            false => (0..best).for_each(|_| to.extend([f32::from_bits(first), float::SPOILT])),
        }
        return;
    }
    if is_whole {
        to.extend_from_slice(row);
        return;
    }
    for id in head::leading(row, best as usize) {
        to.extend([f32::from_bits(first + id), row[id as usize]]);
    }
}

/// A defect: of equal candidates the last one stays.
fn resolve_higher(row: &mut [f32]) {
    for at in 0..row.len() {
        if row[at + 1..].contains(&row[at]) {
            row[at] = f32::NEG_INFINITY;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::exchange::local;

    /// What the first of `count` members makes of whole rows that all have their shares of.
    fn merged(
        rows: &[Vec<f32>],
        best: &[u32],
        count: usize,
        fault: Option<Fault>,
    ) -> Vec<Vec<f32>> {
        let width = rows[0].len();
        let pieces = &Pieces::even(width, count);
        let run = |mut member: crate::exchange::Local| {
            move || {
                let runs = pieces.runs(member.member().index);
                let share: Vec<f32> =
                    rows.iter().flat_map(|row| &row[runs[0].clone()]).copied().collect();
                let mut to = vec![9.0; rows.len() * width];
                Merge::new(fault).run(&mut member, pieces, (&share, best), &mut to).unwrap();
                to
            }
        };
        let all: Vec<Vec<f32>> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                local(count).into_iter().map(|member| scope.spawn(run(member))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(all[1..].iter().flatten().all(|x| *x == 9.0), "the others have no rows");
        all[0].chunks(width).map(<[f32]>::to_vec).collect()
    }

    fn row(seed: usize) -> Vec<f32> {
        (0..300).map(|i| ((i * 61 + seed * 17) % 97) as f32 - 40.0).collect()
    }

    #[test]
    fn the_best_of_a_row_are_those_of_the_whole_row() {
        let rows = [row(1), row(2), row(3), row(4)];
        let best = [1, 5, 0, 140];
        for count in [2, 3, 8] {
            let found = merged(&rows, &best, count, None);
            for ((found, row), best) in found.iter().zip(&rows).zip(best) {
                let best = if best == 0 { row.len() } else { best as usize };
                assert_eq!(head::leading(found, best), head::leading(row, best), "{count}");
                let is_own = |(x, y): (&f32, &f32)| x == y || *x == f32::NEG_INFINITY;
                assert!(found.iter().zip(row).all(is_own));
            }
            assert_eq!(found[2], rows[2]);
        }
    }

    #[test]
    fn an_id_that_no_row_has_is_refused_by_name() {
        let candidate = |id: u32| [f32::from_bits(id), 1.5];
        let mut row = [0.0; 3];
        assert_eq!(place(&[candidate(2)], &mut row), Ok(()));
        assert_eq!(row, [0.0, 0.0, 1.5]);
        let error = place(&[candidate(3)], &mut row).unwrap_err();
        assert_eq!(error, "OtherIds: expected ids below 3, found 3");
    }

    #[test]
    fn a_tie_goes_to_the_lower_id_unless_that_is_planted() {
        let mut tied = row(1);
        (tied[20], tied[280]) = (90.0, 90.0);
        let best = |fault| head::argmax(&merged(&[tied.clone()], &[1], 2, fault)[0]);
        assert_eq!([best(None), best(Some(Fault::HigherTie))], [20, 280]);
    }

    #[test]
    fn a_row_that_is_spoilt_anywhere_is_no_number_throughout() {
        for (spoilt, count) in [(f32::NEG_INFINITY, 2), (f32::NAN, 3), (f32::INFINITY, 2)] {
            let mut second = row(2);
            second[290] = spoilt;
            let rows = [row(1), second.clone(), second.clone(), second];
            let found = merged(&rows, &[2, 2, 200, 0], count, None);
            assert!(!found[0][head::argmax(&found[0]) as usize].is_nan());
            assert!(found[1..3].iter().flatten().all(|x| x.is_nan()));
            assert!(float::is_spoilt(&found[3]) && found[3][0] == row(2)[0]);
        }
    }

    #[test]
    fn few_values_are_given_where_few_are_needed() {
        assert_eq!([given(124_160, 0), given(124_160, 1), given(124_160, 20)], [124_160, 2, 40]);
        assert_eq!([given(16, 20), given(3, 1), given(1, 1)], [16, 2, 1]);
    }
}
