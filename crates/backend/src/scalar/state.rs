//! Recurrent state on the host.

use arith::gdn::Gdn;

use crate::Walk;

/// Places of S `[values, key_dim, value_dim]` and of a tail `[taps - 1, channels]`.
#[derive(Clone, Debug)]
pub struct State {
    shape: Gdn,
    s: Vec<f32>,
    tails: Vec<f32>,
}

impl State {
    pub(super) fn new(shape: Gdn, places: usize) -> Self {
        let (s, tails) = (places * shape.state_values(), places * shape.tail_values());
        Self { shape, s: vec![0.0; s], tails: vec![0.0; tails] }
    }

    pub(super) fn shape(&self) -> &Gdn {
        &self.shape
    }

    pub(super) fn s(&self, place: usize) -> &[f32] {
        let n = self.shape.state_values();
        &self.s[place * n..][..n]
    }

    pub(super) fn tail(&self, place: usize) -> &[f32] {
        let n = self.shape.tail_values();
        &self.tails[place * n..][..n]
    }

    fn tail_mut(&mut self, place: usize) -> &mut [f32] {
        let n = self.shape.tail_values();
        &mut self.tails[place * n..][..n]
    }

    pub(super) fn copy_from(&mut self, from: &Self, place: usize, to: usize) {
        assert_eq!(self.shape, from.shape);
        let n = self.shape.state_values();
        self.s[to * n..][..n].copy_from_slice(from.s(place));
        self.tail_mut(to).copy_from_slice(from.tail(place));
    }

    /// The rows before a walk's first.
    pub(super) fn begin_tail(&self, walk: &Walk) -> Vec<f32> {
        match walk.from {
            Some(from) => self.tail(from).to_vec(),
            None => vec![0.0; self.shape.tail_values()],
        }
    }

    /// Keeps the last `taps - 1` of a walk's rows, those before it included.
    pub(super) fn end_tail(&mut self, place: usize, rows: &[&[f32]]) {
        let last = rows[rows.len() - (self.shape.taps - 1)..].concat();
        self.tail_mut(place).copy_from_slice(&last);
    }

    /// The S that a walk's first row finds, where the last leaves it.
    pub(super) fn begin_s(&mut self, walk: &Walk) -> &mut [f32] {
        let n = self.shape.state_values();
        let to = walk.to * n;
        match walk.from {
            Some(from) => self.s.copy_within(from * n..(from + 1) * n, to),
            None => self.s[to..to + n].fill(0.0),
        }
        &mut self.s[to..to + n]
    }
}
