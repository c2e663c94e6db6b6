//! The rules of this house that no other tool knows, each a function from files to findings.

mod clock;
mod layers;
mod links;
mod maths;
mod names;
mod size;
mod source;
mod unsafety;
mod words;

use std::fmt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// A text file of the repository.
#[derive(Clone, Debug)]
pub struct File {
    /// From the repository's root, with `/`.
    pub path: String,
    /// Its text.
    pub text: String,
}

impl File {
    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Numbered lines, from 1.
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(at, line)| (at + 1, line))
    }

    /// Made by a recipe, or by a tool: kept as it came.
    fn is_made(&self) -> bool {
        ["golden/", "models/"].iter().any(|root| self.path.starts_with(root))
            || ["Cargo.lock", "LICENSE"].contains(&self.path.as_str())
    }

    fn fault(&self, line: usize, what: impl Into<String>) -> Finding {
        Finding { path: self.path.clone(), line, what: what.into(), fatal: true }
    }
}

/// What a rule has to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    path: String,
    line: usize,
    what: String,
    /// Else a warning.
    fatal: bool,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.fatal { "" } else { "warning: " };
        write!(f, "{}:{}: {mark}{}", self.path, self.line, self.what)
    }
}

/// A rule that looks at one file at a time.
type Rule = fn(&File) -> Vec<Finding>;

const RULES: &[Rule] = &[
    size::file,
    size::functions,
    size::width,
    names::banned,
    words::forbidden,
    words::families,
    words::unfinished,
    words::whitespace,
    words::registry,
    unsafety::places,
    layers::pure,
    layers::lints,
    maths::platform,
    clock::wall,
];

/// Applies every rule to every file that git knows or would take.
///
/// # Errors
/// The number of findings, after they were printed.
pub fn run(root: &Path) -> Result<()> {
    let (paths, files) = files(root)?;
    let mut findings: Vec<Finding> =
        files.iter().flat_map(|file| RULES.iter().flat_map(|rule| rule(file))).collect();
    findings.extend(layers::direction(&files));
    findings.extend(links::broken(&files, &paths));
    findings.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    findings.iter().for_each(|finding| eprintln!("{finding}"));
    match findings.iter().filter(|finding| finding.fatal).count() {
        0 => Ok(()),
        n => bail!("tidy: {n} findings"),
    }
}

/// All paths, and the files among them that hold text.
fn files(root: &Path) -> Result<(Vec<String>, Vec<File>)> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .context("tidy asks git for the files")?;
    ensure!(output.status.success(), "git: {}", String::from_utf8_lossy(&output.stderr));
    let listing = String::from_utf8(output.stdout).context("paths are UTF-8")?;
    let names = listing.split('\0').filter(|path| !path.is_empty());
    let paths: Vec<String> =
        names.filter(|path| root.join(path).is_file()).map(str::to_owned).collect();
    let read = |path: &String| {
        let text = std::fs::read_to_string(root.join(path)).ok()?;
        Some(File { path: path.clone(), text })
    };
    let files = paths.iter().filter_map(read).collect();
    Ok((paths, files))
}

#[cfg(test)]
fn planted(path: &str, text: &str) -> File {
    File { path: path.to_owned(), text: text.to_owned() }
}
