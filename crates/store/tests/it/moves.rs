//! Units that move: what is missing and nothing else, from whoever has it, over every link.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use baton_store::{Progress, Receiver, Shelf, push};
use weights::{Checkpoint, Stock};

use crate::machine::{Hop, Kept, Machine, Model, ROOM, access, same};

#[test]
fn a_machine_fetches_its_layers_once_and_of_a_moved_cut_the_missing_ones() {
    let (model, kept) = (Model::new(), Kept::of(ROOM));
    let source = Machine::with(&model);
    let first = kept.fetch(&model, 1..3, &[&source]).unwrap();
    let bytes = model.bytes(1..3);
    assert_eq!((first.all, first.missing, first.moved), (bytes, bytes, bytes));
    let path = kept.store.view(model.catalog()).unwrap();
    same(&model, &path, 1..3);
    let error = Checkpoint::open(&path).unwrap().check_held(0..3, true).unwrap_err().to_string();
    assert!(error.contains("tensor `blk.0.") && error.contains("is not in"), "{error}");

    let again = kept.fetch(&model, 1..3, &[]).unwrap();
    assert_eq!((again.all, again.missing, again.moved), (bytes, 0, 0));

    let moved = kept.fetch(&model, 0..2, &[&source]).unwrap();
    let texts = model.catalog().bytes_of(&[0]);
    assert_eq!(moved.missing, model.bytes(0..1) - texts, "layer 0 and the ends");
    assert_eq!(moved.moved, moved.missing);
    same(&model, &path, 0..3);
}

#[test]
fn a_store_serves_what_it_was_given_and_its_model_is_the_same_model() {
    let (model, first, second) = (Model::new(), Kept::of(ROOM), Kept::of(ROOM));
    first.fetch(&model, 0..4, &[&Machine::with(&model)]).unwrap();
    let stored = Machine::up(&Arc::new(Shelf::of(Some(first.store.clone()))), None);
    second.fetch(&model, 2..4, &[&stored]).unwrap();
    same(&model, &second.store.view(model.catalog()).unwrap(), 2..4);
    let view = first.store.view(model.catalog()).unwrap();
    let stock = Stock::of(&Checkpoint::open(&view).unwrap(), None).unwrap();
    assert_eq!(stock.catalog().id(), model.catalog().id());
    // What was checked when it came is not read again.
    let opened = Checkpoint::open(&view).unwrap();
    let names: Vec<&str> = opened.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
    let digests = weights::Digests::of(&opened, &names, None).unwrap();
    assert_eq!(&digests, opened.manifest().unwrap().digests());
    assert_eq!(opened.bytes_read().load(Ordering::Relaxed), 0);
}

#[test]
fn several_sources_share_the_work_and_one_that_lacks_units_or_dies_costs_none() {
    let model = Model::new();
    let part = Kept::of(ROOM);
    let whole = Machine::with(&model);
    part.fetch(&model, 1..2, &[&whole]).unwrap();
    let lacking = Machine::up(&Arc::new(Shelf::of(Some(part.store.clone()))), None);
    // Slow ones, so that all are at work; one dies after 3 MiB.
    let hops = [Hop::to(&whole, u64::MAX, 4_000), Hop::to(&whole, 3 << 20, 4_000)];
    let [steady, dying] = [0, 1].map(|at| whole.behind(&hops[at]));
    let kept = Kept::of(ROOM);
    let fetched = kept.fetch(&model, 0..4, &[&lacking, &steady, &dying]).unwrap();
    same(&model, &kept.store.view(model.catalog()).unwrap(), 0..4);
    for hop in &hops {
        let carried = hop.carried.load(Ordering::Relaxed);
        assert!(carried > 1 << 20, "a source gave {carried} bytes only");
    }
    // The end of the work is done twice where one waits for another.
    assert!(fetched.moved >= fetched.missing, "{fetched:?}");
}

#[test]
fn a_push_goes_through_all_addresses_of_a_machine_and_a_second_one_moves_nothing() {
    let (model, kept) = (Model::new(), Kept::of(ROOM));
    let receiver = Arc::new(Receiver::new(kept.store.clone()));
    let machine = Machine::up(&Arc::new(Shelf::of(Some(kept.store.clone()))), Some(receiver));
    let hops = [0, 1].map(|_| Hop::to(&machine, u64::MAX, 0));
    let asked = [0, 1].map(|at| hops[at].address.to_string());
    let (shelf, stop) = (model.shelf(), AtomicBool::new(false));
    let bytes = model.bytes(0..3);
    for (attempt, missing) in [bytes, 0].into_iter().enumerate() {
        let progress = Progress::default();
        let what = (model.catalog().id(), 0..3, true);
        let pushed = push(&shelf, what, (&asked, &access(7)), &progress, &stop).unwrap();
        same(&model, pushed.path.as_ref(), 0..3);
        let seen = progress.seen();
        assert_eq!((seen.all, seen.missing), (bytes, missing), "attempt {attempt}");
        assert!(seen.moved >= missing && (missing > 0 || seen.moved == 0), "{seen:?}");
    }
}

#[test]
fn a_folder_of_safetensors_is_pushed_with_its_texts() {
    let tiny = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/baton-tiny");
    let checkpoint = Checkpoint::open(&tiny).unwrap();
    let stock = Arc::new(Stock::of(&checkpoint, None).unwrap());
    let shelf = Arc::new(Shelf::of(None));
    shelf.add(stock.clone());
    let (source, kept) = (Machine::up(&shelf, None), Kept::of(ROOM));
    let (catalog, layers) = (stock.catalog(), checkpoint.config().layers());
    let wanted = catalog.wanted(0..layers, true).unwrap();
    let (progress, stop) = (Arc::<Progress>::default(), AtomicBool::new(false));
    let sources = [source.address.to_string()];
    let from = (&sources[..], &access(7));
    baton_store::fetch(&kept.store, catalog, &wanted, from, &progress, &stop).unwrap();
    let view = kept.store.view(catalog).unwrap();
    let opened = Checkpoint::open(&view).unwrap();
    opened.check_held(0..layers, true).unwrap();
    let names: Vec<&str> = checkpoint.tensors().iter().map(|t| t.name.as_str()).collect();
    let digests = weights::Digests::of(&checkpoint, &names, None).unwrap();
    for name in names {
        assert_eq!(Some(opened.digest(name).unwrap()), digests.get(name), "{name}");
    }
    for text in ["config.json", "tokenizer.json"] {
        let [ours, theirs] = [&*tiny, &view].map(|at| std::fs::read(at.join(text)).ok());
        assert_eq!(ours, theirs, "{text}");
    }
}
