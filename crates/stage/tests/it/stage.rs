//! What only a stage with a model does.

use std::sync::Arc;

use arith::attention::KvDtype;
use arith::base::{Round, StreamId};
use arith::float::is_spoilt;
use backend::scalar::Scalar;
use baton_stage::exchange::{Local, local};
use baton_stage::{Engine, Input, PIECE_ROWS_MAX, Shapes, Split, Stage, StageConfig, need_bytes};
use weights::synthetic;
use wire::plan::{Entry, Op, Plan, Want};

use crate::chain::{
    Chain, Kind, LAYERS, LONG, SHAPES, checkpoint, config, cpu, entry, hybrid, same, say, stage,
    tiny, tokens,
};
use crate::plain::Plain;

#[test]
fn the_cpu_equals_the_reference() {
    let text = tokens(31, 150);
    let mut reference = Kind::Scalar.chain(&[]);
    let mut cpu = Kind::Cpu.chain(&[1]);
    let expected = reference.feed(1, &text, 150);
    let found = cpu.feed(1, &text, 33);
    same(&found, &expected, "rows");
    same(&cpu.logits(&found), &reference.logits(&expected), "logits");
}

#[test]
fn the_layer_program_is_the_family_written_plainly() {
    let text = tokens(36, 70);
    for tied in [true, false] {
        let checkpoint = checkpoint(&synthetic::Llama { tied, ..synthetic::Llama::default() });
        let stage = Stage::open(cpu().clone(), &checkpoint, config(0..LAYERS)).unwrap();
        let mut chain = Chain::new(vec![Box::new(stage)]);
        let rows = chain.feed(1, &text, 64);
        let mut plain = Plain::new(&checkpoint);
        let expected: Vec<f32> = text.iter().flat_map(|token| plain.row(*token)).collect();
        same(&rows, &expected, &format!("rows, tied {tied}"));
        let last = &rows[69 * chain.hidden()..];
        same(&chain.logits(last), &plain.logits(last), &format!("logits, tied {tied}"));
    }
}

#[test]
fn loop_mode_equals_no_boundary() {
    let text = tokens(32, 70);
    let plain = Kind::Cpu.chain(&[]).feed(1, &text, 70);
    let looped = StageConfig { loop_mode: true, ..config(0..LAYERS) };
    let mut chain = Chain::new(vec![Box::new(stage(cpu(), looped))]);
    same(&chain.feed(1, &text, 70), &plain, "loop mode");
}

#[test]
fn a_round_larger_than_a_piece_equals_small_rounds_wherever_it_is_cut() {
    let (a, b) = (tokens(33, 2_090), tokens(34, 100));
    assert!(a.len() > PIECE_ROWS_MAX);
    for kind in [Kind::Cpu, Kind::Hybrid] {
        let sized = || Chain::sized(vec![kind.engine(0..LAYERS)], &LONG);
        let alone = [sized().feed(1, &a, 64), sized().feed(2, &b, 64)];
        for cuts in [vec![], vec![100, 1_300, 2_090]] {
            let mut chain = sized();
            chain.cuts = cuts;
            let rows = chain.round(&[say(1, 0, &a), say(2, 0, &b)]).unwrap();
            same(&rows, &alone.concat(), &format!("{kind:?}, cuts {:?}", chain.cuts));
        }
    }
}

#[test]
fn rows_in_berths_are_those_of_a_boundary_and_a_stream_that_is_skipped_has_none() {
    let (a, b) = (tokens(42, 70), tokens(43, 30));
    let says = [say(1, 0, &a), say(2, 0, &b)];
    let (mut plain, mut moored) = (Kind::Scalar.chain(&[1, 2]), Kind::Berths.chain(&[1, 2]));
    let rows = moored.round(&says).unwrap();
    same(&rows, &plain.round(&says).unwrap(), "rows");
    assert!(moored.boundaries.iter().all(Vec::is_empty), "they went by berths");
    let next = [say(1, 70, &b), say(2, 30, &a)];
    for chain in [&mut plain, &mut moored] {
        chain.stages[0].skip(StreamId(2));
    }
    let rows = moored.round(&next).unwrap();
    same(&rows, &plain.round(&next).unwrap(), "rows beside a stream that is skipped");
    assert!(!moored.boundaries[0].is_empty() && moored.boundaries[1].is_empty());
    // Berths that the rounds do not fit are none.
    let offer = moored.stages[1].berths(2).unwrap().unwrap();
    let mut other = Kind::Berths.chain(&[1]);
    let shapes = Shapes { round_rows_max: SHAPES.round_rows_max + 1, ..SHAPES };
    other.stages[0].prepare(&shapes).unwrap();
    assert!(other.stages[0].reach(&offer).unwrap_err().contains("values each"));
    // A new epoch knows no berths but its own.
    moored.stages[0].reset();
    moored.stages[1].reset();
    let plan = Plan { entries: vec![entry(7, Op::Open, 0, 1, 0, 0)], ..Plan::default() };
    let mut out = Vec::new();
    let berth = moored.stages[0].step_on(Round(9), &plan, Input::Tokens(&[1]), &mut out).unwrap();
    assert_eq!((berth, out.len()), (None, plain.hidden()));
}

#[test]
fn stages_that_spare_give_the_rows_that_go_on_alone() {
    let (first, second, third) = (tokens(37, 70), tokens(38, 40), tokens(39, 5));
    let text = [&first[..], &second, &third].concat();
    let wants = [(1, 70, Want::Last), (2, 40, Want::None), (3, 5, Want::All)];
    let entries =
        wants.map(|(id, rows, want)| Entry { want, ..entry(id, Op::Open, 0, rows, 0, 0) });
    let chain = |spares: bool| {
        let stages = [0..1, 1..LAYERS].map(|range| {
            let mut stage = stage(cpu(), config(range));
            if spares {
                stage.spare();
            }
            Box::new(stage) as Box<dyn Engine>
        });
        let mut chain = Chain::new(stages.into());
        let rows = chain.run(entries.to_vec(), &text).unwrap();
        (rows, chain)
    };
    let ((all, whole), (found, spared)) = (chain(false), chain(true));
    same(&spared.boundaries[0], &whole.boundaries[0], "rows to the last stage");
    let hidden = whole.hidden();
    for (row, (found, all)) in found.chunks(hidden).zip(all.chunks(hidden)).enumerate() {
        let is_wanted = row == 69 || row >= 110;
        let expected = if is_wanted { all.to_vec() } else { vec![0.0; hidden] };
        same(found, &expected, &format!("row {row}"));
    }
    // A round that nobody wants a row of is done all the same.
    let entries = vec![Entry { want: Want::None, ..entry(1, Op::Continue, 70, 9, 70, 1) }];
    let mut spared = spared;
    let rows = spared.run(entries, &tokens(40, 9)).unwrap();
    same(&rows, &vec![0.0; 9 * hidden], "no row");
}

#[test]
fn of_members_that_spare_the_first_alone_gives_rows() {
    let text = tokens(41, 20);
    let plan = Plan { entries: vec![entry(1, Op::Open, 0, 20, 0, 0)], ..Plan::default() };
    let run = &|exchange: Local| {
        let (cpu, whole) = (cpu().clone(), config(0..LAYERS));
        let mut stage =
            Stage::open_share(cpu, tiny(), whole, Split::Shards, Box::new(exchange)).unwrap();
        stage.spare();
        stage.prepare(&SHAPES).unwrap();
        let mut rows = Vec::new();
        stage.step(&plan, Input::Tokens(&text), &mut rows).unwrap();
        rows
    };
    let rows: Vec<Vec<f32>> = std::thread::scope(|scope| {
        let members = local(2).into_iter().map(|exchange| scope.spawn(move || run(exchange)));
        let members: Vec<_> = members.collect();
        members.into_iter().map(|member| member.join().unwrap()).collect()
    });
    let mut alone = Kind::Cpu.chain(&[]);
    let all = alone.feed(1, &text, 20);
    let (zeros, wanted) = rows[0].split_at(19 * alone.hidden());
    same(wanted, &all[zeros.len()..], "the first member's");
    assert!(zeros.iter().chain(&rows[1]).all(|value| value.to_bits() == 0));
    assert_eq!(rows[1].len(), all.len());
}

#[test]
fn f32_keys_are_another_function() {
    let text = tokens(35, 20);
    let wide = StageConfig { kv: KvDtype::F32, ..config(0..LAYERS) };
    let mut chain = Chain::new(vec![Box::new(stage(cpu(), wide))]);
    let rows = chain.feed(1, &text, 20);
    assert_ne!(rows, Kind::Cpu.chain(&[]).feed(1, &text, 20));
    let close = |(a, b): (&f32, &f32)| (a - b).abs() < 0.05;
    assert!(rows.iter().zip(&Kind::Cpu.chain(&[]).feed(1, &text, 20)).all(close));
}

#[test]
fn a_spoilt_row_stays_with_its_own_stream() {
    let (first, second) = (entry(1, Op::Open, 0, 2, 0, 0), entry(2, Op::Open, 0, 2, 0, 0));
    let plan = Plan { entries: vec![first, second], ..Plan::default() };
    let good: Vec<f32> = (0..4 * 64).map(|i| (i % 7) as f32 - 3.0).collect();
    let mut bad = good.clone();
    bad[64 + 5] = f32::NAN;
    let run = |rows: &[f32]| {
        let mut stage = stage(cpu(), config(1..LAYERS));
        stage.prepare(&SHAPES).unwrap();
        let mut out = Vec::new();
        stage.step(&plan, Input::Rows(rows), &mut out).unwrap();
        out
    };
    let (good, bad) = (run(&good), run(&bad));
    assert!(is_spoilt(&bad[64..128]), "the row itself");
    same(&bad[..64], &good[..64], "the row before it");
    same(&bad[128..], &good[128..], "the other stream");
}

#[test]
fn a_range_outside_the_model_is_refused() {
    for (range, found) in [(0..4, "0..4"), (2..2, "2..2")] {
        let backend = Arc::new(Scalar::default());
        let error = Stage::open(backend, tiny(), config(range)).err().unwrap().to_string();
        assert_eq!(error, format!("OtherRange: expected layers inside 0..3, found {found}"));
    }
}

#[test]
fn shapes_that_hold_nothing_are_refused() {
    let mut stage = stage(&Arc::new(Scalar::default()), config(1..2));
    let error = stage.prepare(&Shapes { pages: 0, ..SHAPES }).unwrap_err().to_string();
    assert_eq!(error, "EmptyShape: pages: expected at least 1, found 0");
}

#[test]
fn need_adds_up_over_ranges() {
    let whole = need_bytes(tiny(), &config(0..LAYERS), &SHAPES).unwrap();
    let (a, b) = (config(0..1), config(1..LAYERS));
    let parts = [a, b].map(|config| need_bytes(tiny(), &config, &SHAPES).unwrap());
    assert_eq!(whole.weights_bytes, parts[0].weights_bytes + parts[1].weights_bytes);
    assert_eq!(whole.kv_bytes, parts[0].kv_bytes + parts[1].kv_bytes);
    // 3 layers, 24 pages of 64 keys, 2 heads of 16 values, keys and values, 2 bytes.
    assert_eq!(whole.kv_bytes, 3 * 24 * 64 * 2 * 16 * 2 * 2);
    assert!(parts[0].buffers_bytes > parts[1].buffers_bytes, "the logits are with the ends");
}

#[test]
fn states_are_needed_by_recurrent_layers_and_keys_by_the_others() {
    let need = |range| need_bytes(hybrid(), &config(range), &SHAPES).unwrap();
    let (recurrent, attention) = (need(0..1), need(1..2));
    assert_eq!((recurrent.kv_bytes, attention.state_bytes), (0, 0));
    // 24 pages of 64 keys, 2 heads of 32 values, keys and values, 2 bytes.
    assert_eq!(attention.kv_bytes, 24 * 64 * 2 * 32 * 2 * 2);
    // 4 slots: two states of 4 heads of 16 x 24 and 3 rows of 160 channels, 32 rows of those
    // channels and 4 pairs of gates.
    let state = 4 * 16 * 24 + 3 * 160;
    assert_eq!(recurrent.state_bytes, 4 * 4 * (2 * state + 32 * (160 + 8)));
    assert_eq!(need(0..LAYERS).state_bytes, 2 * recurrent.state_bytes);
}
