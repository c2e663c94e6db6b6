//! The members' shares of the head's rows, joined on the first member: whole rows, or the best
//! candidates of all members by value and id.

use arith::candidates::{VALUES, are_few, given, read, spoilt};

use super::division::Pieces;
use crate::{Exchange, ExchangeError, Fault};

/// What the first member has of all.
#[derive(Default)]
pub(super) struct Merge {
    fault: Option<Fault>,
    sizes: Vec<usize>,
    all: Vec<f32>,
}

/// What is known of one row.
struct Row {
    best: u32,
    spoilt: bool,
    /// Id and logit of candidates.
    found: Vec<(u32, f32)>,
    /// All logits, where they are not few.
    whole: Vec<f32>,
}

impl Merge {
    pub(super) fn new(fault: Option<Fault>) -> Self {
        Self { fault, ..Self::default() }
    }

    /// Meets the others with what stands for this member's `share` of some rows, of which `best`
    /// are needed of each. The first member puts what stands for the rows behind `to`; one whose
    /// best were asked for is spoilt where any member's share is.
    pub(super) fn run(
        &mut self,
        exchange: &mut dyn Exchange,
        pieces: &Pieces,
        (share, best): (&[f32], &[u32]),
        to: &mut Vec<f32>,
    ) -> Result<(), ExchangeError> {
        let values =
            |member| best.iter().map(|&best| given(pieces.values(member), best)).sum::<usize>();
        self.sizes.clear();
        self.sizes.extend((0..pieces.members().len()).map(values));
        exchange.collect(share, &self.sizes, &mut self.all)?;
        if exchange.member().index == 0 {
            if self.fault == Some(Fault::SwappedPieces) {
                self.all.rotate_left(self.sizes[0]);
            }
            self.join(pieces, best, to)?;
        }
        Ok(())
    }

    fn join(&self, pieces: &Pieces, best: &[u32], to: &mut Vec<f32>) -> Result<(), ExchangeError> {
        let row = |&best: &u32| {
            let whole = if are_few(pieces.width, best) { 0 } else { pieces.width };
            Row { best, spoilt: false, found: Vec::new(), whole: vec![0.0; whole] }
        };
        let mut rows: Vec<Row> = best.iter().map(row).collect();
        let mut rest = &self.all[..];
        for (member, runs) in pieces.members().iter().enumerate() {
            let share = pieces.values(member);
            for row in &mut rows {
                let (values, after) = rest.split_at(given(share, row.best));
                rest = after;
                row.take(values, (runs[0].start, share), pieces.width)
                    .map_err(|reason| ExchangeError { member, reason })?;
            }
        }
        rows.into_iter().for_each(|row| row.give(pieces.width, self.fault, to));
        Ok(())
    }
}

impl Row {
    /// Takes a member's values in, of a share that begins at id `first` of `width`.
    fn take(
        &mut self,
        values: &[f32],
        (first, share): (usize, usize),
        width: usize,
    ) -> Result<(), String> {
        // Of a spoilt share that is what all of it is, an id's bits beside it or not.
        self.spoilt |= self.best > 0 && values.last().is_some_and(|x| x.is_nan());
        if !self.whole.is_empty() {
            self.whole[first..first + share].copy_from_slice(values);
        } else if are_few(share, self.best) {
            for [id, x] in read(values) {
                let id = id.to_bits();
                if id as usize >= width {
                    return Err(format!("OtherIds: expected ids below {width}, found {id}"));
                }
                self.found.push((id, *x));
            }
        } else {
            self.found.extend((first as u32..).zip(values.iter().map(|x| x + 0.0)));
        }
        Ok(())
    }

    /// Puts what stands for the row, of `width` logits, behind `to`.
    fn give(mut self, width: usize, fault: Option<Fault>, to: &mut Vec<f32>) {
        if self.spoilt {
            return spoilt(width, 0, self.best, to);
        }
        let few = self.whole.is_empty();
        to.extend(self.whole);
        if few {
            let higher = fault == Some(Fault::HigherTie);
            let place = |id: u32| if higher { !id } else { id };
            self.found
                .sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(place(a.0).cmp(&place(b.0))));
            let best = self.found.iter().take(self.best as usize);
            to.extend(best.flat_map(|(id, x)| -> [f32; VALUES] { [f32::from_bits(*id), *x] }));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use arith::candidates::pack;
    use arith::float;

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
                let run = pieces.runs(member.member().index)[0].clone();
                let mut share = Vec::new();
                for (row, &best) in rows.iter().zip(best) {
                    pack(&row[run.clone()], run.start as u32, best, &mut share);
                }
                let mut to = Vec::new();
                Merge::new(fault).run(&mut member, pieces, (&share, best), &mut to).unwrap();
                to
            }
        };
        let all: Vec<Vec<f32>> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                local(count).into_iter().map(|member| scope.spawn(run(member))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(all[1..].iter().flatten().next().is_none(), "the others have no rows");
        let mut rest = &all[0][..];
        let mut next = |&best: &u32| {
            let (row, after) = rest.split_at(given(width, best));
            rest = after;
            row.to_vec()
        };
        best.iter().map(&mut next).collect()
    }

    fn row(seed: usize) -> Vec<f32> {
        (0..300).map(|i| ((i * 61 + seed * 17) % 97) as f32 - 40.0).collect()
    }

    #[test]
    fn what_stands_for_a_row_is_that_of_the_whole_row() {
        let rows = [row(1), row(2), row(3), row(4), row(5), row(6)];
        // Few of the shares too, few of whole shares, and whole rows.
        let best = [1, 5, 0, 140, 150, 400];
        for count in [2, 3, 8] {
            let found = merged(&rows, &best, count, None);
            for ((found, row), best) in found.iter().zip(&rows).zip(best) {
                let mut expected = Vec::new();
                pack(row, 0, best, &mut expected);
                assert_eq!(*found, expected, "{best} of {count}");
            }
        }
    }

    #[test]
    fn an_id_that_no_row_has_is_refused_by_name() {
        let row = || Row { best: 1, spoilt: false, found: Vec::new(), whole: Vec::new() };
        let take = |id: u32| row().take(&[f32::from_bits(id), 1.5], (0, 3), 3);
        assert_eq!(take(2), Ok(()));
        assert_eq!(take(3).unwrap_err(), "OtherIds: expected ids below 3, found 3");
    }

    #[test]
    fn a_tie_goes_to_the_lower_id_unless_that_is_planted() {
        let mut tied = row(1);
        (tied[20], tied[280]) = (90.0, 90.0);
        let best = |fault| merged(&[tied.clone()], &[1], 2, fault)[0][0].to_bits();
        assert_eq!([best(None), best(Some(Fault::HigherTie))], [20, 280]);
    }

    #[test]
    fn a_row_that_is_spoilt_anywhere_is_no_number_throughout() {
        for (spoilt, count) in [(f32::NEG_INFINITY, 2), (f32::NAN, 3), (f32::INFINITY, 2)] {
            let mut second = row(2);
            second[290] = spoilt;
            let rows = [row(1), second.clone(), second.clone(), second];
            let found = merged(&rows, &[2, 2, 200, 0], count, None);
            assert!(found[0].iter().all(|x| !x.is_nan()));
            assert_eq!([found[1].len(), found[2].len()], [4, 300]);
            assert!(read(&found[1]).iter().all(|[id, x]| id.to_bits() == 0 && x.is_nan()));
            assert!(found[2].iter().all(|x| x.is_nan()));
            assert!(float::is_spoilt(&found[3]) && found[3][0] == row(2)[0]);
        }
    }
}
