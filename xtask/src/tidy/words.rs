//! Words and characters that don't belong into the repository.

use super::{File, Finding, source};

/// Paths of somebody's machine, and tools that a reader need not know of. Written in halves, since
/// this file is checked too.
const FORBIDDEN: &[(&str, &str)] = &[
    ("/wo", "rk/"),
    ("/tmp/", "t-"),
    ("/ro", "ot/"),
    ("/ho", "me/"),
    ("cla", "ude"),
    ("copi", "lot"),
    ("chat", "gpt"),
];

/// Marks of unfinished work.
const UNFINISHED: &[(&str, &str)] = &[("TO", "DO"), ("FIX", "ME"), ("XX", "X"), ("dbg", "!")];

/// Names of model families, and the crates that run every family alike.
const FAMILIES: &[&str] = &["qwen", "llama"];
const UNAWARE: &[&str] = &["api", "backend", "cpu", "ring", "sched", "wire"];

/// The registry of every crate.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The forbidden words, in any case.
pub fn forbidden(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in file.lines() {
        let line = line.to_lowercase();
        for (head, tail) in FORBIDDEN {
            let word = format!("{head}{tail}");
            if line.contains(&word) {
                findings.push(file.fault(number, format!("`{word}` does not belong here")));
            }
        }
    }
    findings
}

/// A family's name where all families are the same.
pub fn families(file: &File) -> Vec<Finding> {
    let inside = |name: &&&str| file.path.starts_with(&format!("crates/{name}/src/"));
    let Some(name) = UNAWARE.iter().find(inside) else { return Vec::new() };
    let known = |line: &str| FAMILIES.iter().find(|family| line.to_lowercase().contains(**family));
    let lines = file.lines().filter_map(|(number, line)| Some((number, known(line)?)));
    lines.map(|(at, family)| file.fault(at, format!("`{name}` knows of {family}"))).collect()
}

/// Work that was left for later.
pub fn unfinished(file: &File) -> Vec<Finding> {
    if file.is_made() {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (head, tail) in UNFINISHED {
        let word = format!("{head}{tail}");
        for at in source::words(&file.text, &word) {
            let line = source::line_of(&file.text, at);
            findings.push(file.fault(line, format!("`{word}`: finish it, or open an issue")));
        }
    }
    findings
}

/// Tabs, carriage returns, blanks at a line's end, and a last line without an end.
pub fn whitespace(file: &File) -> Vec<Finding> {
    if file.is_made() {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (at, line) in file.text.split('\n').enumerate() {
        if line.contains('\t') && !file.path.ends_with(".tsv") {
            findings.push(file.fault(at + 1, "a tab"));
        }
        if line.ends_with([' ', '\t', '\r']) {
            findings.push(file.fault(at + 1, "blanks at the end of the line"));
        }
    }
    if !file.text.is_empty() && !file.text.ends_with('\n') {
        findings.push(file.fault(file.text.lines().count(), "no line end at the end"));
    }
    findings
}

/// A lock file that a mirror's name has crept into.
pub fn registry(file: &File) -> Vec<Finding> {
    if !file.path.ends_with("Cargo.lock") {
        return Vec::new();
    }
    let source =
        |line: &str| line.strip_prefix("source = \"").map(|s| s.trim_end_matches('"').to_owned());
    let lines = file.lines().filter_map(|(number, line)| Some((number, source(line)?)));
    lines
        .filter(|(_, source)| source != REGISTRY)
        .map(|(number, source)| file.fault(number, format!("`{source}` is not {REGISTRY}")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::planted;
    use super::*;

    #[test]
    fn each_forbidden_word_is_refused_by_line() {
        for (head, tail) in FORBIDDEN {
            let file = planted("README.md", &format!("fine\nsee {}{tail}x\n", head.to_uppercase()));
            let found = forbidden(&file);
            assert!(matches!(&found[..], [one] if one.line == 2), "{head}{tail}");
        }
    }

    #[test]
    fn a_familys_name_is_refused_where_all_are_the_same() {
        for (name, text) in [("sched", "fine\n// as Qwen3.5 does\n"), ("cpu", "\nfn llama() {}\n")]
        {
            let found = families(&planted(&format!("crates/{name}/src/a.rs"), text));
            assert!(matches!(&found[..], [one] if one.line == 2), "{name}: {text}");
        }
        for path in ["crates/stage/src/model/llama.rs", "crates/cpu/tests/it/llama.rs"] {
            assert!(families(&planted(path, "// llama\n")).is_empty(), "{path}");
        }
    }

    #[test]
    fn unfinished_work_is_refused() {
        for (head, tail) in UNFINISHED {
            assert_eq!(unfinished(&planted("a.rs", &format!("// {head}{tail}: later\n"))).len(), 1);
        }
        assert!(unfinished(&planted("a.rs", "// a mastodon\n")).is_empty());
    }

    #[test]
    fn stray_blanks_are_refused() {
        for text in ["\tx\n", "x \n", "x\r\n", "x"] {
            assert_eq!(whitespace(&planted("a.rs", text)).len(), 1, "{text:?}");
        }
        assert!(whitespace(&planted("a.rs", "x\n\ny\n")).is_empty());
    }

    #[test]
    fn another_registry_in_the_lock_file_is_refused() {
        let lock =
            |url: &str| planted("Cargo.lock", &format!("name = \"a\"\nsource = \"{url}\"\n"));
        assert!(registry(&lock(REGISTRY)).is_empty());
        assert_eq!(registry(&lock("sparse+https://mirror.example/")).len(), 1);
    }
}
