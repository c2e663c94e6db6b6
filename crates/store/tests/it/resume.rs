//! What came stays.

use std::time::{Duration, Instant};

use baton_store::StoreError;

use crate::machine::{Hop, Kept, Machine, Model, ROOM, same};

#[test]
fn a_fetch_that_was_cut_off_at_half_goes_on_there_in_another_process() {
    let (model, kept) = (Model::new(), Kept::of(ROOM));
    let source = Machine::with(&model);
    let bytes = model.bytes(0..4);
    let started = Instant::now();
    let hop = Hop::to(&source, bytes / 2, 0);
    let error = kept.fetch(&model, 0..4, &[&source.behind(&hop)]).unwrap_err();
    assert!(matches!(&*error, StoreError::NoSource { .. }), "{error}");
    assert!(error.to_string().contains("it closed the link"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(30));
    // Another process opens the store; a list of chunks was cut in the middle of a number.
    let Kept { folder, store } = kept;
    drop(store);
    for entry in std::fs::read_dir(folder.path().join("parts")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "chunks") {
            let mut list = std::fs::read(&path).unwrap();
            list.push(0);
            std::fs::write(&path, list).unwrap();
        }
    }
    let store = std::sync::Arc::new(baton_store::Store::open(folder.path(), ROOM).unwrap());
    let kept = Kept { folder, store };
    let fetched = kept.fetch(&model, 0..4, &[&source]).unwrap();
    // The half that came, but for the chunk that was cut.
    let most = bytes / 2 + (2 << 20);
    assert!(fetched.moved > bytes / 4 && fetched.moved < most, "{fetched:?} of {bytes}");
    same(&model, &kept.store.view(model.catalog()).unwrap(), 0..4);
}

#[test]
fn a_store_has_one_writer_and_reading_processes_see_whole_units_only() {
    let (model, kept) = (Model::new(), Kept::of(ROOM));
    let error = baton_store::Store::open(kept.folder.path(), ROOM).unwrap_err();
    assert!(matches!(error, StoreError::Busy { .. }), "{error}");
    let source = Machine::with(&model);
    kept.fetch(&model, 1..2, &[&source]).unwrap();
    let path = kept.store.view(model.catalog()).unwrap();
    let hop = Hop::to(&source, 5 << 20, 0);
    kept.fetch(&model, 1..4, &[&source.behind(&hop)]).unwrap_err();
    let opened = weights::Checkpoint::open(&path).unwrap();
    opened.check_held(1..2, false).unwrap();
    assert!(opened.check_held(1..4, false).is_err());
}
