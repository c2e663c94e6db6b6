//! What every engine keeps, with or without a model.

use arith::base::StreamId;
use wire::plan::Op;

use crate::chain::{Chain, KINDS, Kind, LAYERS, same, say, tokens};

#[test]
fn any_cut_equals_one_stage() {
    let text = tokens(1, 70);
    for kind in KINDS {
        let whole = kind.chain(&[]).feed(1, &text, 70);
        for cuts in [vec![1], vec![2], vec![1, 2]] {
            let cut = kind.chain(&cuts).feed(1, &text, 70);
            same(&cut, &whole, &format!("{kind:?} cut at {cuts:?}"));
        }
    }
}

#[test]
fn any_chunk_equals_one_chunk() {
    let text = tokens(2, 130);
    for kind in KINDS {
        let whole = kind.chain(&[]).feed(1, &text, 130);
        for chunk in [1, 7, 64] {
            let rows = kind.chain(&[1]).feed(1, &text, chunk);
            same(&rows, &whole, &format!("{kind:?} in chunks of {chunk}"));
        }
    }
}

#[test]
fn a_stream_in_company_equals_the_same_stream_alone() {
    let (a, b) = (tokens(3, 66), tokens(4, 40));
    for kind in KINDS {
        let alone = [kind.chain(&[]).feed(1, &a, 66), kind.chain(&[]).feed(2, &b, 40)];
        let mut chain = kind.chain(&[2]);
        let width = chain.hidden();
        let mut together = [Vec::new(), Vec::new()];
        for (a, b) in a.chunks(11).zip(b.chunks(7)) {
            let last = if together[0].is_empty() { (0, 0) } else { (11, 7) };
            let rows = chain.round(&[say(1, last.0, a), say(2, last.1, b)]).unwrap();
            together[0].extend(&rows[..a.len() * width]);
            together[1].extend(&rows[a.len() * width..]);
        }
        same(&together[0], &alone[0], &format!("{kind:?} first stream"));
        same(&together[1], &alone[1][..together[1].len()], &format!("{kind:?} second stream"));
    }
}

#[test]
fn a_window_rolled_back_equals_a_fresh_run() {
    let (text, tail) = (tokens(5, 60), tokens(6, 9));
    for kind in KINDS {
        for kept in [0, 1, 5, 8] {
            let mut chain = kind.chain(&[1]);
            chain.feed(1, &text, 60);
            // Eight drafts over a page's edge, of which `kept` are what the stream really says.
            let mut drafts = tail[..8].to_vec();
            drafts[kept..].iter_mut().for_each(|token| *token = 63 - *token);
            chain.round(&[say(1, 60, &drafts)]).unwrap();
            let rows = chain.round(&[say(1, kept as u32, &tail[kept..])]).unwrap();

            let whole = [&text[..], &tail].concat();
            let fresh = kind.chain(&[]).feed(1, &whole, 69);
            let expected = &fresh[(60 + kept) * chain.hidden()..];
            same(&rows, expected, &format!("{kind:?} with {kept} accepted"));
        }
    }
}

/// A known token, two drafts behind it, and three others that part from the first of them.
const PARENTS: [u16; 6] = [0xffff, 0, 1, 1, 3, 4];
/// The rows of its paths.
const PATHS: [&[usize]; 2] = [&[0, 1, 2], &[0, 1, 3, 4, 5]];

#[test]
fn a_tree_window_s_rows_are_its_paths_rows_and_any_of_them_may_stay() {
    let (text, tail) = (tokens(5, 61), tokens(14, 4));
    let tree = tokens(15, 6);
    for kind in KINDS {
        let width = kind.chain(&[]).hidden();
        // Over a page's edge.
        let fresh = |own: &[u32]| {
            let whole = [&text[..], own].concat();
            kind.chain(&[]).feed(1, &whole, 66)[61 * width..].to_vec()
        };
        for accepted in [0, 2, 3, 5] {
            let mut chain = kind.chain(&[1]);
            chain.feed(1, &text, 61);
            let rows = chain.tree(1, 61, &tree, &PARENTS).unwrap();
            for path in PATHS.iter().filter(|_| accepted == 0) {
                let own: Vec<u32> = path.iter().map(|row| tree[*row]).collect();
                for (row, expected) in path.iter().zip(fresh(&own).chunks(width)) {
                    same(&rows[row * width..][..width], expected, &format!("{kind:?} row {row}"));
                }
            }
            let path = PATHS[usize::from(accepted > 3)].iter();
            let kept = path.take_while(|row| **row < accepted as usize);
            let mut own: Vec<u32> = kept.map(|row| tree[*row]).collect();
            let known = own.len();
            own.extend(&tail);
            let rows = chain.round(&[say(1, accepted, &tail)]).unwrap();
            same(&rows, &fresh(&own)[known * width..], &format!("{kind:?}, {accepted} accepted"));
            let tables: Vec<_> = chain.stages.iter().map(|stage| stage.table()).collect();
            assert_eq!(tables[0], tables[1]);
        }
    }
}

#[test]
fn a_settle_alone_rolls_back_too() {
    let text = tokens(7, 20);
    for kind in KINDS {
        let mut chain = kind.chain(&[2]);
        chain.feed(1, &text[..10], 10);
        chain.round(&[say(1, 4, &[])]).unwrap();
        let rows = chain.round(&[say(1, 0, &text[4..])]).unwrap();
        let fresh = kind.chain(&[]).feed(1, &text, 20);
        same(&rows, &fresh[4 * chain.hidden()..], &format!("{kind:?}"));
    }
}

#[test]
fn a_skipped_stream_computes_zeros_until_it_is_over_and_disturbs_nobody() {
    let (a, b) = (tokens(8, 30), tokens(9, 30));
    for kind in KINDS {
        let mut chain = kind.chain(&[1]);
        let width = chain.hidden();
        chain.round(&[say(1, 0, &a[..10]), say(2, 0, &b[..10])]).unwrap();
        chain.stages.iter_mut().for_each(|stage| stage.skip(StreamId(1)));
        let rows = chain.round(&[say(1, 10, &a[10..20]), say(2, 10, &b[10..20])]).unwrap();
        assert!(rows[..10 * width].iter().all(|x| *x == 0.0), "{kind:?}: skipped rows");
        let alone = kind.chain(&[]).feed(2, &b, 30);
        same(&rows[10 * width..], &alone[10 * width..20 * width], &format!("{kind:?} beside"));

        chain.round(&[say(1, 3, &a[13..20]), say(2, 10, &b[20..])]).unwrap();
        chain.close(1, Op::Cancel).unwrap();
        let again = chain.round(&[say(1, 0, &a)]).unwrap();
        same(&again, &kind.chain(&[]).feed(1, &a, 30), &format!("{kind:?} id used again"));
    }
}

#[test]
fn a_reset_or_prepared_engine_has_forgotten_every_stream() {
    let text = tokens(10, 90);
    for kind in KINDS {
        let fresh = kind.chain(&[]).feed(1, &text, 90);
        let mut used = kind.chain(&[1]);
        used.feed(1, &tokens(11, 100), 100);
        used.stages.iter_mut().for_each(|stage| stage.reset());
        assert!(used.stages.iter().all(|stage| stage.table().is_empty()), "{kind:?}");
        let mut used = Chain::new(used.stages);
        same(&used.feed(1, &text, 64), &fresh, &format!("{kind:?}"));
    }
}

#[test]
fn logits_of_many_rows_equal_those_of_each_row() {
    for kind in KINDS {
        let mut chain = kind.chain(&[1]);
        let rows = chain.feed(1, &tokens(12, 70), 70);
        let many = chain.logits(&rows);
        let one: Vec<f32> = rows.chunks(chain.hidden()).flat_map(|row| chain.logits(row)).collect();
        same(&many, &one, &format!("{kind:?}"));
        assert_eq!(many.len(), 70 * chain.stages[0].vocab());
        assert_eq!(chain.stages[1].vocab(), 0, "{kind:?}: no head there");
    }
}

#[test]
fn tables_agree_on_every_rank_after_every_round() {
    for kind in KINDS {
        let mut chain = kind.chain(&[1, 2]);
        chain.feed(3, &tokens(13, 100), 40);
        chain.round(&[say(3, 5, &[1]), say(4, 0, &[2, 3])]).unwrap();
        let table = chain.stages[0].table();
        assert_eq!(table.len(), 2);
        assert_eq!((table[0].first, table[0].generation.0, table[0].pages), (85, 4, 2));
        assert!(chain.stages.iter().all(|stage| stage.table() == table), "{kind:?}");
        chain.close(3, Op::Close).unwrap();
        assert_eq!(chain.stages[2].table().len(), 1);
    }
}

#[test]
fn a_refused_round_leaves_the_stage_usable() {
    let text = tokens(14, 20);
    for kind in KINDS {
        let mut chain = kind.chain(&[1]);
        let first = chain.round(&[say(1, 0, &text[..10])]).unwrap();
        let wrong = crate::chain::entry(1, Op::Continue, 9, 10, 10, 1);
        let error = chain.run(vec![wrong], &text[10..]).unwrap_err().to_string();
        assert_eq!(error, "OtherPosition: stream 1: expected 10, found 9");
        let error = chain.run(Vec::new(), &[1]).unwrap_err().to_string();
        assert_eq!(error, "OtherShape: tokens of a round: at most 0, found 1");
        let good = crate::chain::entry(1, Op::Continue, 10, 1, 10, 1);
        let error = chain.run(vec![good], &[9_999]).unwrap_err().to_string();
        assert!(error.starts_with("OtherShape: token id: at most"), "{error}");
        let second = chain.round(&[say(1, 10, &text[10..])]).unwrap();
        let whole = kind.chain(&[]).feed(1, &text, 20);
        same(&[first, second].concat(), &whole, &format!("{kind:?}"));
    }
}

#[test]
fn an_engine_that_is_not_prepared_takes_no_rows() {
    for kind in KINDS {
        let mut engine = kind.engine(0..LAYERS);
        let plan = wire::plan::Plan {
            entries: vec![crate::chain::entry(1, Op::Open, 0, 1, 0, 0)],
            ..Default::default()
        };
        let error = engine.step(&plan, baton_stage::Input::Tokens(&[1]), &mut Vec::new());
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with("OtherShape: rows of a round: at most 0"), "{error}");
    }
}

#[test]
fn the_fake_argmax_is_unique() {
    let mut chain = Kind::Fake.chain(&[]);
    let rows = chain.feed(1, &tokens(15, 500), 500);
    let logits = chain.logits(&rows);
    let mut seen = std::collections::BTreeSet::new();
    for logits in logits.chunks(64) {
        let best = logits.iter().copied().fold(f32::MIN, f32::max);
        assert_eq!(logits.iter().filter(|x| **x == best).count(), 1);
        seen.insert(logits.iter().position(|x| *x == best));
    }
    assert!(seen.len() > 48, "{} tokens of 64 ever win", seen.len());
}

#[test]
fn a_stream_resumed_from_a_keep_equals_one_that_goes_on() {
    let text = tokens(16, 140);
    for kind in KINDS {
        let whole = kind.chain(&[]).feed(1, &text, 140);
        let mut chain = kind.chain(&[1]);
        let width = chain.hidden();
        // Kept inside a page, at its end and after a rollback, while the stream goes on.
        chain.feed(1, &text[..40], 40);
        chain.saving(&[say(1, 40, &text[40..64])], &[(1, 1)]).unwrap();
        chain.saving(&[say(1, 24, &[1, 2, 3, 4])], &[(2, 1)]).unwrap();
        chain.saving(&[say(1, 0, &[text[64], text[65], 9])], &[]).unwrap();
        let on = chain.saving(&[say(1, 2, &text[66..])], &[(3, 1)]).unwrap();
        same(&on, &whole[66 * width..], &format!("{kind:?}: the stream itself"));
        chain.close(1, Op::Close).unwrap();
        for (id, key, first) in [(5, 1, 40), (6, 2, 64), (7, 3, 66)] {
            let rows = chain.resume(id, key, &text[first..first + 30]).unwrap();
            let expected = &whole[first * width..(first + 30) * width];
            same(&rows, expected, &format!("{kind:?}: resumed at {first}"));
        }
        // Twice from one keep, after the first has written where the keep ends.
        let rows = chain.resume(8, 1, &text[40..]).unwrap();
        same(&rows, &whole[40 * width..], &format!("{kind:?}: resumed again"));
        assert!(chain.stages.iter().all(|stage| stage.held() == [true]), "{kind:?}");
        chain.drop_keep(1).unwrap();
        chain.close(8, Op::Close).unwrap();
        let error = chain.resume(9, 2, &[]).and_then(|_| chain.drop_keep(1)).unwrap_err();
        assert_eq!(error.to_string(), "NoSuchKeep: 0x1", "{kind:?}");
    }
}

#[test]
fn a_skipped_stream_is_not_kept() {
    for kind in KINDS {
        let mut chain = kind.chain(&[1]);
        chain.feed(1, &tokens(17, 10), 10);
        chain.stages[1].skip(StreamId(1));
        chain.saving(&[say(1, 10, &[])], &[(4, 1)]).unwrap();
        let held: Vec<_> = chain.stages.iter().map(|stage| stage.held().to_vec()).collect();
        assert_eq!(held, [[true], [false]], "{kind:?}");
        chain.close(1, Op::Cancel).unwrap();
        let error = chain.resume(2, 4, &[1]).unwrap_err().to_string();
        assert_eq!(error, "NoSuchKeep: 0x4", "{kind:?}: rank 1 does not hold it");
    }
}

#[test]
fn a_long_window_settles_whole_or_not_at_all() {
    let text = tokens(18, 60);
    for kind in KINDS {
        let mut chain = kind.chain(&[1]);
        chain.feed(1, &text, 60);
        let wrong = crate::chain::entry(1, Op::Continue, 59, 1, 59, 1);
        let error = chain.run(vec![wrong], &[1]).unwrap_err().to_string();
        let expected = "LongWindow: stream 1: all or none of 60 rows, or at most 32 rows, \
            found 59 accepted";
        assert_eq!(error, expected, "{kind:?}");
        let rows = chain.round(&[say(1, 0, &text)]).unwrap();
        same(&rows, &kind.chain(&[]).feed(1, &text, 60), &format!("{kind:?}: none accepted"));
    }
}
