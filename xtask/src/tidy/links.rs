//! Links and paths in Markdown that lead nowhere.

use std::collections::BTreeSet;

use super::{File, Finding};

/// First parts of paths that a document names in backquotes.
const ROOTS: &[&str] = &["crates/", "docs/", "golden/", "xtask/", ".ci/"];

/// Relative links to files that are not there, and backquoted paths likewise.
pub fn broken(files: &[File], paths: &[String]) -> Vec<Finding> {
    let mut known: BTreeSet<&str> = paths.iter().map(String::as_str).collect();
    for path in paths {
        known.extend(path.match_indices('/').map(|(at, _)| &path[..at]));
    }
    let documents = files.iter().filter(|file| file.path.ends_with(".md"));
    documents.flat_map(|file| document(file, &known)).collect()
}

fn document(file: &File, known: &BTreeSet<&str>) -> Vec<Finding> {
    let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let (mut findings, mut fenced) = (Vec::new(), false);
    for (number, line) in file.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        let links = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for link in links {
            let target = link.split('#').next().unwrap_or_default();
            let here = link.contains("://") || link.starts_with("mailto:") || target.is_empty();
            if !here && !known.contains(joined(folder, target).as_str()) {
                findings.push(file.fault(number, format!("the link `{link}` leads nowhere")));
            }
        }
        for name in line.split('`').skip(1).step_by(2) {
            let path = name.trim_end_matches('/');
            let plain = path.chars().all(|c| c.is_alphanumeric() || "/._-".contains(c));
            let ours = ROOTS.iter().any(|root| name.starts_with(root));
            if plain && ours && !known.contains(path) {
                findings.push(file.fault(number, format!("there is no `{path}`")));
            }
        }
    }
    findings
}

/// `target` as seen from `folder`.
fn joined(folder: &str, target: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::super::planted;
    use super::*;

    fn found(text: &str) -> Vec<Finding> {
        let paths = ["docs/a.md", "docs/wire.md", "README.md", "crates/wire/src/lib.rs"];
        broken(&[planted("docs/a.md", text)], &paths.map(str::to_owned))
    }

    #[test]
    fn a_link_to_a_missing_file_is_refused_by_line() {
        let bad = found("[a](wire.md) and\n[b](nothing.md)\n");
        assert!(matches!(&bad[..], [one] if one.line == 2), "{bad:?}");
    }

    #[test]
    fn a_backquoted_path_that_is_gone_is_refused() {
        assert_eq!(found("see `crates/wire/src/gone.rs`\n").len(), 1);
    }

    #[test]
    fn links_that_lead_somewhere_pass() {
        let text = "[a](../README.md#top) [b](#here) [c](https://example.org/x) `crates/wire/`\n\
                    `crates/wire/src/lib.rs` `crates/*/src`\n```\n[x](gone.md)\n```\n";
        assert!(found(text).is_empty(), "{:?}", found(text));
    }
}
