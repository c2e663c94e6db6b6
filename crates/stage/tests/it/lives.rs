//! Streams of random lives: they open, go on in chunks and windows, are rolled back, kept, resumed
//! and closed, and every row that was their text's must be what the text alone gives.

use arith::sample::mix;
use wire::plan::Op;

use crate::chain::{Chain, Kind, same, say, tokens};

/// A stream, somewhere in one of the texts.
#[derive(Clone, Copy, Debug)]
struct Life {
    text: usize,
    settled: usize,
    /// Rows of its last window, and how many of them were the text's.
    window: usize,
    right: usize,
}

/// A kept state: key, text, position.
type Mark = (u64, usize, usize);

/// What is said of one stream in a round: id, accepted, tokens.
type Turn = (u32, u32, Vec<u32>);

struct World<'a> {
    chain: Chain,
    texts: &'a [Vec<u32>],
    /// The texts' rows.
    expected: &'a [Vec<f32>],
    lives: [Option<Life>; 4],
    marks: Vec<Mark>,
    random: u64,
    /// Rows compared.
    compared: usize,
}

impl World<'_> {
    /// A number below `most`.
    fn draw(&mut self, most: usize) -> usize {
        self.random = mix(self.random);
        (self.random % most as u64) as usize
    }

    fn compare(&mut self, found: &[f32], life: Life, what: &str) {
        let width = self.chain.hidden();
        let wanted = &self.expected[life.text][life.settled * width..][..life.right * width];
        same(&found[..life.right * width], wanted, &format!("{what}, {life:?}"));
        self.compared += life.right;
    }

    /// One stream ends, or goes on from a keep.
    fn come_and_go(&mut self, what: &str) {
        let id = self.draw(4);
        if self.lives[id].is_some() && self.draw(4) == 0 {
            self.chain.close(id as u32, Op::Close).unwrap();
            self.lives[id] = None;
        }
        if self.lives[id].is_some() || self.marks.is_empty() || self.draw(3) == 0 {
            return;
        }
        let at = self.draw(self.marks.len());
        let (key, text, settled) = self.marks[at];
        let rows = (1 + self.draw(9)).min(self.texts[text].len() - settled);
        let tokens = &self.texts[text][settled..settled + rows];
        let found = self.chain.resume(id as u32, key, tokens).unwrap();
        let life = Life { text, settled, window: rows, right: rows };
        self.compare(&found, life, &format!("{what}, resumed"));
        self.lives[id] = Some(life);
        if self.draw(2) == 0 {
            self.chain.drop_keep(key).unwrap();
            self.marks.remove(at);
        }
    }

    /// Settles a stream, or opens it, and gives it rows, of which some may be wrong.
    fn turn(&mut self, id: usize) -> Turn {
        let mut life = match self.lives[id] {
            Some(life) => life,
            None => Life { text: self.draw(self.texts.len()), settled: 0, window: 0, right: 0 },
        };
        // No long window is settled in part.
        let accepted = if life.window > 32 { life.right } else { self.draw(life.right + 1) };
        life.settled += accepted;
        let left = self.texts[life.text].len() - life.settled;
        life.window = [0, 1, 5, 5, 5, 40][self.draw(6)].min(left);
        life.right = life.window;
        if (2..=32).contains(&life.window) {
            life.right = self.draw(life.window + 1);
        }
        let mut tokens = self.texts[life.text][life.settled..][..life.window].to_vec();
        tokens[life.right..].iter_mut().for_each(|token| *token = 63 - *token);
        self.lives[id] = Some(life);
        (id as u32, accepted as u32, tokens)
    }

    fn round(&mut self, key: u64, what: &str) {
        self.come_and_go(what);
        let mut turns = Vec::new();
        for id in 0..4 {
            if self.draw(3) > 0 {
                turns.push(self.turn(id));
            }
        }
        let says: Vec<_> = turns.iter().map(|(id, last, tokens)| say(*id, *last, tokens)).collect();
        let lives = self.lives;
        let life = |turn: &Turn| lives[turn.0 as usize].unwrap();
        let mut saves = Vec::new();
        if let Some(turn) = turns.iter().find(|turn| life(turn).settled > 0)
            && self.draw(2) == 0
        {
            saves.push((key, turn.0));
            self.marks.push((key, life(turn).text, life(turn).settled));
        }
        let found = self.chain.saving(&says, &saves).unwrap();
        let mut rest = &found[..];
        for turn in &turns {
            self.compare(rest, life(turn), &format!("{what}, stream {}", turn.0));
            rest = &rest[turn.2.len() * self.chain.hidden()..];
        }
    }
}

#[test]
fn streams_of_random_lives_say_what_their_texts_do() {
    let texts = [60, 61, 62].map(|seed| tokens(seed, 150));
    for kind in [Kind::Fake, Kind::Hybrid] {
        let expected = texts.each_ref().map(|text| kind.chain(&[]).feed(1, text, 150));
        for seed in 1..5 {
            let (texts, expected) = (&texts[..], &expected[..]);
            let (chain, lives, marks) = (kind.chain(&[1]), [None; 4], Vec::new());
            let (random, compared) = (seed, 0);
            let mut world = World { chain, texts, expected, lives, marks, random, compared };
            for round in 0..60 {
                world.round(round, &format!("{kind:?}, seed {seed}, round {round}"));
            }
            assert!(world.compared > 100, "{kind:?}, seed {seed}: {} rows", world.compared);
        }
    }
}
