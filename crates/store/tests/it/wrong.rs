//! Units that are not what their address says.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use baton_store::{Shelf, StoreError};
use weights::{Checkpoint, unit};

use crate::machine::{Kept, Machine, Model, ROOM, same};

/// Turns a bit of the file at `path`.
fn damage(path: &Path, at: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 4], at).unwrap();
}

#[test]
fn a_damaged_unit_is_found_before_it_is_used_and_alone_comes_again() {
    let (model, kept) = (Model::new(), Kept::of(ROOM));
    let source = Machine::with(&model);
    kept.fetch(&model, 0..4, &[&source]).unwrap();
    let path = kept.store.view(model.catalog()).unwrap();
    let number = model.wanted(0..4).len() - 2;
    let unit = &model.catalog().units()[number];
    damage(&unit::path(&kept.folder.path().join("units"), &unit.digest()), 1 << 20);
    // Whoever opens the model without the store's help reads what is there, and tells the digest
    // that it has.
    let opened = Checkpoint::open(&path).unwrap();
    let name =
        |piece: &weights::catalog::Piece| opened.digest(&piece.name).unwrap() != piece.sha256;
    assert_eq!(unit.pieces.iter().filter(|piece| name(piece)).count(), 1);
    let names: Vec<&str> = unit.pieces.iter().map(|piece| piece.name.as_str()).collect();
    let digests = weights::Digests::of(&opened, &names, None).unwrap();
    assert_ne!(digests.over(names).unwrap(), unit.digest());
    drop(opened);
    let fetched = kept.fetch(&model, 0..4, &[&source]).unwrap();
    assert_eq!((fetched.missing, fetched.moved), (unit.bytes(), unit.bytes()));
    same(&model, &path, 0..4);
}

#[test]
fn a_unit_that_was_only_touched_is_read_again_and_stays() {
    let (model, kept) = (Model::new(), Kept::of(ROOM));
    kept.fetch(&model, 1..2, &[&Machine::with(&model)]).unwrap();
    let unit = &model.catalog().units()[model.wanted(1..2)[1]];
    let path = unit::path(&kept.folder.path().join("units"), &unit.digest());
    File::options().write(true).open(path).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    assert!(!kept.store.has(&unit.digest()));
    assert_eq!(kept.fetch(&model, 1..2, &[]).unwrap().missing, 0);
    assert!(kept.store.has(&unit.digest()));
}

#[test]
fn a_damaged_file_at_the_source_is_named_and_another_source_mends_it() {
    let (model, kept) = (Model::new(), Kept::of(ROOM));
    let good = Model::new();
    let bytes = std::fs::metadata(&model.path).unwrap().len();
    // In the last layer, after its digests were taken.
    damage(&model.path, bytes - (1 << 20));
    let bad = Machine::with(&model);
    let error = kept.fetch(&model, 0..4, &[&bad]).unwrap_err();
    let StoreError::Wrong { part, piece, times, peers } = &*error else { panic!("{error}") };
    assert_eq!((part.as_str(), *times), ("layer 3", 3), "{error}");
    assert!(piece.starts_with("blk.3.") && *peers == bad.address.to_string(), "{error}");
    assert!(Checkpoint::open(&model.path).is_ok());
    // All but that piece is there already.
    let fetched = kept.fetch(&good, 0..4, &[&Machine::with(&good)]).unwrap();
    assert!(fetched.moved < 8 << 20, "{fetched:?}");
    same(&good, &kept.store.view(good.catalog()).unwrap(), 0..4);
}

#[test]
fn what_a_killed_process_left_of_a_unit_is_checked_as_what_came() {
    let (model, kept) = (Model::new(), Kept::of(ROOM));
    let number = model.wanted(1..2)[1];
    let unit = &model.catalog().units()[number];
    let part = unit::path(&kept.folder.path().join("parts"), &unit.digest());
    // All of it is said to be there, and zeros are.
    File::create(&part).unwrap().set_len(unit.bytes()).unwrap();
    let chunks = unit.bytes().div_ceil(1 << 20) as u32;
    let list: Vec<u8> = (0..chunks).flat_map(u32::to_le_bytes).collect();
    std::fs::write(part.with_extension("chunks"), list).unwrap();
    let fetched = kept.fetch(&model, 1..2, &[&Machine::with(&model)]).unwrap();
    assert!(fetched.moved >= unit.bytes(), "{fetched:?}");
    same(&model, &kept.store.view(model.catalog()).unwrap(), 1..2);
    // And a unit that came without a record, before a loss of power, is checked too.
    let at = unit::path(&kept.folder.path().join("units"), &unit.digest());
    std::fs::remove_file(unit::record_path(&at)).unwrap();
    assert_eq!(kept.fetch(&model, 1..2, &[]).unwrap().missing, 0);
    let shelf = Shelf::of(Some(kept.store.clone()));
    assert!(Arc::new(shelf).has(&unit.digest()));
}
