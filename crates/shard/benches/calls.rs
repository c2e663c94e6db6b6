//! How long a leader's calls take: a group of two on threads of this machine, whose engine does
//! nothing but meet the other one once. `cargo bench -p baton-shard --bench calls`, on a quiet
//! machine. Before each call the member has had time to fall asleep, as a leader's own work and
//! its head's leave it.
#![allow(clippy::unwrap_used, reason = "a bench")]

use std::net::{Ipv4Addr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use arith::base::StreamId;
use baton_shard::{Follower, Group, GroupConfig, Leader, Through, Times};
use ring::key::Key;
use stage::{Engine, Exchange, Input, Member, Shapes, SlotState, StageError};
use wire::control::Fields;
use wire::hello::Encryption;
use wire::plan::Plan;
use wire::preamble::Cipher;

/// Values of a row.
const HIDDEN: usize = 5_120;
const SHAPES: Shapes =
    Shapes { chunk_rows_max: 64, round_rows_max: 64, streams_max: 1, context_max: 64, pages: 1 };
const CALLS: usize = 2_000;
/// What a leader does between two calls.
const BETWEEN: Duration = Duration::from_micros(300);

/// Meets the other member with one value.
struct Meets(Box<dyn Exchange>);

impl Meets {
    fn meet(&mut self) -> Result<(), StageError> {
        Ok(self.0.gather(&[1.0], &[1, 1], &mut Vec::new())?)
    }
}

impl Engine for Meets {
    fn hidden(&self) -> usize {
        HIDDEN
    }
    fn vocab(&self) -> usize {
        1
    }
    fn prepare(&mut self, _: &Shapes) -> Result<(), StageError> {
        self.meet()
    }
    fn step(&mut self, _: &Plan, _: Input<'_>, _: &mut Vec<f32>) -> Result<(), StageError> {
        self.meet()
    }
    fn logits(&mut self, _: &[f32], _: &mut Vec<f32>) -> Result<(), StageError> {
        self.meet()
    }
    fn skip(&mut self, _: StreamId) {}
    fn reset(&mut self) {}
    fn table(&self) -> Vec<SlotState> {
        Vec::new()
    }
}

fn main() {
    for (name, through) in [("memory", Through::Auto), ("links", Through::Links)] {
        let held = [(); 2].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        let addresses = held.map(|held| held.local_addr().unwrap().to_string());
        let [first, second] = [0, 1].map(|index| {
            Group::start(GroupConfig {
                member: Member { index, count: 2 },
                addresses: addresses.to_vec(),
                key: Some(Key::from_bytes(&[1; 32]).unwrap()),
                cipher: Cipher::ChaChaPoly,
                encryption: Encryption::On,
                fingerprint: Fields::new(),
                through,
                times: Times::default(),
            })
            .unwrap()
        });
        let mut away = Meets(Box::new(second.seat()));
        let follower = Follower::new(second.clone());
        let thread = thread::spawn(move || follower.run(&mut away));
        let mut leader = Leader::new(first.clone(), Box::new(Meets(Box::new(first.seat()))));
        leader.prepare(&SHAPES).unwrap();
        let (plan, rows, mut out) = (Plan::default(), vec![1.0; HIDDEN], Vec::new());
        time(name, "step", || leader.step(&plan, Input::Tokens(&[]), &mut out));
        time(name, "head", || leader.best_logits(&rows, &[1], &mut out));
        first.shutdown();
        second.shutdown();
        thread.join().unwrap();
    }
}

fn time(through: &str, what: &str, mut call: impl FnMut() -> Result<(), StageError>) {
    let one = |_| {
        let rests = Instant::now();
        while rests.elapsed() < BETWEEN {
            std::hint::spin_loop();
        }
        let since = Instant::now();
        call().unwrap();
        since.elapsed()
    };
    let mut times: Vec<Duration> = (0..CALLS).map(one).collect();
    times.sort_unstable();
    let at = |share: f64| times[(CALLS as f64 * share) as usize].as_secs_f64() * 1e6;
    println!("{what} by {through}: {:.1} us, 10 % {:.1}, 90 % {:.1}", at(0.5), at(0.1), at(0.9));
}
