//! Commands beside the server: completions, pages of the manual, `top`, `bench serve`, and `chat`
//! at a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::CommandExt;
use std::process::Child;
use std::sync::{Arc, Mutex};

use crate::model::{TINY, scratch};
use crate::process::{Baton, baton, s, wait_for};
use crate::ring::Server;
use crate::turn::Turn;

/// What a command prints that ends well.
fn printed(args: &[&str]) -> String {
    let mut process = Baton::start(args);
    process.ends_well(s(60));
    process.out.to_end(s(5))
}

fn url(server: &Server) -> String {
    format!("http://{}", server.addr)
}

#[test]
fn every_shell_gets_completions_of_every_command() {
    let _turn = Turn::shared();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let said = printed(&["completions", shell]);
        for word in ["serve", "top", "completions", "prompt-cache-gib"] {
            assert!(said.contains(word), "{shell}: {word}");
        }
    }
    let mut wrong = Baton::start(["completions", "tcsh"]);
    assert_eq!(wrong.exit(s(10)).code(), Some(2));
}

#[test]
fn the_manual_has_a_page_of_every_command() {
    let _turn = Turn::shared();
    let said = printed(&["man"]);
    assert!(said.contains(".TH baton 1") && said.contains("SUBCOMMANDS"), "{said}");
    let folder = scratch("manual");
    printed(&["man", "--dir", folder.to_str().unwrap()]);
    let text = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    for command in ["serve", "stage", "chat", "top", "check", "bench", "bench-serve", "key-new"] {
        assert!(text(&format!("baton-{command}.1")).contains(".SH"), "{command}");
    }
    assert!(text("baton-serve.1").contains("\\-\\-continue\\-s"));
}

#[test]
fn top_shows_a_line_a_rank() {
    let _turn = Turn::shared();
    let server = Server::ready(&TINY, &["--world", "3", "--threads", "1"]);
    server.sample();
    let said = printed(&["top", "--once", "--every", "0.3", "--url", &url(&server)]);
    let proof = server.health()["last_reply"]["token_sha256"].clone();
    let hash = proof.as_str().expect("a hash");
    assert!(said.contains(&format!("SHA-256 of its tokens  {hash}")), "{said}");
    assert!(said.starts_with("baton  tiny  ok  up "), "{said}");
    for layers in ["0..2", "2..5", "5..8"] {
        assert_eq!(said.matches(layers).count(), 1, "{said}");
    }
    assert!(said.lines().all(|line| line.chars().count() <= 100), "{said}");
}

#[test]
fn an_open_load_gives_percentiles_a_table_and_a_plot() {
    let _turn = Turn::shared();
    let server = Server::ready(&TINY, &["--world", "2", "--threads", "1"]);
    let [csv, svg] = ["load.csv", "load.svg"].map(scratch);
    let url = url(&server);
    let mut args = vec!["bench", "serve", "--url", &url, "--rate", "4,8", "--seconds", "1"];
    args.extend(["--prompt", "20", "--decode", "8"]);
    args.extend(["--csv", csv.to_str().unwrap(), "--svg", svg.to_str().unwrap()]);
    let said = printed(&args);
    let rows: Vec<Vec<&str>> =
        said.lines().skip(2).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows.len(), 2, "{said}");
    let table = std::fs::read_to_string(&csv).unwrap();
    for row in &rows {
        assert_eq!(row.len(), 12, "{said}");
        // All that were sent are done: nothing refused, nothing broke.
        assert_eq!((row[1], row[3], row[4]), (row[2], "0", "0"), "{said}");
        let lines = table.lines().filter(|line| line.starts_with(&format!("{},", row[0])));
        assert_eq!(lines.filter(|line| line.contains(",done,8,")).count().to_string(), row[1]);
    }
    assert_eq!(std::fs::read_to_string(&svg).unwrap().matches("<polyline").count(), 6);
    drop(server);
    let mut nobody = Baton::start(["bench", "serve", "--url", &url]);
    assert_eq!(nobody.exit(s(30)).code(), Some(1));
    assert!(nobody.log.to_end(s(5)).contains("no server at"));
}

/// A `baton chat` at a terminal of its own.
struct Terminal {
    child: Child,
    keys: File,
    seen: Arc<Mutex<String>>,
}

impl Terminal {
    fn open(args: &[&str], cache: &std::path::Path) -> Self {
        let (mut ours, mut theirs) = (0, 0);
        let none = std::ptr::null_mut();
        // SAFETY: both descriptors are written before they are read; the rest may be null.
        let failed = unsafe {
            libc::openpty(&raw mut ours, &raw mut theirs, none, none.cast(), none.cast())
        };
        assert_eq!(failed, 0, "no terminal");
        // SAFETY: both are open and nobody else's.
        let (keys, theirs) = unsafe { (File::from_raw_fd(ours), File::from_raw_fd(theirs)) };
        let mut command = baton();
        command.args(args).env("BATON_CACHE", cache).env("TERM", "xterm");
        let end = || theirs.try_clone().unwrap();
        command.stdin(end()).stdout(end()).stderr(end());
        let line = theirs.as_raw_fd();
        // SAFETY: only setsid and ioctl are called, which are async-signal-safe.
        unsafe {
            command.pre_exec(move || {
                libc::setsid();
                libc::ioctl(line, libc::TIOCSCTTY as _, 0); // its type varies
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        drop((command, theirs));
        let seen = Arc::<Mutex<String>>::default();
        let (heard, mut screen) = (seen.clone(), keys.try_clone().unwrap());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut bytes) {
                heard.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        });
        Self { child, keys, seen }
    }

    fn types(&mut self, text: &str) {
        self.keys.write_all(text.as_bytes()).unwrap();
    }

    fn screen(&self) -> String {
        self.seen.lock().unwrap().clone()
    }

    /// Waits until the screen has `needle` that often.
    fn shows(&self, needle: &str, times: usize) {
        let shown =
            wait_for(s(30), || (self.screen().matches(needle).count() >= times).then_some(()));
        assert!(shown.is_some(), "no {needle:?}: {:?}", self.screen());
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_conversation_at_a_terminal_is_stopped_goes_on_and_is_remembered() {
    let _turn = Turn::shared();
    let server = Server::ready(&TINY, &["--world", "2", "--threads", "1"]);
    let (url, cache) = (url(&server), scratch("chat-cache"));
    let _ = std::fs::remove_dir_all(&cache);
    // The most likely tokens of the tiny model repeat themselves without end.
    let args = ["chat", "--url", &url, "--max-tokens", "100000"];
    let mut chat = Terminal::open(&args, &cache);
    chat.shows("/help says", 1);
    chat.types("/waltz\r");
    chat.shows("There is no /waltz", 1);
    chat.types("/again\r");
    chat.shows("nothing to answer", 1);
    chat.types("one\\\rtwo\r");
    let running = wait_for(s(20), || (server.health()["running"] == 1).then_some(()));
    assert!(running.is_some(), "{}", chat.screen());
    // A piece has come before the stop.
    std::thread::sleep(std::time::Duration::from_millis(300));
    chat.types("\x03");
    chat.shows("(stopped)", 1);
    let over = wait_for(s(5), || (server.health()["running"] == 0).then_some(()));
    assert!(over.is_some(), "the server goes on: {}", server.health());
    chat.types("/quit\r");
    let ended = wait_for(s(10), || chat.child.try_wait().unwrap());
    assert_eq!(ended.and_then(|status| status.code()), Some(0), "{}", chat.screen());
    let kept = std::fs::read_to_string(cache.join("chat-history")).unwrap();
    assert!(kept.contains("/waltz") && kept.contains("two"), "{kept}");
}
