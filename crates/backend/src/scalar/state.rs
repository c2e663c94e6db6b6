//! Recurrent state on the host.

use arith::gdn::Gdn;

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

    /// Copies a place; without its tail where `s_only`.
    pub(super) fn copy_from(&mut self, from: &Self, place: usize, to: usize, s_only: bool) {
        assert_eq!(self.shape, from.shape);
        let n = self.shape.state_values();
        self.s[to * n..][..n].copy_from_slice(from.s(place));
        if !s_only {
            self.tail_mut(to).copy_from_slice(from.tail(place));
        }
    }

    /// The rows before a walk's first.
    pub(super) fn begin_tail(&self, from: Option<usize>) -> Vec<f32> {
        match from {
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
    pub(super) fn begin_s(&mut self, from: Option<usize>, to: usize) -> &mut [f32] {
        let n = self.shape.state_values();
        let at = to * n;
        match from {
            Some(from) => self.s.copy_within(from * n..(from + 1) * n, at),
            None => self.s[at..at + n].fill(0.0),
        }
        &mut self.s[at..at + n]
    }
}
