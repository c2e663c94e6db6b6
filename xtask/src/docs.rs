//! The commands of README.md and `docs/`, run as they stand, their outputs compared.

use std::process::{Command, Stdio};

use anyhow::Result;

use crate::step::{self, Steps};

/// Those that CI has time for.
const QUICK: [&str; 6] = [
    "docs/formats.md",
    "docs/nodes.md",
    "docs/operations.md",
    "docs/plan.md",
    "docs/security.md",
    "docs/troubleshooting.md",
];

/// Loopback with the addresses of two machines, as documents name them.
const NETWORK: &str = "ip link set lo up && ip addr add 10.0.0.1/32 dev lo && \
                       ip addr add 10.0.0.2/32 dev lo && ip addr add 10.0.0.3/32 dev lo && exec \"$@\"";

/// What CI runs, where there is a `curl`.
///
/// # Errors
/// As [`run`].
pub fn quick(steps: &mut Steps) -> Result<()> {
    if !step::installed("curl") {
        println!("skipped: the documents' commands: no curl");
        return Ok(());
    }
    run(steps, &QUICK.map(str::to_owned))
}

/// Runs the documents named, or all, in a network of their own where the system lets us make one:
/// ports are free there, and two machines are one.
///
/// # Errors
/// A command that fails, a stated line that did not come.
pub fn run(steps: &mut Steps, documents: &[String]) -> Result<()> {
    let baton = step::baton()?;
    let model = crate::ci::pull(step::baton()?)?;
    let mut words = vec!["python3".into(), steps.root().join("xtask/src/docs/run.py").into()];
    words.extend([baton.get_program().to_owned(), steps.root().into(), model.into()]);
    words.extend(documents.iter().map(Into::into));
    let unshare = ["unshare", "--net", "--map-root-user", "sh", "-c", NETWORK, "sh"];
    let mut alone = Command::new(unshare[0]);
    alone.args(&unshare[1..]);
    let mut probe = Command::new(unshare[0]);
    probe.args(&unshare[1..]).arg("true").stderr(Stdio::null());
    if probe.status().is_ok_and(|status| status.success()) {
        return steps.run("docs", alone.args(words));
    }
    println!("no network of its own: what needs two addresses of this machine fails");
    steps.run("docs", Command::new(&words[0]).args(&words[1..]))
}
