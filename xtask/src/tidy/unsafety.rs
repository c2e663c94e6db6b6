//! Where `unsafe` may stand.

use super::{File, Finding, source};

/// Kernels, and the card that runs them.
const ALLOWED: &[&str] = &["crates/cpu/", "crates/cuda/", "crates/emulator/"];
/// A call of the system or of a driver here and there, each with its reason above it.
const CALLS: &[&str] = &["crates/cli/", "crates/ring/", "crates/gpu/"];

/// `unsafe` outside its places, or a call without a reason.
pub fn places(file: &File) -> Vec<Finding> {
    let under = |folders: &[&str]| folders.iter().any(|folder| file.path.starts_with(folder));
    if !file.is_rust() || under(ALLOWED) {
        return Vec::new();
    }
    let code = source::code(&file.text);
    let lines: Vec<&str> = file.text.lines().collect();
    let mut findings = Vec::new();
    for at in source::words(&code, "unsafe") {
        let line = source::line_of(&code, at);
        if !under(CALLS) {
            findings.push(file.fault(line, "`unsafe` belongs into cpu, cuda and emulator"));
        } else if !has_reason(&lines[..line - 1]) {
            findings.push(file.fault(line, "`unsafe` without a SAFETY comment above it"));
        }
    }
    findings
}

fn has_reason(above: &[&str]) -> bool {
    let comments = above.iter().rev().take_while(|line| line.trim_start().starts_with("//"));
    comments.into_iter().any(|line| line.contains("SAFETY:"))
}

#[cfg(test)]
mod tests {
    use super::super::planted;
    use super::*;

    const CALL: &str = "fn f() {\n    unsafe { g() };\n}\n";

    #[test]
    fn unsafe_code_is_refused_outside_its_places() {
        for path in ["crates/wire/src/rows.rs", "crates/weights/src/file.rs", "xtask/src/a.rs"] {
            assert_eq!(places(&planted(path, CALL)).len(), 1, "{path}");
        }
        assert!(places(&planted("crates/cpu/src/pool.rs", CALL)).is_empty());
        assert!(places(&planted("crates/wire/src/lib.rs", "#![forbid(unsafe_code)]\n")).is_empty());
    }

    #[test]
    fn a_system_call_needs_its_reason() {
        assert_eq!(places(&planted("crates/cli/src/a.rs", CALL)).len(), 1);
        let reasoned = CALL.replace("    unsafe", "    // SAFETY: no memory.\n    unsafe");
        assert!(places(&planted("crates/cli/src/a.rs", &reasoned)).is_empty());
    }
}
