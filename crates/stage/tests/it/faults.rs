//! Planted faults: each changes bytes or raises its named error.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use backend::scalar::Scalar;
use baton_stage::{Engine, Fault, Stage, StageError};

use crate::chain::{Chain, LAYERS, SHAPES, bits, config, cpu, fake, hybrid, say, stage, tokens};

/// A chain whose middle rank has `fault`, for both kinds of engine.
fn chains(fault: Option<Fault>) -> [Chain; 2] {
    let backend = Arc::new(Scalar::default());
    let ranges = [0..1, 1..2, 2..LAYERS];
    let fakes = ranges.clone().map(|range| -> Box<dyn Engine> {
        match fault {
            Some(fault) if range.start == 1 => Box::new(fake(range).with_fault(fault)),
            _ => Box::new(fake(range)),
        }
    });
    let stages = ranges.map(|range| -> Box<dyn Engine> {
        let mut stage = stage(&backend, config(range.clone()));
        if let Some(fault) = fault.filter(|_| range.start == 1) {
            stage.plant(fault);
        }
        Box::new(stage)
    });
    [Chain::new(fakes.into()), Chain::new(stages.into())]
}

/// A prompt, a window of which two of four rows stay, and what follows.
fn script(chain: &mut Chain) -> Result<Vec<u32>, StageError> {
    let text = tokens(21, 20);
    chain.round(&[say(1, 0, &text)])?;
    chain.round(&[say(1, 20, &text[..4])])?;
    let rows = chain.round(&[say(1, 2, &text[..3])])?;
    Ok(bits(&rows))
}

#[test]
fn a_missing_layer_or_a_state_not_rolled_back_changes_bytes() {
    let healthy = chains(None).map(|mut chain| script(&mut chain).unwrap());
    for fault in [Fault::SkipLayer(1), Fault::PositionOnly] {
        let faulty = chains(Some(fault)).map(|mut chain| script(&mut chain).unwrap());
        for (kind, (healthy, faulty)) in ["fake", "stage"].iter().zip(healthy.iter().zip(&faulty)) {
            assert_ne!(healthy, faulty, "{kind} with {fault:?}");
        }
    }
}

#[test]
fn a_position_moved_without_its_state_leaves_equal_tables() {
    // No name can catch it: only the bytes tell.
    for mut chain in chains(Some(Fault::PositionOnly)) {
        script(&mut chain).unwrap();
        assert_eq!(chain.stages[0].table(), chain.stages[1].table());
    }
}

#[test]
fn a_dropped_rollback_is_other_position() {
    for mut chain in chains(Some(Fault::DropRollback)) {
        let error = script(&mut chain).unwrap_err().to_string();
        assert_eq!(error, "OtherPosition: stream 1: expected 24, found 22");
    }
}

#[test]
fn a_dropped_generation_is_other_generation() {
    for mut chain in chains(Some(Fault::DropGeneration)) {
        let error = script(&mut chain).unwrap_err().to_string();
        assert_eq!(error, "OtherGeneration: stream 1: expected 0, found 1");
    }
}

/// A chain over [`hybrid`] whose rank of layer 2, a recurrent one, has `fault`.
fn hybrid_chain(fault: Option<Fault>) -> Chain {
    let stages = [0..1, 1..2, 2..LAYERS].map(|range| -> Box<dyn Engine> {
        let (last, config) = (range.start == 2, config(range));
        Box::new(match fault.filter(|_| last) {
            Some(fault) => Stage::open_faulty(cpu().clone(), hybrid(), config, fault).unwrap(),
            None => Stage::open(cpu().clone(), hybrid(), config).unwrap(),
        })
    });
    Chain::new(stages.into())
}

#[test]
fn a_recurrent_state_that_stays_changes_bytes() {
    let text = tokens(22, 40);
    let rows = |fault, accepted: u32| {
        let mut chain = hybrid_chain(fault);
        chain.feed(1, &text[..30], 30);
        chain.round(&[say(1, 30, &text[30..35])]).unwrap();
        let rows = chain.round(&[say(1, accepted, &text[35..])]).unwrap();
        bits(&rows)
    };
    for accepted in [0, 3] {
        assert_ne!(rows(Some(Fault::StateStays), accepted), rows(None, accepted), "{accepted}");
    }
    assert_eq!(rows(Some(Fault::StateStays), 5), rows(None, 5), "nothing to roll back");
}

/// Bytes behind a tree whose other path stays, with a fault in the rank of layer `at`.
fn behind_a_tree(fault: Option<Fault>, at: u32) -> (Vec<u32>, Vec<u32>) {
    let text = tokens(24, 40);
    let stages = [0..1, 1..2, 2..LAYERS].map(|range| -> Box<dyn Engine> {
        let fault = fault.filter(|_| range.start == at);
        let mut stage = Stage::open(cpu().clone(), hybrid(), config(range)).unwrap();
        fault.into_iter().for_each(|fault| stage.plant(fault));
        Box::new(stage)
    });
    let mut chain = Chain::new(stages.into());
    chain.feed(1, &text[..30], 30);
    let rows = chain.tree(1, 30, &text[30..34], &[0xffff, 0, 1, 0]).unwrap();
    let after = chain.round(&[say(1, 4, &text[34..])]).unwrap();
    (bits(&rows), bits(&after))
}

#[test]
fn a_sibling_that_is_seen_or_a_state_of_another_path_changes_bytes() {
    for at in 0..LAYERS.min(3) {
        let (rows, after) = behind_a_tree(None, at);
        let seen = behind_a_tree(Some(Fault::SiblingSeen), at);
        let stays = behind_a_tree(Some(Fault::StateStays), at);
        println!("layer {at}: sibling {}, state {}", seen.0 != rows, stays.1 != after);
        assert_eq!(stays.0, rows, "the tree itself is whole");
        assert!(seen.0 != rows || stays.1 != after, "layer {at}");
    }
}

#[test]
fn a_tail_that_misses_a_row_changes_bytes() {
    let text = tokens(23, 20);
    let whole = bits(&hybrid_chain(None).feed(1, &text, 20));
    let faulty = |chunk| bits(&hybrid_chain(Some(Fault::StaleTail)).feed(1, &text, chunk));
    assert_eq!(faulty(20), whole, "nobody reads the tail of the last window");
    assert_ne!(faulty(10), whole);
}

#[test]
fn a_device_that_fails_ends_the_round_by_name_and_the_rank_at_its_next_boot() {
    static FAILED: AtomicBool = AtomicBool::new(false);
    let backend = Arc::new(Scalar::failing(&FAILED));
    let stage: Box<dyn Engine> = Box::new(stage(&backend, config(0..LAYERS)));
    let mut chain = Chain::new(vec![stage]);
    chain.round(&[say(1, 0, &tokens(21, 20))]).unwrap();
    FAILED.store(true, Ordering::Release);
    let round = chain.round(&[say(1, 20, &tokens(21, 1))]).unwrap_err();
    let boot = || drop(chain.stages[0].prepare(&SHAPES));
    let boot = catch_unwind(AssertUnwindSafe(boot)).unwrap_err();
    let boot = boot.downcast_ref::<String>().unwrap();
    for failure in [&round.to_string(), boot] {
        assert!(failure.contains("one thread failed: a planted failure"), "{failure}");
    }
}
