//! Machines that run out of something: a full disk, no memory, a clock that jumps.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::json;

use crate::model::{LAYERS, TINY, scratch};
use crate::process::{Baton, baton, s, send_signal, wait_for};
use crate::rig::{Client, Phase, Rig, prompt};
use crate::ring::{ByHand, free_addresses};
use crate::turn::Turn;
use crate::{http, ring::Server};

/// Says past the harness's capture that something is not here.
fn skipped(what: &str) {
    let line = format!("skipped: {what}\n");
    let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
}

/// A file system of 64 KiB, full; it ends with it.
struct FullDisk(PathBuf);

impl FullDisk {
    fn mount(name: &str) -> Option<Self> {
        let path = scratch(name);
        let _ = Command::new("umount").arg(&path).stderr(Stdio::null()).status();
        std::fs::create_dir_all(&path).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]).arg(&path);
        let mounted = mount.stderr(Stdio::null()).status().is_ok_and(|status| status.success());
        if !mounted {
            return None;
        }
        let disk = Self(path);
        let filled = std::fs::write(disk.0.join("full"), vec![0; 1 << 20]);
        assert_eq!(filled.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
        Some(disk)
    }
}

impl Drop for FullDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// A server of three ranks whose log and cache are on the disk.
fn on_disk(disk: &Path) -> Server {
    let addr = free_addresses(1)[0];
    let mut command = Command::new("sh");
    // The harness keeps standard error; the server's goes to the disk.
    command.args(["-c", "exec \"$0\" \"$@\" 2>\"$DISK_LOG\""]).arg(baton().get_program());
    command.args(["--log", "debug", "serve", TINY.to_str().unwrap(), "--world", "3"]);
    command.args(["--threads", "1", "--continue-s", "0", "--port", &addr.port().to_string()]);
    command.env("BATON_CACHE", disk.join("cache")).env("DISK_LOG", disk.join("log"));
    let server = Server { process: Baton::spawn(command), addr };
    let up = wait_for(s(60), || {
        matches!(http::try_call(addr, "GET", "/ready", ""), Ok((200, _))).then_some(())
    });
    assert!(up.is_some(), "not ready on a full disk: {}", server.process.log.text());
    server
}

/// The process of a local rank, found without a log.
fn child_of(server: u32) -> i32 {
    let tasks = std::fs::read_dir(format!("/proc/{server}/task")).unwrap().flatten();
    let lists = tasks.filter_map(|t| std::fs::read_to_string(t.path().join("children")).ok());
    let children: Vec<i32> = lists
        .flat_map(|l| l.split(' ').filter_map(|p| p.parse().ok()).collect::<Vec<_>>())
        .collect();
    *children.first().unwrap()
}

#[test]
fn a_full_disk_under_log_and_cache_changes_nothing() {
    let _turn = Turn::alone();
    let Some(disk) = FullDisk::mount("full-disk") else {
        return skipped("full disk: no tmpfs may be mounted here");
    };
    let right = Server::ready(&TINY, &["--world", "3", "--threads", "1"]).sample();
    let mut server = on_disk(&disk.0);
    assert_eq!(server.sample(), right);
    let victim = child_of(server.process.id());
    send_signal(victim, libc::SIGKILL);
    let gone = || (server.get("/ready").0 != 200).then_some(());
    assert!(wait_for(s(5), gone).is_some());
    server.wait_ready(s(20));
    assert_eq!(server.sample(), right);
    server.process.signal(libc::SIGTERM);
    server.process.ends_well(s(20));
}

/// Holds a running process to the memory that it has.
fn no_more_memory(process: u32) {
    let status = std::fs::read_to_string(format!("/proc/{process}/statm")).unwrap();
    let pages: u64 = status.split(' ').next().unwrap().parse().unwrap();
    // SAFETY: sysconf touches no memory.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    let limit = libc::rlimit { rlim_cur: pages * page, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the new limit is valid for reads; the old one is not asked for.
    let set = unsafe {
        libc::prlimit(process as i32, libc::RLIMIT_AS, &raw const limit, std::ptr::null_mut())
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// The rank may end, as the system may end it; rank 0 serves again once it is back.
#[test]
fn a_rank_without_memory_costs_its_replies_at_most() {
    let _turn = Turn::alone();
    let mut rig = Rig::start("memory-out");
    for rank in [1, 2] {
        let right = rig.short_client(Phase::Prompt).seen(s(60)).unwrap();
        no_more_memory(rig.rank(rank).id());
        let clients: Vec<Client> = (0..4).map(|_| rig.short_client(Phase::Prompt)).collect();
        let mut whole = 0;
        for client in clients {
            let seen = client.seen(s(60)).unwrap();
            assert!(seen.what != "cut off", "{}", rig.logs());
            if seen.what == "whole" {
                assert_eq!(seen.ids, right.ids);
                whole += 1;
            }
        }
        println!("rank {rank} without memory: {whole} of 4 replies whole");
        assert_eq!(rig.server().get("/health").0, 200);
        rig.rank(rank).signal(libc::SIGKILL);
        let down = wait_for(s(20), || (rig.ready().0 != 200).then_some(()));
        assert!(down.is_some(), "{}", rig.logs());
        rig.start_rank(rank);
        let up = wait_for(s(20), || (rig.ready().0 == 200).then_some(()));
        assert!(up.is_some(), "{}", rig.logs());
        rig.serves_again(Instant::now(), s(20));
    }
}

#[test]
fn a_rank_that_cannot_load_for_want_of_memory_leaves_the_server_up() {
    let _turn = Turn::shared();
    let ring = ByHand::new("memory-none", &TINY, &format!("0:4,4:{LAYERS}"));
    let server = ring.serve();
    let mut small = Command::new("sh");
    small.args(["-c", "ulimit -v 24000; exec \"$0\" \"$@\""]).arg(baton().get_program());
    small.args(["stage", TINY.to_str().unwrap(), "--rank", "1"]).args(ring.place(1));
    let mut small = Baton::spawn(small);
    assert!(!small.exit(s(20)).success(), "{}", small.log.text());
    assert_eq!((server.get("/health").0, server.get("/ready").0), (200, 503));
    let _stage = ring.stage(1);
    server.wait_ready(s(20));
    assert_eq!(server.sample().len(), 24);
}

/// Where a library lies that lies about the time.
fn faketime() -> Option<PathBuf> {
    let machine = format!("{}-linux-gnu", std::env::consts::ARCH);
    let places = [format!("/usr/lib/{machine}/faketime"), "/usr/lib/faketime".into()];
    places.iter().map(|at| Path::new(at).join("libfaketimeMT.so.1")).find(|path| path.exists())
}

/// Has a command and what it starts read the time of `clock`, an offset in seconds; not where no
/// library lies about it.
pub fn lies(command: &mut Command, clock: &Path) -> bool {
    let Some(library) = faketime() else { return false };
    std::fs::write(clock, "+0").unwrap();
    command.env("LD_PRELOAD", library).env("FAKETIME_TIMESTAMP_FILE", clock);
    command.env("FAKETIME_NO_CACHE", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    true
}

/// Nothing of a ring reads the wall clock: it jumps by an hour either way while replies run.
#[test]
fn a_clock_that_jumps_changes_nothing() {
    let _turn = Turn::alone();
    let clock = scratch("clock");
    let set = |offset: &str| std::fs::write(&clock, offset).unwrap();
    let mut command = baton();
    if !lies(&mut command, &clock) {
        return skipped("clock jumps: no libfaketime");
    }
    command.args(["serve", TINY.to_str().unwrap(), "--world", "3", "--threads", "1"]);
    command.args(["--port", "0", "--continue-s", "0"]).env("BATON_CACHE", scratch("clock-cache"));
    let process = Baton::spawn(command);
    let (_, line) = process.log.wait("on http://", s(60));
    let addr = line.split("http://").nth(1).unwrap().split("/v1").next().unwrap().parse().unwrap();
    let server = Server { process, addr };
    server.wait_ready(s(60));
    let bodies: Vec<_> = (1..4)
        .map(|seed| json!({"prompt": "once upon a time", "max_tokens": 800, "seed": seed}))
        .chain([prompt(2_000)])
        .collect();
    let ask = || bodies.iter().map(|body| Client::ask(server.addr, body)).collect::<Vec<_>>();
    let right: Vec<_> = ask().iter().map(|client| client.seen(s(60)).unwrap()).collect();
    let clients = ask();
    for jump in ["+3600", "-3600", "+0"] {
        std::thread::sleep(std::time::Duration::from_millis(200));
        set(jump);
    }
    for (client, right) in clients.iter().zip(&right) {
        let seen = client.seen(s(60)).unwrap();
        assert_eq!(seen.what, "whole", "{}", server.process.log.text());
        assert!(seen.ids == right.ids);
    }
    assert_eq!(server.get("/ready").0, 200);
    assert_eq!(server.process.log.count_after(0, "broke"), 0);
}
