//! Random valid messages.

use std::borrow::Cow;

use arith::attention::KvDtype;
use arith::base::{Epoch, Generation, Rank, Round, StreamId};
use proptest::collection::{btree_map, btree_set, vec};
use proptest::prelude::*;
use wire::beat::Beat;
use wire::call::{Call, Input};
use wire::cancel::Cancel;
use wire::control::{Agree, Berths, Describe, Fields, Message, Ready, Shapes};
use wire::describe::{Ends, RowDtype};
use wire::frame::Frame;
use wire::hello::{Answer, Encryption, Hello, Refusal, RefusalCode, Role};
use wire::limit::MEASURE_BYTES_MAX;
use wire::measure::Measure;
use wire::plan::{Entry, Keep, KeepOp, Mode, Op, Plan, ROOT, Want};
use wire::stop::Stop;
use wire::tally::Tally;

prop_compose! {
    pub fn hello()(
        world in 1u32..=64,
        rank in any::<prop::sample::Index>(),
        role in 0..3usize,
        encrypts in any::<bool>(),
        epoch in any::<u64>(),
        fingerprint in any::<[u8; 32]>(),
    ) -> Hello {
        Hello {
            rank: Rank(rank.index(world as usize) as u32),
            world,
            role: [Role::Connector, Role::Acceptor, Role::Measurer][role],
            epoch: Epoch(epoch),
            fingerprint,
            encryption: if encrypts { Encryption::On } else { Encryption::Off },
        }
    }
}

fn refusal() -> impl Strategy<Value = Refusal> {
    let code = prop_oneof![
        Just(RefusalCode::OtherFingerprint),
        Just(RefusalCode::OtherWorld),
        Just(RefusalCode::NotNeighbour),
        Just(RefusalCode::OtherEpoch),
        Just(RefusalCode::OtherEncryption),
    ];
    (code, "\\PC{0,16}", "\\PC{0,16}").prop_map(|(code, expected, found)| Refusal {
        code,
        expected,
        found,
    })
}

pub fn answer() -> impl Strategy<Value = Answer> {
    (hello(), prop::option::of(refusal())).prop_map(|(hello, refusal)| Answer { hello, refusal })
}

pub fn beat() -> impl Strategy<Value = Beat> {
    any::<(u32, u64, u64, u64)>().prop_map(|(rank, epoch, round, done)| Beat {
        rank: Rank(rank),
        epoch: Epoch(epoch),
        round: Round(round),
        done,
    })
}

pub fn tally() -> impl Strategy<Value = Tally> {
    any::<(u32, u32, [u64; 5])>().prop_map(|(origin, link_us, words)| Tally {
        origin: Rank(origin),
        link_us,
        epoch: Epoch(words[0]),
        done: words[1],
        computed_us: words[2],
        sent_bytes: words[3],
        memory_bytes: words[4],
    })
}

pub fn cancel() -> impl Strategy<Value = Cancel> {
    any::<(u32, u32, u64)>().prop_map(|(origin, stream, epoch)| Cancel {
        origin: Rank(origin),
        stream: StreamId(stream),
        epoch: Epoch(epoch),
    })
}

pub fn stop() -> impl Strategy<Value = Stop> {
    (any::<u32>(), "\\PC{0,64}").prop_map(|(origin, reason)| Stop { origin: Rank(origin), reason })
}

pub fn fields() -> impl Strategy<Value = Fields> {
    btree_map("\\PC{1,12}", "\\PC{0,24}", 0..12).prop_map(|map| {
        let mut fields = Fields::new();
        for (name, value) in map {
            fields.put(name, value).unwrap();
        }
        fields
    })
}

fn shapes() -> impl Strategy<Value = Shapes> {
    (1..=u32::MAX, 1u32..=1 << 20, 1..=u32::MAX, 1..=u32::MAX, 1..=u32::MAX).prop_map(
        |(chunk_rows_max, round_rows_max, streams_max, context_max, pages)| Shapes {
            chunk_rows_max,
            round_rows_max,
            streams_max,
            context_max,
            pages,
        },
    )
}

prop_compose! {
    pub fn describe()(
        hello in hello(),
        texts in prop::array::uniform3("\\PC{0,20}"),
        numbers in prop::array::uniform4(any::<u32>()),
        first in 0u32..4000,
        layers in vec(any::<[u8; 32]>(), 1..8),
        hidden in 1u32..,
        planes in 1u8..=16,
        half in any::<bool>(),
        shapes in shapes(),
        tapped in any::<u8>(),
        ends in prop::option::of(any::<[[u8; 32]; 2]>()),
    ) -> Describe {
        let [engine, backend, device] = texts;
        let [arith, states, drafter_width, layer_us] = numbers;
        let range = first..first + layers.len() as u32;
        let taps = range.clone().filter(|layer| tapped >> (layer - first) & 1 == 1).collect();
        Describe {
            rank: hello.rank,
            world: hello.world,
            engine,
            backend,
            arith,
            device,
            range,
            hidden,
            planes,
            row_dtype: RowDtype::F32,
            kv: if half { KvDtype::F16 } else { KvDtype::F32 },
            shapes,
            states,
            taps,
            drafter_width,
            layers,
            ends: ends.map(|[embedding, head]| Ends { embedding, head }),
            layer_us: Some(layer_us).filter(|&us| us > 0),
        }
    }
}

pub fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        describe().prop_map(Message::Describe),
        (shapes(), 1u32..=64, fields()).prop_map(|(shapes, depth, settings)| {
            Message::Agree(Agree { shapes, depth, settings })
        }),
        (0u32..64).prop_map(|rank| Message::Ready(Ready { rank: Rank(rank) })),
        fields().prop_map(Message::Fields),
        (1u32..64, any::<u8>()).prop_map(|(rank, byte)| Message::Berths(Berths {
            rank: Rank(rank),
            offer: [byte; 128]
        })),
    ]
}

prop_compose! {
    fn entry(id: u32)(
        op in 1u8..=5,
        want in 0u8..3,
        first in 1u32..100_000,
        rows in 0u32..6,
        accepted in 0u32..6,
        generation in any::<u32>(),
        parents in prop::option::of(vec(any::<prop::sample::Index>(), 6)),
        tokens in prop::option::of(vec(any::<u32>(), 6)),
    ) -> Entry {
        let op = [Op::Open, Op::Continue, Op::Close, Op::Cancel, Op::Resume][op as usize - 1];
        let open = op == Op::Open;
        let rows = if matches!(op, Op::Close | Op::Cancel) { 0 } else { rows };
        let parent = |(row, index): (usize, prop::sample::Index)| match index.index(row + 1) {
            parent if parent == row => ROOT,
            parent => parent as u16,
        };
        Entry {
            id: StreamId(id),
            op,
            want: [Want::None, Want::Last, Want::All][want as usize],
            first: if open { 0 } else { first },
            rows,
            accepted: if open { 0 } else { accepted },
            resume: if op == Op::Resume { first } else { 0 },
            generation: Generation(if open { 0 } else { generation }),
            parents: parents.map(|all| {
                all.into_iter().take(rows as usize).enumerate().map(parent).collect()
            }),
            tokens: tokens.map(|all| all.into_iter().take(rows as usize).collect()),
        }
    }
}

fn keep() -> impl Strategy<Value = Keep> {
    let op = prop_oneof![Just(KeepOp::Save), Just(KeepOp::Drop), Just(KeepOp::Restore)];
    (any::<(u64, u32, u32, bool)>(), op).prop_map(|((key, stream, position, held), op)| Keep {
        key,
        stream: StreamId(stream),
        position,
        op,
        held,
    })
}

/// Plans that keep every rule; resumes bring their restores along.
pub fn plan() -> impl Strategy<Value = Plan> {
    let entries = btree_set(any::<u32>(), 0..6)
        .prop_flat_map(|ids| ids.into_iter().map(entry).collect::<Vec<_>>());
    (any::<bool>(), entries, vec(keep(), 0..4), btree_set(1u32..30, 0..5)).prop_map(
        |(prompt, entries, mut keeps, cuts)| {
            let resumes = entries.iter().filter(|entry| entry.op == Op::Resume);
            keeps.extend(resumes.map(|entry| Keep {
                key: u64::from(entry.id.0),
                stream: entry.id,
                position: entry.first,
                op: KeepOp::Restore,
                held: true,
            }));
            let mode = if prompt { Mode::Prompt } else { Mode::Window };
            let mut plan = Plan { mode, entries, cuts: vec![], keeps };
            let rows = plan.rows() as u32;
            plan.cuts = cuts.into_iter().filter(|&cut| cut < rows).collect();
            plan
        },
    )
}

pub fn frame() -> impl Strategy<Value = Frame> {
    prop_oneof![
        message().prop_map(|message| Frame::control(message.encode().unwrap())),
        (1u64.., plan())
            .prop_map(|(round, plan)| { Frame::plan(Round(round), plan.encode().unwrap()) }),
        (1u64.., 1usize..5, 1usize..9).prop_map(|(round, count, width)| {
            let values = vec![1.5; count * width];
            Frame::rows(Round(round), count as u32, values)
        }),
        stop().prop_map(|stop| Frame::stop(&stop)),
        beat().prop_map(|beat| Frame::beat(&beat)),
        cancel().prop_map(|cancel| Frame::cancel(&cancel)),
        tally().prop_map(|tally| Frame::tally(&tally)),
        (1u64.., 1u32.., any::<u32>()).prop_map(|(round, rows, berth)| Frame::berth(
            Round(round),
            rows,
            berth
        )),
    ]
}

/// Calls of each kind that carries more than a number.
pub fn call() -> impl Strategy<Value = Call<'static>> {
    let values = |count| vec(-9.0f32..9.0, count);
    let step = plan().prop_flat_map(move |plan| {
        let rows = plan.rows();
        let input = prop_oneof![
            vec(any::<u32>(), rows).prop_map(|ids| Input::Tokens(ids.into())),
            values(rows * 2).prop_map(|rows| Input::Rows(rows.into())),
        ];
        input.prop_map(move |input| Call::Step { plan: Cow::Owned(plan.clone()), input })
    });
    prop_oneof![
        step,
        shapes().prop_map(Call::Prepare),
        (vec(any::<u32>(), 3), values(6))
            .prop_map(|(best, rows)| Call::Logits { best: best.into(), rows: rows.into() }),
    ]
}

/// A decoder's name and bytes that it takes.
pub fn valid() -> impl Strategy<Value = (&'static str, Vec<u8>)> {
    prop_oneof![
        hello().prop_map(|hello| ("hello", hello.encode().unwrap())),
        answer().prop_map(|answer| ("answer", answer.encode().unwrap())),
        message().prop_map(|message| ("control", message.encode().unwrap())),
        plan().prop_map(|plan| ("plan", plan.encode().unwrap())),
        beat().prop_map(|beat| ("beat", beat.encode().to_vec())),
        cancel().prop_map(|cancel| ("cancel", cancel.encode().to_vec())),
        tally().prop_map(|tally| ("tally", tally.encode().to_vec())),
        stop().prop_map(|stop| ("stop", stop.encode())),
        (1..=MEASURE_BYTES_MAX).prop_map(|n| ("measure", Measure::Take(n).encode().to_vec())),
        call().prop_map(|call| ("call", call.encode().unwrap())),
        vec(frame(), 1..4).prop_map(|frames| {
            ("frame", frames.into_iter().flat_map(crate::kind::written).collect())
        }),
    ]
}
