//! Stop strings in a stream of text pieces.

/// What may be shown after a piece was added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Text that is certain to stand before any stop string; maybe empty.
    pub text: String,
    /// Whether a stop string is complete: the reply ends after `text`.
    pub hit: bool,
}

/// Finds the stop string that is complete first; of those that end at the same place, the longest.
/// So the cut of the text into pieces changes nothing. The stop string itself is not shown.
#[derive(Clone, Debug, Default)]
pub struct StopStrings {
    stops: Vec<String>,
    /// The end of the text so far, where it may begin a stop string.
    held: String,
    hit: bool,
}

impl StopStrings {
    /// Looks for any of `stops`; empty ones are left out.
    pub fn new(stops: Vec<String>) -> Self {
        let stops = stops.into_iter().filter(|stop| !stop.is_empty()).collect();
        Self { stops, held: String::new(), hit: false }
    }

    /// Adds a piece of text. After a hit nothing more is shown.
    pub fn push(&mut self, piece: &str) -> Piece {
        if self.hit {
            return Piece { text: String::new(), hit: true };
        }
        self.held.push_str(piece);
        let found = self
            .stops
            .iter()
            .filter_map(|stop| self.held.find(stop).map(|start| (start + stop.len(), start)))
            .min();
        if let Some((_, start)) = found {
            self.hit = true;
            self.held.truncate(start);
            return Piece { text: std::mem::take(&mut self.held), hit: true };
        }
        let tail = self.held.split_off(self.held.len() - self.open());
        Piece { text: std::mem::replace(&mut self.held, tail), hit: false }
    }

    /// Bytes at the end of the held text that may begin a stop string.
    fn open(&self) -> usize {
        let held = self.held.as_bytes();
        let begins = |stop: &String| {
            let stop = stop.as_bytes();
            (1..stop.len()).rev().find(|&length| held.ends_with(&stop[..length]))
        };
        self.stops.iter().filter_map(begins).max().unwrap_or(0)
    }

    /// Ends the text: what was held back is shown after all.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}
