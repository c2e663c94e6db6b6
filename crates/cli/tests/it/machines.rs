//! The quickstart's section on two machines, followed to the letter on two network namespaces.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Instant;

use weights::synthetic::{self, Llama};

use crate::model::scratch;
use crate::netns::Cable;
use crate::process::{Baton, s};
use crate::turn::Turn;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/quickstart.md");
/// The page's model; here a tiny one of as many layers.
const MODEL: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// The fenced blocks of the page that are marked `kind`, line by line.
fn lines(kind: &str) -> Vec<String> {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (mut lines, mut within) = (Vec::new(), false);
    for line in page.lines() {
        match line.strip_prefix("```") {
            Some(mark) => within = mark == kind,
            None if within => lines.push(line.to_owned()),
            None => {}
        }
    }
    assert!(!lines.is_empty(), "the page has no {kind:?}");
    lines
}

/// The page's one command line of a machine that begins so.
fn command(end: usize, start: &str) -> String {
    let all = lines(["sh on A", "sh on B"][end]);
    let found: Vec<_> = all.iter().filter(|line| line.starts_with(start)).collect();
    assert_eq!(found.len(), 1, "{start}: {all:?}");
    found[0].clone()
}

/// Two machines, each with the model in its user's folder.
struct Machines {
    cable: Cable,
    folders: [PathBuf; 2],
    /// Whether addresses are link-local ones.
    local: bool,
}

impl Machines {
    fn new(test: &str, local: bool) -> Option<Self> {
        let cable = Cable::lay(test)?;
        let folders = ["a", "b"].map(|end| {
            let folder = scratch(&format!("machines-{test}-{end}"));
            let _ = std::fs::remove_dir_all(&folder);
            std::fs::create_dir_all(&folder).unwrap();
            let spec = Llama { layers: 30, context_max: 8_192, ..Llama::default() };
            synthetic::llama(&folder.join(MODEL), &spec).unwrap();
            folder
        });
        Some(Self { cable, folders, local })
    }

    /// A line as it is typed on a machine.
    fn typed(&self, end: usize, line: &str) -> String {
        if !self.local {
            return line.to_owned();
        }
        let zone = &self.cable.interfaces[end];
        let mut line = line.to_owned();
        for (at, address) in Cable::V4.iter().enumerate() {
            let local = format!("[{}%{zone}]:", Cable::local(at));
            line = line.replace(&format!("{address}:"), &local);
        }
        line
    }

    fn start(&self, end: usize, line: &str) -> Baton {
        let line = self.typed(end, line);
        self.cable.shell(end, &self.folders[end], &line)
    }

    fn output(&self, end: usize, line: &str) -> (i32, String) {
        let line = self.typed(end, line);
        self.cable.output(end, &self.folders[end], &line)
    }

    /// The key, made on A and copied to B.
    fn share_key(&self) {
        let (status, said) = self.output(0, &command(0, "baton key"));
        assert_eq!(status, 0, "{said}");
        let [a, b] = [0, 1].map(|end| self.folders[end].join("ring.key"));
        std::fs::copy(&a, &b).unwrap();
        let mode = std::fs::metadata(&b).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "copied with its mode");
    }

    /// What the doctor of A says is what the page says.
    fn doctor_says(&self, status: i32, kind: &str) {
        let (found, said) = self.output(0, &command(0, "baton doctor"));
        assert_eq!(found, status, "{said}");
        for line in lines(kind) {
            // Digests and times are the machine's own; an address stands once, at the front.
            let line = line.split("fingerprint ").next().unwrap();
            let line = line.split("rtt: ").next().unwrap();
            let line = if self.local { addressless(line) } else { line };
            assert!(said.contains(line), "no {line:?} in\n{said}");
        }
    }
}

/// What stands behind an address.
fn addressless(line: &str) -> &str {
    let at = line.find(":740").map_or(0, |at| at + ":7400: ".len());
    &line[at..]
}

/// Waits for all that the page says a machine prints.
fn prints(process: &Baton, end: usize) {
    for line in lines(["text of A", "text of B"][end]) {
        process.log.wait(&line, s(30));
    }
}

fn follow(test: &str, local: bool, b_first: bool) {
    let _turn = Turn::alone();
    let Some(machines) = Machines::new(test, local) else {
        return;
    };
    machines.share_key();
    machines.doctor_says(1, "text before");
    let stage = command(1, "baton stage");
    let serve = command(0, "baton serve");
    let (mut a, mut b);
    if b_first {
        b = machines.start(1, &stage);
        b.log.wait("waiting for the ring", s(30));
        a = machines.start(0, &serve);
    } else {
        a = machines.start(0, &serve);
        a.log.wait("loading layers", s(30));
        std::thread::sleep(s(1));
        b = machines.start(1, &stage);
    }
    prints(&b, 1);
    prints(&a, 0);
    let chat = command(0, "baton chat") + " --max-tokens 8";
    let (status, reply) = machines.output(0, &chat);
    assert!(status == 0 && !reply.is_empty(), "{status}: {reply}");
    machines.doctor_says(0, "text after");
    let (status, said) = machines.output(1, &doctor_of_b());
    assert_eq!(status, 0, "{said}");
    if b_first {
        unplugged(&machines, &a, &b, &chat, &reply);
    }
    for process in [&mut a, &mut b] {
        process.signal(libc::SIGTERM);
        process.ends_well(s(20));
    }
}

/// The stage's line, as the doctor takes it.
fn doctor_of_b() -> String {
    command(1, "baton stage").replace("baton stage", "baton doctor")
}

/// The cable is out for a while: silence, which no socket tells of.
fn unplugged(machines: &Machines, a: &Baton, b: &Baton, chat: &str, right: &str) {
    let seen = [a.log.len(), b.log.len()];
    let pulled = Instant::now();
    machines.cable.unplug(1);
    let (broke, _) = a.log.wait_after(seen[0], "the ring broke", s(20));
    assert!(broke - pulled < s(7), "{:?}\n{}", broke - pulled, a.log.text());
    b.log.wait_after(seen[1], "waiting for the ring", s(20));
    let (status, said) = machines.output(0, &command(0, "baton doctor"));
    assert!(status == 1 && said.contains("is the address right"), "{said}");
    machines.cable.plug(1);
    let back = Instant::now();
    let (ready, _) = a.log.wait_after(seen[0], "rank 0: ready", s(30));
    println!(
        "cable pulled: known after {:.1} s; back: ready after {:.1} s",
        (broke - pulled).as_secs_f64(),
        (ready - back).as_secs_f64()
    );
    assert!(ready - back < s(5), "{:?}\n{}", ready - back, a.log.text());
    assert_eq!(machines.output(0, chat), (0, right.to_owned()));
    assert_eq!(b.log.count_after(seen[1], "loading layers"), 0);
}

#[test]
fn two_machines_follow_the_page_over_ipv4() {
    follow("ipv4", false, true);
    follow("ipv4-a-first", false, false);
}

#[test]
fn two_machines_follow_the_page_over_link_local_ipv6() {
    follow("ipv6", true, true);
    follow("ipv6-a-first", true, false);
}

/// A line as slow as a modem's still carries a ring.
#[test]
fn a_slow_cable_is_slow_and_no_more() {
    let _turn = Turn::alone();
    let Some(machines) = Machines::new("slow", false) else {
        return;
    };
    if let Err(reason) = machines.cable.throttle(0, 256) {
        let line = format!("skipped: a slow cable: {reason}\n");
        let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
        return;
    }
    machines.share_key();
    let b = machines.start(1, &command(1, "baton stage"));
    let a = machines.start(0, &command(0, "baton serve"));
    a.log.wait("rank 0: ready", s(60));
    let since = Instant::now();
    // A row of the tiny model is 256 bytes; a prompt of 200 tokens is 50 KiB, 1.6 s of this cable.
    let prompt = "slowly ".repeat(28);
    let line = format!("baton chat '{prompt}' --max-tokens 4");
    let (status, said) = machines.output(0, &line);
    assert_eq!(status, 0, "{said}\n{}", a.log.text());
    println!("over 256 kbit/s: {:.1} s", since.elapsed().as_secs_f64());
    assert_eq!(a.log.count_after(0, "broke") + b.log.count_after(0, "broke"), 0);
}
