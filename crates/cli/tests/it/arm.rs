//! The same bytes on 64-bit ARM, under emulation: `cargo xtask arm` builds the binary and names it
//! in `BATON_ARM`.

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use crate::model::{CACHE, TINY};
use crate::process::{Baton, baton, s};
use crate::ring::{ByHand, Server};
use crate::turn::Turn;

/// A start and a few rounds under emulation.
const READY: std::time::Duration = s(120);

/// The binary for ARM; else says past the harness's capture that `test` is skipped.
fn binary(test: &str) -> Option<PathBuf> {
    let path = std::env::var_os("BATON_ARM").filter(|path| !path.is_empty()).map(PathBuf::from);
    if path.is_none() {
        let line = format!("skipped: {test}: no binary for ARM; `cargo xtask arm` runs it\n");
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
    path
}

/// A command that runs it.
pub fn emulated() -> Command {
    let mut command = Command::new("qemu-aarch64");
    command.args(["-cpu", "max"]).arg(std::env::var_os("BATON_ARM").unwrap());
    command
}

/// The verdict of a check: a hash over tokens and logits.
fn hash(mut command: Command) -> String {
    command.arg("check").arg(&*TINY).args(["--layouts", "1;3", "--threads", "2", "--chunks", "7"]);
    command.args(["--streams", "2", "--depths", "1", "--prompt", "30", "--tokens", "4"]);
    command.env("BATON_CACHE", &*CACHE);
    let mut check = Baton::spawn(command);
    let status = check.exit(s(300));
    let said = check.out.to_end(s(5));
    assert_eq!(status.code(), Some(0), "{said}\n{}", check.log.text());
    said.lines().last().unwrap().to_owned()
}

#[test]
fn a_check_on_arm_gives_the_hash_of_this_machine() {
    if binary("a_check_on_arm_gives_the_hash_of_this_machine").is_none() {
        return;
    }
    let _turn = Turn::shared();
    let (here, there) = (hash(baton()), hash(emulated()));
    assert!(here.starts_with("one hash: "), "{here}");
    assert_eq!(here, there);
}

#[test]
fn rings_of_arm_and_of_both_give_one_reply() {
    if binary("rings_of_arm_and_of_both_give_one_reply").is_none() {
        return;
    }
    let _turn = Turn::shared();
    let alone = Server::ready(&TINY, &[]).sample();
    for (name, layout, ranks) in [
        ("arm-last", "0:3,3:8", &[1][..]),
        ("arm-first", "0:3,3:8", &[0]),
        ("arm-all", "0:3,3:6,6:8", &[0, 1, 2]),
    ] {
        let ring = ByHand { emulated: ranks.into(), ..ByHand::new(name, &TINY, layout) };
        let _stages: Vec<Baton> = (1..ring.addresses.len()).map(|rank| ring.stage(rank)).collect();
        let server = ring.serve();
        server.wait_ready(READY);
        assert_eq!(server.sample(), alone, "{name}");
    }
}
