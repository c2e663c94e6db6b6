//! Which crate may know which, and what the cores without I/O may not touch.

use super::{File, Finding, source};

/// The house from its foundation up. A crate depends on lower layers only; its tests may also use
/// crates of its own layer.
const LAYERS: &[&[&str]] = &[
    &["arith"],
    &["wire", "weights", "backend", "placement"],
    &["sched", "text"],
    &["cpu", "cuda", "gpu", "stage", "grammar"],
    &["ring"],
    &["api", "sim", "shard", "node", "store"],
    &["cli", "emulator"],
];

/// What a crate's source may not name, and why.
const PURE: &[(&str, &[&str], &str)] = &[
    ("arith", WORLD, "the arithmetic is a function"),
    ("wire", WORLD, "messages know no I/O"),
    ("sched", WORLD, "the scheduler is a function of its calls"),
    ("placement", WORLD, "a placement is a function of what was measured"),
];

/// Sockets, threads, clocks and files.
const WORLD: &[&str] =
    &["std::net", "std::thread", "std::time", "std::fs", "std::process", "std::env", "tokio"];

fn layer(name: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&name))
}

/// The crate of a manifest's path.
fn crate_of(path: &str) -> Option<&str> {
    path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml")
}

/// Dependencies that point up or sideways, and crates without a place.
pub fn direction(files: &[File]) -> Vec<Finding> {
    files.iter().flat_map(manifest).collect()
}

fn manifest(file: &File) -> Vec<Finding> {
    let Some(name) = crate_of(&file.path) else {
        return Vec::new();
    };
    let Some(own) = layer(name) else {
        return vec![file.fault(1, format!("{name} has no layer: give it one in xtask"))];
    };
    let mut findings = Vec::new();
    for (number, section, used) in dependencies(file) {
        let Some(other) = layer(used) else { continue };
        let tests = section == "dev-dependencies";
        if other > own || (other == own && !tests) {
            let what = format!("{name} (layer {own}) may not know {used} (layer {other})");
            findings.push(file.fault(number, what));
        }
    }
    findings
}

/// Line, section and name of every dependency; names of ours without their prefix.
fn dependencies(file: &File) -> Vec<(usize, &str, &str)> {
    let (mut section, mut found) = ("", Vec::new());
    let ours = |name| str::strip_prefix(name, "baton-").unwrap_or(name);
    for (number, line) in file.lines() {
        if let Some(header) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            let (table, name) = header.rsplit_once('.').unwrap_or((header, ""));
            section = if header.ends_with("dependencies") { header } else { "" };
            if table.ends_with("dependencies") {
                found.push((number, table, ours(name)));
            }
            continue;
        }
        let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
        let section = section.rsplit('.').next().unwrap_or_default();
        if section.ends_with("dependencies") && !name.is_empty() && !name.starts_with('#') {
            found.push((number, section, ours(name)));
        }
    }
    found
}

/// Sockets, clocks, threads and files in a crate that is a function of its inputs; model names in
/// one that knows none.
pub fn pure(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, banned, why) in PURE {
        let source = format!("crates/{name}/src/");
        if !file.is_rust() || !file.path.starts_with(&source) {
            continue;
        }
        let code = source::code(&file.text);
        for word in *banned {
            for at in source::words(&code, word) {
                let line = source::line_of(&code, at);
                findings.push(file.fault(line, format!("`{word}` in {name}: {why}")));
            }
        }
    }
    findings
}

/// A crate that does not share the workspace's lints.
pub fn lints(file: &File) -> Vec<Finding> {
    let member = crate_of(&file.path).is_some() || file.path == "xtask/Cargo.toml";
    if !member || file.text.contains("[lints]\nworkspace = true\n") {
        return Vec::new();
    }
    vec![file.fault(1, "no `[lints] workspace = true`")]
}

#[cfg(test)]
mod tests {
    use super::super::planted;
    use super::*;

    fn of(name: &str, dependencies: &str) -> Vec<Finding> {
        let path = format!("crates/{name}/Cargo.toml");
        direction(&[planted(&path, &format!("[package]\nname = \"x\"\n\n{dependencies}"))])
    }

    #[test]
    fn a_dependency_up_or_sideways_is_refused_by_line() {
        let up = of("sched", "[dependencies]\nwire.workspace = true\nring.workspace = true\n");
        assert!(matches!(&up[..], [one] if one.line == 6), "{up:?}");
        assert_eq!(of("cpu", "[dependencies]\nstage = { path = \"../stage\" }\n").len(), 1);
        assert_eq!(of("cpu", "[target.'cfg(unix)'.dependencies]\nbaton-api = \"1\"\n").len(), 1);
        assert_eq!(of("wire", "[dependencies.sched]\nworkspace = true\n").len(), 1);
        assert!(of("stage", "[dependencies]\nbackend.workspace = true\nlibc = \"0\"\n").is_empty());
    }

    #[test]
    fn tests_may_look_sideways_but_not_up() {
        assert!(of("stage", "[dev-dependencies]\ncpu.workspace = true\n").is_empty());
        assert_eq!(of("stage", "[dev-dependencies]\nring.workspace = true\n").len(), 1);
    }

    #[test]
    fn a_crate_without_a_layer_is_refused() {
        assert_eq!(of("engine", "").len(), 1);
    }

    #[test]
    fn a_clock_in_the_scheduler_is_refused_and_in_the_ring_not() {
        let text = "use std::time::Instant; // std::net\n";
        assert_eq!(pure(&planted("crates/sched/src/a.rs", text)).len(), 1);
        assert!(pure(&planted("crates/ring/src/a.rs", text)).is_empty());
    }

    #[test]
    fn a_crate_without_the_lints_is_refused() {
        assert_eq!(lints(&planted("crates/a/Cargo.toml", "[package]\n")).len(), 1);
    }
}
