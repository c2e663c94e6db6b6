//! A share that computes what a whole stage does, and gathers a digest of it: a member that was
//! called otherwise, or has other state, is found at once.

use std::net::{Ipv4Addr, TcpListener};
use std::thread::JoinHandle;
use std::time::Duration;

use arith::base::StreamId;
use ring::key::Key;
use shard::{Follower, Group, GroupConfig, Leader, Through, Times};
use stage::{
    Chain, Engine, Exchange, ExchangeError, Fake, FakeConfig, Input, Member, Pick, Shapes,
    SlotState, StageError,
};
use wire::control::Fields;
use wire::hello::Encryption;
use wire::plan::Plan;
use wire::preamble::Cipher;

pub const SHAPES: Shapes =
    Shapes { chunk_rows_max: 64, round_rows_max: 128, streams_max: 4, context_max: 512, pages: 64 };

/// Short deadlines; `silent` leaves a busy machine time.
pub const TIMES: Times = Times {
    beat: Duration::from_millis(100),
    silent: Duration::from_millis(1_500),
    stalled: Duration::from_secs(20),
    connect: Duration::from_secs(2),
    first_message: Duration::from_secs(1),
    handshake: Duration::from_secs(5),
    join: Duration::from_secs(15),
    ready: Duration::from_secs(15),
};

pub struct Double {
    fake: Fake,
    exchange: Box<dyn Exchange>,
    /// Exchanges of a step beside those of the others: a defect.
    pub extra: usize,
}

impl Double {
    pub fn new(fake: Fake, exchange: impl Exchange + 'static) -> Self {
        Self { fake, exchange: Box::new(exchange), extra: 0 }
    }

    /// Requires that every member says the same, whose values it also counts.
    fn agree(&mut self, said: &[f32]) -> Result<(), StageError> {
        let Member { index, count } = self.exchange.member();
        let digest = said.iter().fold(7u32, |hash, x| hash.rotate_left(5) ^ x.to_bits());
        // As integers: a NaN's bits need not survive a copy.
        let own = [digest >> 16, digest & 0xffff].map(|half| half as f32);
        let mut all = Vec::new();
        self.exchange.gather(&own, &vec![2; count], &mut all)?;
        for (member, theirs) in all.chunks(2).enumerate() {
            if theirs != own {
                let reason = format!("member {index} has another digest");
                return Err(ExchangeError { member, reason }.into());
            }
        }
        Ok(())
    }
}

impl Engine for Double {
    fn hidden(&self) -> usize {
        self.fake.hidden()
    }

    fn vocab(&self) -> usize {
        self.fake.vocab()
    }

    fn prepare(&mut self, shapes: &Shapes) -> Result<(), StageError> {
        self.fake.prepare(shapes)?;
        self.agree(&[shapes.pages as f32])
    }

    fn step(
        &mut self,
        plan: &Plan,
        input: Input<'_>,
        out: &mut Vec<f32>,
    ) -> Result<(), StageError> {
        self.fake.step(plan, input, out)?;
        for _ in 0..self.extra {
            self.agree(&[])?;
        }
        self.agree(&out.clone())
    }

    fn logits(&mut self, rows: &[f32], out: &mut Vec<f32>) -> Result<(), StageError> {
        self.fake.logits(rows, out)?;
        self.agree(&out.clone())
    }

    fn drafts(&self) -> bool {
        self.fake.drafts()
    }

    fn draft(
        &mut self,
        chains: &[Chain<'_>],
        rows: &[f32],
        pick: Pick<'_>,
    ) -> Result<Vec<Vec<u32>>, StageError> {
        self.fake.draft(chains, rows, pick)
    }

    fn skip(&mut self, id: StreamId) {
        self.fake.skip(id);
    }

    fn reset(&mut self) {
        self.fake.reset();
    }

    fn held(&self) -> &[bool] {
        self.fake.held()
    }

    fn table(&self) -> Vec<SlotState> {
        self.fake.table()
    }
}

pub fn fake() -> Fake {
    Fake::new(FakeConfig::small(0..3, true))
}

pub fn fields(model: &str) -> Fields {
    let mut fields = Fields::new();
    fields.put("group", "rank 0").unwrap();
    fields.put("model", model).unwrap();
    fields
}

/// Free loopback addresses.
pub fn addresses(count: usize) -> Vec<String> {
    let held: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()).collect();
    held.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect()
}

pub fn config(index: usize, addresses: &[String]) -> GroupConfig {
    GroupConfig {
        member: Member { index, count: addresses.len() },
        addresses: addresses.to_vec(),
        key: Some(Key::from_bytes(&[3; 32]).unwrap()),
        cipher: Cipher::ChaChaPoly,
        encryption: Encryption::On,
        fingerprint: fields("a"),
        through: Through::Auto,
        times: TIMES,
    }
}

/// A member on a thread of its own.
pub struct Away {
    pub group: Group,
    thread: Option<JoinHandle<()>>,
}

impl Away {
    /// Runs `engine`, which `make` makes of the group.
    pub fn start<E: Engine + 'static>(config: GroupConfig, make: impl FnOnce(&Group) -> E) -> Self {
        // One that was here before leaves its address a moment after it has gone.
        let mut tries = (0..500).map(|_| {
            std::thread::sleep(Duration::from_millis(2));
            Group::start(config.clone())
        });
        let group = tries.find_map(Result::ok).unwrap();
        let mut engine = make(&group);
        let follower = Follower::new(group.clone());
        let thread = std::thread::spawn(move || follower.run(&mut engine));
        Self { group, thread: Some(thread) }
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        self.group.shutdown();
        self.thread.take().unwrap().join().unwrap();
    }
}

/// A leader of doubles, prepared; the others.
pub fn whole(count: usize) -> (Leader, Group, Vec<Away>) {
    let addresses = addresses(count);
    let away = (1..count)
        .map(|index| {
            Away::start(config(index, &addresses), |group| Double::new(fake(), group.seat()))
        })
        .collect();
    let group = Group::start(config(0, &addresses)).unwrap();
    let engine = Double::new(fake(), group.seat());
    let mut leader = Leader::new(group.clone(), Box::new(engine)).comparing();
    leader.prepare(&SHAPES).unwrap();
    (leader, group, away)
}
