//! A source and two machines as network namespaces, each machine at a cable of its own.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// The namespaces end with it.
pub struct Net {
    /// Of the source.
    pub source: String,
    /// Of the machines.
    pub machines: [String; 2],
}

impl Net {
    /// Addresses of the machines.
    pub const ADDRESSES: [&'static str; 2] = ["10.7.1.2", "10.7.2.2"];
    /// Addresses of the source, one a cable.
    const SOURCES: [&'static str; 2] = ["10.7.1.1", "10.7.2.1"];
    const CABLES: [[&'static str; 2]; 2] = [["to-a", "cable-a"], ["to-b", "cable-b"]];

    /// Lays the cables, which carry `rate` bits a second each way.
    ///
    /// # Errors
    /// A machine that lets us make no namespaces, or whose kernel has no shaper.
    pub fn lay(rate: u64) -> Result<Self> {
        let name = |end: &str| format!("baton-push-{}-{end}", std::process::id());
        let net = Self { source: name("s"), machines: [name("a"), name("b")] };
        for namespace in [&net.source, &net.machines[0], &net.machines[1]] {
            ip(&["netns", "add", namespace])?;
            ip(&["-n", namespace, "link", "set", "lo", "up"])?;
        }
        for at in 0..2 {
            let [near, far] = Self::CABLES[at];
            let (source, machine) = (&net.source, &net.machines[at]);
            ip(&[
                "link", "add", near, "netns", source, "type", "veth", "peer", "name", far, "netns",
                machine,
            ])?;
            let ends = [(source, near, Self::SOURCES[at]), (machine, far, Self::ADDRESSES[at])];
            for (namespace, device, address) in ends {
                let address = format!("{address}/24");
                ip(&["-n", namespace, "address", "add", &address, "dev", device])?;
                ip(&["-n", namespace, "link", "set", device, "up"])?;
                let rate = format!("{rate}bit");
                let shaper = ["tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", &rate];
                let more = ["burst", "128kb", "latency", "50ms"];
                ip(&[&["netns", "exec", namespace][..], &shaper[..], &more[..]].concat())?;
            }
        }
        Ok(net)
    }

    /// Bytes that the source has sent to each machine so far, headers and all.
    ///
    /// # Errors
    /// No such counters.
    pub fn carried(&self) -> Result<[u64; 2]> {
        let mut carried = [0; 2];
        for (count, [near, _]) in carried.iter_mut().zip(Self::CABLES) {
            let path = format!("/sys/class/net/{near}/statistics/tx_bytes");
            let output =
                Command::new("ip").args(["netns", "exec", &self.source, "cat", &path]).output()?;
            *count = String::from_utf8(output.stdout)?.trim().parse().context(path)?;
        }
        Ok(carried)
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for namespace in [&self.source, &self.machines[0], &self.machines[1]] {
            let _ = ip(&["netns", "delete", namespace]);
        }
    }
}

fn ip(arguments: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(arguments).stdin(Stdio::null()).output();
    let output = output.context("can't run ip")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip {}: {}", arguments.join(" "), said.trim());
    Ok(())
}
