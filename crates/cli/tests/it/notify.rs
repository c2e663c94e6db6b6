//! What a service manager sees: sd_notify's datagrams, SIGHUP.

use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Instant;

use crate::http;
use crate::model::{CACHE, TINY, scratch};
use crate::process::{Baton, baton, s, wait_for};
use crate::ring::{Server, free_addresses};
use crate::turn::Turn;

/// Within which the manager wants a sign of life.
const WATCHDOG_US: &str = "600000";

/// Starts a `baton` under a manager that listens at `name`.
fn managed(name: &str, args: &[&str]) -> Baton {
    let mut command = baton();
    command.args(args).env("BATON_CACHE", &*CACHE);
    command.env("NOTIFY_SOCKET", name).env("WATCHDOG_USEC", WATCHDOG_US);
    Baton::spawn(command)
}

/// Waits for a datagram that holds `needle`; those before it.
fn told(manager: &UnixDatagram, needle: &str) -> Vec<String> {
    let until = Instant::now() + s(30);
    let mut before = Vec::new();
    let mut bytes = [0; 4096];
    while Instant::now() < until {
        match manager.recv(&mut bytes) {
            Ok(count) => {
                let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
                if text.contains(needle) {
                    return before;
                }
                before.push(text);
            }
            Err(e) => assert!(matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)),
        }
    }
    panic!("not told {needle:?}: {before:?}")
}

#[test]
fn a_manager_is_told_when_the_ring_serves_that_it_lives_and_that_it_ends() {
    let _turn = Turn::shared();
    let path = scratch("manager.sock");
    let _ = std::fs::remove_file(&path);
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(s(1))).unwrap();
    let args = ["serve", TINY.to_str().unwrap(), "--port", "0", "--world", "2"];
    let mut server = managed(path.to_str().unwrap(), &args);
    let before = told(&manager, "READY=1\nSTATUS=the ring serves");
    assert!(
        before.iter().any(|text| text.starts_with("STATUS=the ring is starting")),
        "{before:?}"
    );
    server.log.wait("rank 0: ready", s(5));
    let since = Instant::now();
    for _ in 0..4 {
        told(&manager, "WATCHDOG=1");
    }
    // Three signs at least in the time that it waits for one.
    assert!(since.elapsed() < s(2), "{:?}", since.elapsed());
    server.signal(libc::SIGTERM);
    told(&manager, "STOPPING=1");
    server.ends_well(s(10));
}

#[test]
fn a_manager_of_a_stage_is_told_once_its_layers_are_loaded() {
    let _turn = Turn::shared();
    let name = format!("baton-manager-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let manager = UnixDatagram::bind_addr(&address).unwrap();
    manager.set_read_timeout(Some(s(1))).unwrap();
    let listen = free_addresses(1)[0].to_string();
    let model = TINY.to_str().unwrap();
    let args = ["stage", model, "--rank", "1", "--layout", "0:4,4:8", "--listen", &listen];
    let mut stage = managed(&format!("@{name}"), &[&args[..], &["--next", "127.0.0.1:9"]].concat());
    told(&manager, "READY=1\nSTATUS=rank 1 is loaded");
    told(&manager, "WATCHDOG=1");
    // Without a terminal it is no end.
    stage.signal(libc::SIGHUP);
    told(&manager, "WATCHDOG=1");
    assert!(stage.is_alive());
    stage.signal(libc::SIGTERM);
    stage.ends_well(s(5));
}

#[test]
fn sighup_reads_the_keys_again_and_ends_nothing() {
    let _turn = Turn::shared();
    let file = scratch("hang-up-keys");
    std::fs::write(&file, "alice sk-the-first-key\n").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let keys = ["--world", "2", "--api-key-file", file.to_str().unwrap()];
    let mut server = Server::ready(&TINY, &keys);
    let asked = http::get(server.addr, "/v1/models");
    assert_eq!(asked.0, 401, "{asked:?}");
    std::fs::write(&file, "alice sk-another-key\nbob sk-the-third-key\n").unwrap();
    // To the whole group, as a session that ends does it.
    server.process.signal_group(libc::SIGHUP);
    server.process.log.wait("2 API keys from", s(5));
    std::fs::write(&file, "x\n").unwrap();
    server.process.signal(libc::SIGHUP);
    server.process.log.wait("the API keys stay as they were", s(5));
    assert!(wait_for(s(5), || (server.get("/ready").0 == 200).then_some(())).is_some());
    assert_eq!(server.process.log.count_after(0, "broke"), 0);
    server.process.signal(libc::SIGTERM);
    server.process.ends_well(s(10));
}
