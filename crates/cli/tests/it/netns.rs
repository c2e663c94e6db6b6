//! Two machines: network namespaces joined by a cable.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::model::scratch;
use crate::process::{Baton, s};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Two namespaces, `a` and `b`, each with one end of a veth pair. They end with it.
pub struct Cable {
    /// The namespaces' names.
    pub machines: [String; 2],
    /// Their interfaces' names.
    pub interfaces: [String; 2],
}

impl Cable {
    /// Addresses [`Cable::V4`] and link-local ones. None where this may make no namespaces, and
    /// then says past the harness's capture that `test` is skipped.
    pub fn lay(test: &str) -> Option<Self> {
        sweep();
        let id = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let cable = Self {
            machines: ["a", "b"].map(|end| format!("baton-{id}-{end}")),
            interfaces: ["cable-a", "cable-b"].map(String::from),
        };
        match cable.build() {
            Ok(()) => Some(cable),
            Err(reason) => {
                let line = format!("skipped: {test}: no network namespaces: {reason}\n");
                let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
                None
            }
        }
    }

    /// The machines' addresses.
    pub const V4: [&'static str; 2] = ["10.0.0.1", "10.0.0.2"];

    fn build(&self) -> Result<(), String> {
        let [a, b] = &self.machines;
        let [near, far] = &self.interfaces;
        ip(&["netns", "add", a])?;
        ip(&["netns", "add", b])?;
        ip(&["link", "add", near, "netns", a, "type", "veth", "peer", "name", far, "netns", b])?;
        for end in 0..2 {
            let (machine, interface) = (&self.machines[end], &self.interfaces[end]);
            let address = format!("{}/24", Self::V4[end]);
            ip(&["-n", machine, "address", "add", &address, "dev", interface])?;
            // A link-local address may be used at once, not after a search for doubles.
            let local = format!("{}/64", Self::local(end));
            ip(&["-n", machine, "address", "add", &local, "dev", interface, "nodad"])?;
            ip(&["-n", machine, "link", "set", interface, "up"])?;
            ip(&["-n", machine, "link", "set", "lo", "up"])?;
        }
        Ok(())
    }

    /// A machine's link-local address.
    pub fn local(end: usize) -> String {
        format!("fe80::97:{}", end + 1)
    }

    /// Pulls the plug of an end.
    pub fn unplug(&self, end: usize) {
        let (machine, interface) = (&self.machines[end], &self.interfaces[end]);
        ip(&["-n", machine, "link", "set", interface, "down"]).unwrap();
    }

    /// Puts it back.
    pub fn plug(&self, end: usize) {
        let (machine, interface) = (&self.machines[end], &self.interfaces[end]);
        ip(&["-n", machine, "link", "set", interface, "up"]).unwrap();
        // The system has taken it away with the link; a user's would give it again.
        let local = format!("{}/64", Self::local(end));
        ip(&["-n", machine, "address", "replace", &local, "dev", interface, "nodad"]).unwrap();
    }

    /// Slows an end to so many kbit/s, where the kernel can.
    pub fn throttle(&self, end: usize, kbit: u32) -> Result<(), String> {
        let rate = format!("{kbit}kbit");
        run(Command::new("ip")
            .args(["netns", "exec", &self.machines[end], "tc", "qdisc", "add"])
            .args(["dev", &self.interfaces[end], "root", "tbf", "rate", &rate])
            .args(["burst", "32k", "latency", "200ms"]))
    }

    /// Runs a command line on a machine, as its user types it, with `baton` on the path and a cache
    /// of the machine's own. The folder is where it runs.
    pub fn shell(&self, end: usize, folder: &Path, line: &str) -> Baton {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.machines[end], "bash", "-c"]);
        command.arg(format!("exec {line}")).current_dir(folder);
        let bin = Path::new(env!("CARGO_BIN_EXE_baton")).parent().unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", bin.display()));
        command.env("BATON_CACHE", scratch(&self.machines[end]));
        Baton::spawn(command)
    }

    /// As [`Cable::shell`], to its end: status and standard output.
    pub fn output(&self, end: usize, folder: &Path, line: &str) -> (i32, String) {
        let mut process = self.shell(end, folder, line);
        let status = process.exit(s(60)).code().unwrap_or(-1);
        let (out, log) = (process.out.to_end(s(5)), process.log.to_end(s(5)));
        (status, if out.is_empty() { log } else { out })
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        for machine in &self.machines {
            let _ = ip(&["netns", "delete", machine]);
        }
    }
}

/// Deletes what tests left behind that were killed.
fn sweep() {
    let names = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    for name in names.filter_map(|entry| entry.file_name().into_string().ok()) {
        let process = name.strip_prefix("baton-").and_then(|rest| rest.split('-').next());
        if process.is_some_and(|id| !Path::new("/proc").join(id).exists()) {
            let _ = ip(&["netns", "delete", &name]);
        }
    }
}

fn ip(args: &[&str]) -> Result<(), String> {
    run(Command::new("ip").args(args))
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
}
