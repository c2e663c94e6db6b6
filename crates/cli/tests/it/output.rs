//! Outputs whose reader leaves, or whose disk is full.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

use crate::http;
use crate::model::{CACHE, TINY};
use crate::process::{members, s, wait_for};
use crate::ring::free_addresses;
use crate::turn::Turn;

/// A process that is killed with the test.
struct Guarded(Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Guarded {
    fn start(args: &[&str], out: impl Into<Stdio>, log: impl Into<Stdio>) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_baton"));
        command.args(args).env("BATON_CACHE", &*CACHE);
        command.stdin(Stdio::null()).stdout(out).stderr(log);
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        Self(command.spawn().unwrap())
    }

    /// Its local ranks.
    fn ranks(&self) -> Vec<i32> {
        let children = format!("/proc/{}/task", self.0.id());
        let tasks = std::fs::read_dir(children).unwrap().flatten();
        let lists = tasks.filter_map(|t| std::fs::read_to_string(t.path().join("children")).ok());
        lists
            .flat_map(|l| l.split(' ').filter_map(|p| p.parse().ok()).collect::<Vec<_>>())
            .collect()
    }
}

fn wait_ready(addr: SocketAddr) {
    let ready = || matches!(http::try_call(addr, "GET", "/ready", ""), Ok((200, _))).then_some(());
    assert!(wait_for(s(20), ready).is_some(), "not ready");
}

/// Starts two ranks with this log, kills one, and stops the server once it has recovered.
fn serves_on(log: impl FnOnce() -> Stdio) {
    let _turn = Turn::shared();
    let addr = free_addresses(1)[0];
    let port = addr.port().to_string();
    let args = ["--log", "debug", "serve", TINY.to_str().unwrap(), "--port", &port, "--world", "2"];
    let mut server = Guarded::start(&args, Stdio::null(), log());
    wait_ready(addr);
    let [rank] = server.ranks()[..] else { panic!("{:?}", server.ranks()) };
    crate::process::send_signal(rank, libc::SIGKILL);
    let replaced = || server.ranks().iter().any(|&r| r != rank).then_some(());
    assert!(wait_for(s(20), replaced).is_some(), "no new rank");
    wait_ready(addr);
    crate::process::send_signal(server.0.id() as i32, libc::SIGTERM);
    let ended = wait_for(s(10), || server.0.try_wait().unwrap());
    assert_eq!(ended.and_then(|status| status.code()), Some(0), "{ended:?}");
    assert!(members(server.0.id()).is_empty());
}

#[test]
fn a_server_outlives_the_reader_of_its_log() {
    serves_on(|| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        writer.into()
    });
}

#[test]
fn a_server_outlives_the_room_for_its_log() {
    serves_on(|| File::options().write(true).open("/dev/full").unwrap().into());
}

#[test]
fn a_command_ends_with_the_reader_of_its_output() {
    let _turn = Turn::shared();
    let args = ["check", TINY.to_str().unwrap(), "--layouts", "1;2", "--threads", "1"];
    let mut check = Guarded::start(&args, Stdio::piped(), Stdio::piped());
    let mut line = String::new();
    // The reader goes with the first line.
    BufReader::new(check.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let status = wait_for(s(60), || check.0.try_wait().unwrap()).unwrap();
    assert_eq!(status.signal(), Some(libc::SIGPIPE), "{status}");
    let said = std::io::read_to_string(check.0.stderr.take().unwrap()).unwrap();
    assert!(!said.contains("panicked"), "{said}");
}
