//! Machines that are made: a network namespace, a core and a share of it, joined by cables that the
//! kernel throttles.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// Where the kernel hands out shares of cores.
const CPU: &str = "/sys/fs/cgroup/cpu";
/// How often a share is handed out anew; the kernel takes no shorter ones for a half.
const PERIOD_US: u64 = 2_000;
/// The ranks' port.
pub const PORT: u16 = 7_400;

/// A machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Its name.
    pub name: &'static str,
    /// The core that it has.
    pub core: usize,
    /// The part of that core, in percent.
    pub share: u64,
}

/// Two cores, and half of one of them.
pub const MACHINES: [Machine; 3] = [
    Machine { name: "a", core: 0, share: 100 },
    Machine { name: "b", core: 1, share: 100 },
    Machine { name: "c", core: 1, share: 50 },
];

/// What a cable carries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cable {
    /// Its name in reports.
    pub name: &'static str,
    /// Mbit/s each way; what the kernel moves where 0.
    pub mbit: u32,
    /// How long a byte is under way beside that.
    pub delay_us: u64,
}

/// As it comes, an office's, and one that is far.
pub const CABLES: [Cable; 3] = [
    Cable { name: "direct", mbit: 0, delay_us: 0 },
    Cable { name: "1 Gbit/s", mbit: 1_000, delay_us: 0 },
    Cable { name: "100 Mbit/s, 2 ms", mbit: 100, delay_us: 1_000 },
];

/// All machines, each joined to each; they end with it.
#[derive(Debug)]
pub struct Rack {
    /// One for each way that is delayed, and one a core that keeps it awake; they end with it.
    helpers: Vec<std::process::Child>,
    /// Where the way from one machine to another begins, `[from][to]`.
    ways: [[String; 3]; 3],
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("{command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}", said.trim());
    Ok(())
}

fn ip(words: &str) -> Result<()> {
    run(Command::new("ip").args(words.split_whitespace()))
}

fn namespace(machine: usize) -> String {
    format!("baton-plan-{}", MACHINES[machine].name)
}

fn group(machine: &Machine) -> PathBuf {
    Path::new(CPU).join(format!("baton-plan-{}", machine.name))
}

/// The address of `of` on the cable to `to`.
fn address(of: usize, to: usize) -> String {
    let (low, high) = (of.min(to), of.max(to));
    format!("10.79.{}.{}", low * 3 + high, of + 1)
}

impl Rack {
    /// Builds the machines and cables.
    ///
    /// # Errors
    /// A system that lets nobody make namespaces or share cores.
    pub fn build(cable: Cable) -> Result<Self> {
        let mut rack = Self { helpers: Vec::new(), ways: Default::default() };
        Self::clear();
        rack.keep_awake()?;
        for (at, machine) in MACHINES.iter().enumerate() {
            ip(&format!("netns add {}", namespace(at)))?;
            ip(&format!("-n {} link set lo up", namespace(at)))?;
            let group = group(machine);
            std::fs::create_dir_all(&group).with_context(|| format!("{}", group.display()))?;
            let write = |file: &str, value: i64| {
                let path = group.join(file);
                std::fs::write(&path, value.to_string())
                    .with_context(|| format!("{}: {value}", path.display()))
            };
            write("cpu.cfs_period_us", PERIOD_US as i64)?;
            let quota = (PERIOD_US * machine.share / 100) as i64;
            write("cpu.cfs_quota_us", if machine.share < 100 { quota } else { -1 })?;
        }
        for (one, other) in [(0, 1), (0, 2), (1, 2)] {
            let (near, far) = (format!("to{other}"), format!("to{one}"));
            let (a, b) = (namespace(one), namespace(other));
            ip(&format!("link add {near} netns {a} type veth peer name {far} netns {b}"))?;
            for (of, to, interface) in [(one, other, near), (other, one, far)] {
                let ns = namespace(of);
                let own = address(of, to);
                ip(&format!("-n {ns} address add {own}/24 dev {interface}"))?;
                ip(&format!("-n {ns} link set {interface} up"))?;
                if cable.mbit > 0 {
                    // A few milliseconds' worth would pass as if there were no limit.
                    let burst = (cable.mbit * 16).max(8_000);
                    let words = format!(
                        "netns exec {ns} tc qdisc add dev {interface} root tbf rate {}mbit \
                         burst {burst} latency 200ms",
                        cable.mbit
                    );
                    ip(&words)?;
                }
            }
        }
        for (from, to) in [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)] {
            rack.ways[from][to] = rack.way(from, to, cable)?;
        }
        Ok(rack)
    }

    /// Machines of their own would not share a clock that rises when one of them rests, nor be
    /// halted by what they run on: each core has something to do that yields to everything.
    fn keep_awake(&mut self) -> Result<()> {
        let mut cores: Vec<usize> = MACHINES.iter().map(|machine| machine.core).collect();
        cores.dedup();
        for core in cores {
            let mut spin = Command::new("taskset");
            spin.args(["-c", &core.to_string(), "chrt", "-i", "0", "sh", "-c"]);
            self.helpers.push(spin.arg("while :; do :; done").stdin(Stdio::null()).spawn()?);
        }
        Ok(())
    }

    /// Where `from` connects to, to reach the rank on `to`.
    fn way(&mut self, from: usize, to: usize, cable: Cable) -> Result<String> {
        let there = format!("{}:{PORT}", address(to, from));
        if cable.delay_us == 0 {
            return Ok(there);
        }
        let mut hop = Command::new("ip");
        hop.args(["netns", "exec", &namespace(from)]).arg(std::env::current_exe()?);
        hop.args(["race-plan", "hop", &there, &cable.delay_us.to_string()]);
        let mut child = hop.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        let out = child.stdout.take().context("a hop's output")?;
        self.helpers.push(child);
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line)?;
        Ok(line.trim().to_owned())
    }

    /// Where `from` finds the rank on `to`.
    pub fn next(&self, from: usize, to: usize) -> &str {
        &self.ways[from][to]
    }

    /// Where the rank on `of` listens for `from`.
    pub fn listen(of: usize, from: usize) -> String {
        format!("{}:{PORT}", address(of, from))
    }

    /// A command of `baton` on a machine.
    pub fn command(machine: usize, baton: &Path, cache: &Path) -> Command {
        let Machine { core, .. } = MACHINES[machine];
        let tasks = group(&MACHINES[machine]).join("cgroup.procs");
        let line = format!(
            "echo $$ > {} && exec ip netns exec {} taskset -c {core} \"$@\"",
            tasks.display(),
            namespace(machine)
        );
        let mut command = Command::new("sh");
        command.args(["-c", &line, "sh"]).arg(baton).env("BATON_CACHE", cache);
        command.env("BATON_LOG", "error");
        command
    }

    fn clear() {
        for (at, machine) in MACHINES.iter().enumerate() {
            let name = namespace(at);
            if Path::new("/run/netns").join(&name).exists() {
                let _ = ip(&format!("netns delete {name}"));
            }
            // Ranks that ended a moment ago may still be counted in it; the next rack takes it.
            let _ = std::fs::remove_dir(group(machine));
        }
    }
}

impl Drop for Rack {
    fn drop(&mut self) {
        for helper in &mut self.helpers {
            let _ = helper.kill();
            let _ = helper.wait();
        }
        Self::clear();
    }
}
