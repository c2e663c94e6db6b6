//! Limits of a store, reached.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use baton_store::message::{Kind, Offer};
use baton_store::{Link, Progress, Receiver, Shelf, Store, StoreError, fetch};
use weights::{Catalog, Checkpoint, unit};

use crate::machine::{Kept, Machine, Model, ROOM, access, same};

/// Makes a unit one that was used long ago.
fn age(kept: &Kept, model: &Model, layer: u32, seconds: u64) {
    let unit = &model.catalog().units()[model.wanted(layer..layer + 1)[1]];
    let at = unit::path(&kept.folder.path().join("units"), &unit.digest());
    let record = std::fs::File::options().write(true).open(unit::record_path(&at)).unwrap();
    record.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
}

fn layers(kept: &Kept, model: &Model) -> Vec<u32> {
    let has = |layer: &u32| {
        let unit = model.wanted(*layer..*layer + 1)[1];
        kept.store.has(&model.catalog().units()[unit].digest())
    };
    (1..4).filter(has).collect()
}

#[test]
fn a_full_store_lets_go_of_what_was_used_longest_ago_and_of_nothing_in_use() {
    let model = Model::new();
    let source = Machine::with(&model);
    // Room for texts and two layers, and not a byte more.
    let kept = Kept::of(model.bytes(1..3));
    kept.fetch(&model, 1..3, &[&source]).unwrap();
    age(&kept, &model, 1, 100);
    age(&kept, &model, 2, 200);
    kept.fetch(&model, 3..4, &[&source]).unwrap();
    assert_eq!(layers(&kept, &model), [1, 3]);
    let usage = kept.store.usage().unwrap();
    assert_eq!((usage.unit_bytes, usage.parts), (model.bytes(1..3), 0));

    // A model that is open keeps its units, also in other processes: layer 1 is older.
    age(&kept, &model, 1, 300);
    let open = Checkpoint::open(&kept.store.view(model.catalog()).unwrap()).unwrap();
    let error = kept.fetch(&model, 2..3, &[&source]).unwrap_err();
    let StoreError::Full { needed, used, limit } = *error else { panic!("{error}") };
    assert_eq!(needed + model.bytes(1..3), used + needed);
    assert_eq!(limit, model.bytes(1..3));
    drop(open);

    let held = kept.store.hold(model.catalog(), &model.wanted(1..2));
    kept.fetch(&model, 2..3, &[&source]).unwrap();
    assert_eq!(layers(&kept, &model), [1, 2], "1 is older and held");
    drop(held);
    age(&kept, &model, 1, 300);
    kept.fetch(&model, 3..4, &[&source]).unwrap();
    assert_eq!(layers(&kept, &model), [2, 3]);
    same(&model, &kept.store.view(model.catalog()).unwrap(), 2..4);
    // One byte too few for what is wanted at once.
    let small = Kept::of(model.bytes(1..3) - 1);
    let error = small.fetch(&model, 1..3, &[&source]).unwrap_err();
    assert!(error.to_string().contains("the store is full"), "{error}");
}

#[test]
fn parts_that_nobody_waits_for_go_before_units() {
    let model = Model::new();
    let source = Machine::with(&model);
    let kept = Kept::of(model.bytes(1..3));
    kept.fetch(&model, 1..2, &[&source]).unwrap();
    let parts = kept.folder.path().join("parts");
    let left = parts.join("a".repeat(64));
    std::fs::File::create(&left).unwrap().set_len(model.bytes(1..2)).unwrap();
    kept.fetch(&model, 2..3, &[&source]).unwrap();
    assert!(!left.exists());
    assert_eq!(layers(&kept, &model), [1, 2]);
}

#[test]
fn as_many_addresses_as_may_be_are_tried_and_one_more_is_refused() {
    let (model, kept) = (Model::new(), Kept::of(ROOM));
    let source = Machine::with(&model).address.to_string();
    let (progress, stop) = (Arc::<Progress>::default(), AtomicBool::new(true));
    let ask = |count: usize| {
        let sources = vec![source.clone(); count];
        let from = (&sources[..], &access(7));
        let wanted = model.wanted(1..2);
        fetch(&kept.store, model.catalog(), &wanted, from, &progress, &stop).unwrap_err()
    };
    assert!(matches!(&*ask(64), StoreError::Stopped));
    assert!(matches!(&*ask(65), StoreError::Limit { limit: 64, found: 65, .. }));
}

#[test]
fn catalogs_that_cannot_be_are_refused_by_name() {
    let model = Model::new();
    let text = model.catalog().to_json();
    assert_eq!(Catalog::parse(text.as_bytes()).unwrap(), **model.catalog());
    let head = model.catalog().files()[0].head;
    let changes = [
        ("\"version\":1", "\"version\":2".to_owned(), "version"),
        ("model.gguf", "../model.gguf".to_owned(), "plain name"),
        ("model.gguf", "baton.catalog.json".to_owned(), "plain name"),
        ("\"runs\":[[0,0,", "\"runs\":[[1,0,".to_owned(), "expected its head"),
        ("{\"layer\":1}", "{\"layer\":0}".to_owned(), "layer 0 occurs twice"),
        ("\"folder\"", "\"folders\"".to_owned(), "unknown field"),
        ("\"sha256\":\"", "\"sha256\":\"0".to_owned(), "64 hexadecimal"),
    ];
    for (from, to, says) in changes {
        let changed = text.replace(from, &to);
        assert_ne!(changed, text, "{from}");
        let error = Catalog::parse(changed.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(says), "{to}: {error}");
    }
    let bytes = std::fs::metadata(&model.path).unwrap().len();
    let past = text.replace(&format!("\"bytes\":{bytes}"), &format!("\"bytes\":{}", bytes - 1));
    let error = Catalog::parse(past.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("of file 0 of"), "{error}");
    let none = text.replace(&format!("\"head\":{head}"), "\"head\":0");
    assert!(Catalog::parse(none.as_bytes()).is_err());
    let huge = vec![b' '; weights::catalog::BYTES_MAX + 1];
    let error = Catalog::parse(&huge).unwrap_err().to_string();
    assert!(error.contains("above the limit"), "{error}");
}

#[test]
fn more_models_than_may_have_a_folder_let_go_of_the_first() {
    let (model, kept) = (Model::new(), Kept::of(ROOM));
    let models = kept.folder.path().join("models");
    for at in 0..64 {
        std::fs::create_dir(models.join(format!("{at:064}"))).unwrap();
    }
    std::thread::sleep(Duration::from_millis(5));
    kept.fetch(&model, 1..2, &[&Machine::with(&model)]).unwrap();
    kept.store.view(model.catalog()).unwrap();
    assert_eq!(std::fs::read_dir(&models).unwrap().count(), 64);
    assert!(!models.join(format!("{:064}", 0)).exists());
    assert!(Store::open(kept.folder.path(), ROOM).is_err());
}

#[test]
fn as_many_models_as_may_come_at_once_do_and_one_more_is_refused() {
    let (model, kept) = (Model::new(), Kept::of(ROOM));
    let receiver = Arc::new(Receiver::new(kept.store.clone()));
    let machine = Machine::up(&model.shelf(), Some(receiver.clone()));
    let ranges = (0..4).flat_map(|first| (first + 1..5).map(move |end| (first, end)));
    let offers: Vec<Offer> = ranges
        .flat_map(|layers| {
            [true, false].map(|ends| Offer { id: model.catalog().id(), layers, ends })
        })
        .collect();
    let mut links = Vec::new();
    let mut payload = Vec::new();
    for (at, offer) in offers.iter().take(17).enumerate() {
        let mut link = Link::connect(&machine.address.to_string(), &access(7)).unwrap();
        link.send(Kind::Offer, &offer.encode()).unwrap();
        let kind = link.receive(&mut payload).unwrap();
        assert_eq!(kind, if at < 16 { Kind::Total } else { Kind::Done }, "offer {at}");
        links.push(link);
    }
    let said = String::from_utf8_lossy(&payload).into_owned();
    assert!(said.contains("models that come at once: expected at most 16, found 17"), "{said}");
    assert_eq!(receiver.coming().len(), 16);
}

#[test]
fn a_shelf_has_room_for_so_many_models_and_the_first_goes() {
    let (first, other) = (Model::new(), Model::of(6));
    let shelf = Shelf::of(None);
    shelf.add(first.stock.clone());
    let unit = first.catalog().units().last().unwrap().digest();
    (0..255).for_each(|_| shelf.add(other.stock.clone()));
    assert!(shelf.has(&unit));
    shelf.add(other.stock.clone());
    assert!(!shelf.has(&unit) && shelf.catalog(&first.catalog().id()).is_none());
}
